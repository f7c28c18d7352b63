"""`trieye.main`: the command-line decorator for task functions, and the checks before a run starts."""

from collections.abc import Callable
from pathlib import Path

from trieye.config.hydra.compose import Application, Config, Result, application
from trieye.config.hydra.hooks import Hooks
from trieye.config.redaction import redacted
from trieye.config.root import TrieyeConfig
from trieye.exceptions import ConfigurationError
from trieye.process.progress import say


def main(
    config_path: str = "conf", config_name: str = "train"
) -> Callable[[Callable[[Config], Result]], Application[Config, Result]]:
    """Turn a task function into a command line; its first parameter is annotated with its config class.

    Hydra composes the config from the command line, and invalid configs fail before anything runs, with one message on
    stderr and exit code 2. A single run stores its Hydra records in its directory; with `-m` every job is a separate
    run, named after the sweep and the job number. A task not annotated with a config class is refused.

    Args:
        config_path: The config directory: absolute, relative to the file of the task function, or `pkg://` followed by
            a package.
        config_name: The primary config, without `.yaml`.

    Raises:
        ConfigurationError: The decorator is used without parentheses.
    """
    if callable(config_path):
        name = getattr(config_path, "__name__", "train")
        raise ConfigurationError(f"@trieye.main above {name}: write @trieye.main(), or @trieye.main(config_path=...)")

    def decorate(task: Callable[[Config], Result]) -> Application[Config, Result]:
        return application(task, config_path=config_path, config_name=config_name, hooks=_HOOKS)

    return decorate


def check_start(config: TrieyeConfig) -> None:
    """Check that a run can start: the machine meets the requirements of the config, and the checkpoint to load exists.

    Raises:
        ConfigurationError: A requirement is missing; nothing was created or started.
        CheckpointError: The checkpoint to load is damaged.
        SystemExit: This is a dry run, as `trieye rerun` starts one, and its report is written.
    """
    config.check()
    if config.persistence.load_checkpoint_path is not None:
        from trieye.checkpoints.choose import check_reference  # imported late: reporting a typo must not load NumPy
        from trieye.files.run_files import RunFiles

        check_reference(RunFiles(config.trieye.persistence), config.trieye.persistence)
    from trieye.run.rehearsal import exit_if_dry_run, is_dry_run  # imported late as well

    if is_dry_run("config"):
        exit_if_dry_run("config", config.with_run_defaults())


def print_config(config: TrieyeConfig) -> None:
    """Print a config as YAML, with secrets hidden."""
    import yaml  # imported late, as few programs print it
    from pydantic_core import to_jsonable_python

    values = to_jsonable_python(config.model_dump(), inf_nan_mode="constants")
    print(yaml.safe_dump(redacted(values), sort_keys=False, allow_unicode=True))  # noqa: T201 - asked for


def _check_lock(run_dir: Path, is_on_cluster: bool) -> None:
    from trieye.process.lock import RunLock  # imported late, to report a typo fast

    lock_path = run_dir / "run.lock"
    if not (is_on_cluster and RunLock(lock_path).is_of_hub):  # the run itself asks Ray about a hub on a cluster
        RunLock.check(lock_path)


def _announce(run_dir: Path) -> None:
    from trieye.process.lock import RunLock

    RunLock(run_dir / "run.lock").announce()


_HOOKS = Hooks(check=check_start, check_lock=_check_lock, announce=_announce, print_config=print_config, say=say)
