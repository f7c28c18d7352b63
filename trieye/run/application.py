"""`trieye.main`: the command line of a task function, and what is looked at before a run of it starts."""

from collections.abc import Callable

from trieye.config.hydra.compose import Application, Config, Result, application
from trieye.config.root import TrieyeConfig
from trieye.exceptions import ConfigurationError


def main(
    config_path: str = "conf", config_name: str = "train"
) -> Callable[[Callable[[Config], Result]], Application[Config, Result]]:
    """Make a command line of a task function, whose first parameter is annotated with the type of its config.

    The command line is composed by Hydra and checked before anything runs: a mistake is one message on stderr and exit
    code 2. A single run has its Hydra records in its own directory; with `-m` every job is a run of its own, named
    after the sweep and its number. A task whose parameter has no annotation, or that of another type, is refused.

    Args:
        config_path: The config directory, relative to the file of the task function, or absolute, or `pkg://` and a
            package.
        config_name: The primary config, without `.yaml`.

    Raises:
        ConfigurationError: It decorates without parentheses.
    """
    if callable(config_path):
        name = getattr(config_path, "__name__", "train")
        raise ConfigurationError(f"@trieye.main above {name}: write @trieye.main(), or @trieye.main(config_path=...)")

    def decorate(task: Callable[[Config], Result]) -> Application[Config, Result]:
        return application(task, config_path=config_path, config_name=config_name, check=check_start)

    return decorate


def check_start(config: TrieyeConfig) -> None:
    """Make sure that a run can start: that there is what its machine has to have, and what it is to start from.

    Raises:
        ConfigurationError: Something is missing; nothing was made or started.
        CheckpointError: What it should start from is damaged.
        SystemExit: The program was started to see this and no more, as `trieye rerun` does.
    """
    config.check()
    if config.persistence.load_checkpoint_path is not None:
        from trieye.checkpoints.choose import check_reference  # here, for a mistyped key should not wait for NumPy
        from trieye.files.run_files import RunFiles

        check_reference(RunFiles(config.trieye.persistence), config.trieye.persistence)
    from trieye.run.rehearsal import end_if_rehearsed  # likewise

    end_if_rehearsed("config", completed(config))


def completed(config: TrieyeConfig) -> TrieyeConfig:
    """Return the config with the defaults of `Run`; a run of an earlier version keeps its directory of event files."""
    config = config.with_run_defaults()
    persistence = config.persistence
    earlier = persistence.get_run_base_dir() / "tensorboard"
    if persistence.tensorboard_dir_name != "." or not earlier.is_dir():
        return config
    return config.model_copy(
        update={"persistence": persistence.model_copy(update={"tensorboard_dir_name": earlier.name})}
    )
