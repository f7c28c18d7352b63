"""run_experiment: runs one training, or a study of many trials, depending on the config."""

from trieye.experiment.experiment import ConfigT, Experiment
from trieye.experiment.finished import Result
from trieye.experiment.loop import run_alone


def run_experiment(experiment: type[Experiment[ConfigT]] | str, config: ConfigT) -> Result:
    """Train until the first limit of `config.loop`, or, with `tune=...`, run a study of many such trainings.

    Interrupted runs and studies resume from their last checkpoint. Finished ones only report their result.

    Args:
        experiment: A class, or an import path such as `my_agent.dqn:DQN`, imported on use.
        config: The config of the run, or of all trials.

    Returns:
        The result of the training, or of the best trial of a study.

    Raises:
        ConfigurationError: The config sets no limit, `evaluate` does not return the objective, or the options of the
            study are invalid.
        CheckpointError: A checkpoint does not fit the experiment, or cannot be saved.
        RunInterrupted: A signal stopped the run; its state is saved.
        TrieyeError: Trials of the study failed.
    """
    if not config.tune.enabled:
        return run_alone(experiment, config)
    from trieye.tune.study import Study  # imports Ray

    return Study(experiment, config).run()
