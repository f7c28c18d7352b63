"""run_experiment: one training, or a study of many, as the config says."""

from trieye.experiment.experiment import ConfigT, Experiment
from trieye.experiment.finished import Result
from trieye.experiment.loop import run_alone


def run_experiment(experiment: type[Experiment[ConfigT]] | str, config: ConfigT) -> Result:
    """Train until the first limit of `config.loop`, or with `tune=...` run a study of many such trainings.

    What was interrupted goes on where it was saved; what is finished says so, and nothing is loaded or started for it.

    Args:
        experiment: What to train: a class, or `my_agent.dqn:DQN`, which is imported when it is needed.
        config: The config of the run, or of all trials.

    Returns:
        How the training ended; of a study, that of its best trial.

    Raises:
        ConfigurationError: The config sets no limit, `evaluate` does not return the objective, or the study cannot be
            run like this.
        CheckpointError: A checkpoint does not fit the experiment, or cannot be saved.
        RunInterrupted: A signal asked the run to stop; its state is saved.
        TrieyeError: Trials of the study failed.
    """
    if not config.tune.enabled:
        return run_alone(experiment, config)
    from trieye.tune.study import Study  # with Ray

    return Study(experiment, config).run()
