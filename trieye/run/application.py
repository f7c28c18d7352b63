"""`trieye.main`: the command line of a task function, and what is looked at before a run of it starts."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trieye.config.hydra.compose import Application, Config, Result, application
from trieye.config.hydra.hooks import Hooks
from trieye.config.redaction import HIDDEN, looks_secret, redacted
from trieye.config.root import TrieyeConfig
from trieye.exceptions import ConfigurationError

if TYPE_CHECKING:
    from rich.tree import Tree


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
        return application(task, config_path=config_path, config_name=config_name, hooks=_HOOKS)

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


def print_config(config: TrieyeConfig) -> None:
    """Print a config as a tree, without its secrets."""
    from rich.tree import Tree

    from trieye.process.terminal import Terminal, Text

    tree = Tree(Text(type(config).__name__, "bold"))
    for name, value in config.model_dump().items():
        _grow(tree, name, value)
    Terminal().print(tree)


def _grow(tree: "Tree", name: str, value: Any) -> None:
    from trieye.process.terminal import Text

    value = HIDDEN if looks_secret(name) and value is not None else redacted(value)
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        value = {item.get("name", number): item for number, item in enumerate(value)}
    if not isinstance(value, dict) or not value:
        tree.add(Text.assemble((name, "cyan"), " = ", repr(value)))
        return
    branch = tree.add(Text(name, "bold cyan"))
    for key, child in value.items():
        _grow(branch, str(key), child)


def _check_lock(run_dir: Path, is_on_cluster: bool) -> None:
    from trieye.process.lock import RunLock  # loaded here so that refusing a mistyped key does not wait for it

    lock_path = run_dir / "run.lock"
    if not (is_on_cluster and RunLock(lock_path).is_of_hub):  # the run asks Ray about the hub of a cluster
        RunLock.check(lock_path)


def _say(text: str) -> None:
    from trieye.process.progress import say

    say(text)


_HOOKS = Hooks(check=check_start, check_lock=_check_lock, print_config=print_config, say=_say)
