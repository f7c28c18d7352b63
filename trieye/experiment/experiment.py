"""Experiment: the base class that a training implements, such as `setup`, `step` and `save_checkpoint`."""

import textwrap
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from trieye.config import TrieyeConfig
from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError, RunClosedError
from trieye.run.run import Run

ConfigT = TypeVar("ConfigT", bound=TrieyeConfig)
StepValues: TypeAlias = Mapping[str, float | Sequence[float] | None]

_MAX_SHOWN = 300


class Experiment(Generic[ConfigT]):
    """A training as a sequence of steps, with the interface of `ray.tune.Trainable` but without Ray.

    Subclasses override `setup`, `step`, `save_checkpoint`, `load_checkpoint` and, optionally, `evaluate`. The loop
    seeds the global random generators of Python, NumPy and (if already imported) torch before `setup`, and saves and
    restores them. An experiment seeds, saves and restores its own generators itself.

    Args:
        config: The config of the run.
        run: The open run of the training, from `run_experiment`; None to inspect or evaluate without training.
    """

    def __init__(self, config: ConfigT, run: Run | None = None) -> None:
        self.config, self._run = config, run
        self.setup(config)

    @property
    def run(self) -> Run:
        """The run, for logging images, videos, tables and files, its directory, replay buffer, and worker clients.

        The values that `step` and `evaluate` return are logged automatically, and checkpoints are saved automatically.

        Raises:
            RunClosedError: The experiment was created without a run.
        """
        if self._run is None:
            raise RunClosedError(
                f"{type(self).__name__}(config) was created without a run; start it with run_experiment()"
            )
        return self._run

    def enter(self, run: Run) -> None:
        """Continue in another run, whose state is loaded next."""
        self.config, self._run = run.config, run  # type: ignore[assignment]  # of the type that the caller has checked

    @classmethod
    def check_machine(cls, config: ConfigT) -> None:
        """Refuse a config that this machine cannot train, for example for lack of a device, before the run begins.

        Raises:
            ConfigurationError: The message names the key and the alternatives.
        """

    def setup(self, config: ConfigT) -> None:
        """Create models, optimizers and environments."""

    def step(self) -> StepValues:
        """Run one iteration of the training.

        Returns:
            Values to log; None values are skipped, and a list is logged as one event per item, such as the returns of
            episodes. `env_steps` and `updates` are the numbers of environment steps and updates in this iteration;
            they are summed for `loop.axis` and `loop.env_steps`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no step()")

    def advance(self) -> StepValues:
        """Run `step` and return its values; a base class may add values. Called by the loop."""
        return self.step()

    def evaluate(self) -> Mapping[str, float]:
        """Evaluate the current state; called every `loop.evaluate_every_steps` steps and at the end.

        Returns:
            Values to log, including `loop.objective`. Evaluating must not affect the training.
        """
        return {}

    def evaluate_saved(self, checkpoint: Path) -> "Future[Mapping[str, float]]":
        """Start to evaluate a checkpoint concurrently, for `loop.background_evaluation`; must not block.

        Args:
            checkpoint: Directory of the checkpoint, for `trieye.load_checkpoint`.

        Returns:
            A future of the values that `evaluate` would return for the checkpoint. If the future raises
            `ConnectionError`, this method is called again.
        """
        raise NotImplementedError(f"{type(self).__name__} has no evaluate_saved()")

    @property
    def can_save(self) -> bool:
        """Whether a checkpoint of the current state resumes bit-exactly.

        Override it if that depends on the state, for example in the middle of an episode of an environment that cannot
        be saved there (see `EnvState.can_save`). While it is False, a due evaluation or save is postponed until a step
        after which it is True, for at most half an interval of evaluations or saves, or 100 steps if that is more.
        Saves after a signal and at the end are not postponed. The value must depend on the state only.
        """
        return True

    def save_checkpoint(self, checkpoint_dir: Path) -> Mapping[str, Any] | None:
        """Return the state, or write it to files.

        Args:
            checkpoint_dir: An empty directory for files.

        Returns:
            Plain data, arrays, tensors, random generators, environments and objects with `state_dict()`, which trieye
            stores without pickle; or None, or `checkpoint_dir` itself, if the state was written to files.
        """
        raise NotImplementedError(f"{type(self).__name__} has no save_checkpoint()")

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Restore the state that `save_checkpoint` returned, or read its files from the directory `checkpoint`."""
        raise NotImplementedError(f"{type(self).__name__} has no load_checkpoint()")

    def reset_config(self, new_config: ConfigT) -> bool:
        """Switch to another config in place and return True; return False, and change nothing, if that is impossible.

        Ray Tune calls this in a process that trains several trials in turn, and then loads a state.
        """
        del new_config
        return False

    def export_model(self, export_dir: Path) -> list[Path]:
        """Export the trained model for use outside trieye, and return the files."""
        del export_dir
        return []

    def cleanup(self) -> None:
        """Close environments and files when this process stops training; the run may continue in another process."""


def imported(name: str, methods: Sequence[str] = ("step", "save_checkpoint", "load_checkpoint")) -> Any:
    """Import a class by a name such as `my_agent.dqn:DQN`.

    Args:
        name: Module and class name, separated by a colon.
        methods: Methods that the class must have; defaults to the required methods of `Experiment`.

    Raises:
        ConfigurationError: The module or the class does not exist, or the class lacks a method.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or module_name.startswith(".") or not module_name:
        raise ConfigurationError(f"{name!r}: a class must be written as 'module:Class', such as 'my_agent.dqn:DQN'")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # a dependency of the module is missing
        raise ConfigurationError(
            f"{name!r}: no module named {error.name!r}; install its project, or add its directory to PYTHONPATH"
        ) from error
    if not hasattr(module, attribute):
        classes = {key: value for key, value in vars(module).items() if isinstance(value, type)}
        choices = [key for key, value in classes.items() if all(hasattr(value, method) for method in methods)]
        hint = did_you_mean(attribute, choices)
        raise ConfigurationError(f"{name!r}: no {attribute} in {module.__file__}{hint} (it has: {', '.join(choices)})")
    target = getattr(module, attribute)
    if missing_methods := [method for method in methods if not callable(getattr(target, method, None))]:
        raise ConfigurationError(f"{name!r} has no {missing_methods[0]}(); required methods: {', '.join(methods)}")
    return target


def checked_values(experiment: Experiment[Any], method: str, values: Any) -> Mapping[str, Any]:
    """Return what a method of an experiment returned.

    Raises:
        ConfigurationError: It is not a mapping.
    """
    if not isinstance(values, Mapping):
        text = textwrap.shorten(repr(values), _MAX_SHOWN)
        hint = "; is a `return` missing?" if values is None else ""
        kind = type(experiment).__name__
        raise ConfigurationError(f"{kind}.{method}() returned {text}; expected a dict of values{hint}")
    return values
