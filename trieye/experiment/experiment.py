"""Experiment: what a training provides."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar

from trieye.config import TrieyeConfig
from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError, RunClosedError
from trieye.run.run import Run

ConfigT = TypeVar("ConfigT", bound=TrieyeConfig)


class Experiment(Generic[ConfigT]):
    """A training as a sequence of steps, in the shape of `ray.tune.Trainable` and without Ray.

    Subclasses override `setup`, `step`, `save_checkpoint`, `load_checkpoint`, and `evaluate` if there is something to
    evaluate. The global random generators of python, NumPy and (if it is imported by then) torch are seeded before
    `setup`, and saved and restored by the loop; generators of its own are the experiment's business.

    Args:
        config: The config of the run.
        run: The run that it trains in, which `run_experiment` opens; None: it is made to be looked at or evaluated.
    """

    def __init__(self, config: ConfigT, run: Run | None = None) -> None:
        self.config, self._run = config, run
        self.setup(config)

    @property
    def run(self) -> Run:
        """The run: pictures, videos, tables and files for it, its directory, its replay buffer, clients for workers.

        It logs what `step` and `evaluate` return, and saves, without being asked.

        Raises:
            RunClosedError: The experiment was made without a run.
        """
        if self._run is None:
            raise RunClosedError(f"{type(self).__name__}(config) has no run: run_experiment makes it with one")
        return self._run

    def enter(self, run: Run) -> None:
        """Go on in another run; a state of that run follows."""
        self.config, self._run = run.config, run  # type: ignore[assignment]  # of the type that the caller has checked

    @classmethod
    def check_machine(cls, config: ConfigT) -> None:
        """Refuse a config that this machine cannot train, such as with a device that it lacks, before the run begins.

        Raises:
            ConfigurationError: The message names the key and the alternatives.
        """

    def setup(self, config: ConfigT) -> None:
        """Make models, optimizers and environments."""

    def step(self) -> Mapping[str, float | None]:
        """Do one logical iteration.

        Returns:
            Values to log; those that are None are left out. Those under `env_steps` and `updates`, the numbers of
            environment steps and of updates made in this iteration, are summed up for `loop.axis` and `loop.env_steps`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no step()")

    def advance(self) -> Mapping[str, float | None]:
        """Do `step` and return its values, with more that a base class knows; the loop calls it."""
        return self.step()

    def evaluate(self) -> Mapping[str, float]:
        """Measure how good the present state is; called every `loop.evaluate_every_steps` and at the end.

        Returns:
            Values to log, with the one that `loop.objective` names. Training must not depend on it.
        """
        return {}

    def evaluate_saved(self, checkpoint: Path) -> "Future[Mapping[str, float]]":
        """Start an evaluation of a checkpoint elsewhere, for `loop.background_evaluation`, and return without waiting.

        Args:
            checkpoint: Its directory, for `trieye.load_checkpoint`.

        Returns:
            What `evaluate` would return there. If it raises `ConnectionError`, this is called again.
        """
        raise NotImplementedError(f"{type(self).__name__} has no evaluate_saved()")

    @property
    def can_save(self) -> bool:
        """Whether a training that goes on from the present state goes on exactly; asked when it is to be saved.

        Override it where that is not always so, as in the middle of an episode of an environment that cannot be saved
        there (`EnvState.can_save` knows). While it is False, an evaluation or a save that is due waits for the first
        step after which it is True: for as many steps as lie between two of them, or 100 if that is more. What a signal
        asks for, and the last save, do not wait. It must depend on nothing but the state.
        """
        return True

    def save_checkpoint(self, checkpoint_dir: Path) -> Mapping[str, Any] | None:
        """Return the state, or write it as files.

        Args:
            checkpoint_dir: An empty directory for files.

        Returns:
            Plain data, arrays, tensors, random generators, environments and objects with `state_dict()`, which trieye
            writes without pickle; or None if the state was written to `checkpoint_dir`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no save_checkpoint()")

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Bring back what `save_checkpoint` returned, or read the files from the directory given."""
        raise NotImplementedError(f"{type(self).__name__} has no load_checkpoint()")

    def reset_config(self, new_config: ConfigT) -> bool:
        """Take another config in place; False if that needs a new object.

        Ray Tune's population-based training asks this where a process trains one trial after another: a state that
        `save_checkpoint` returned follows. What it must not do if it returns False: change anything.
        """
        del new_config
        return False

    def export_model(self, export_dir: Path) -> list[Path]:
        """Write the trained model for use elsewhere, and return the files."""
        del export_dir
        return []

    def cleanup(self) -> None:
        """Close environments and files; this process leaves, the run may go on in another one."""


def imported(name: str, methods: Sequence[str] = ("step", "save_checkpoint", "load_checkpoint")) -> Any:
    """Return the class that is named as `my_agent.dqn:DQN`.

    Args:
        name: Its module and its name.
        methods: What it must have; by default those of an `Experiment`.

    Raises:
        ConfigurationError: It is not there, or something else.
    """
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ConfigurationError(f"{name!r}: a class is named as 'my_agent.dqn:DQN'")
    try:
        home = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # something that the module needs
        raise ConfigurationError(
            f"{name!r}: there is no module {error.name!r}; is its project installed, or this its directory?"
        ) from error
    if not hasattr(home, attribute):
        classes = {key: value for key, value in vars(home).items() if isinstance(value, type)}
        known = [key for key, value in classes.items() if all(hasattr(value, method) for method in methods)]
        hint = did_you_mean(attribute, known)
        raise ConfigurationError(f"{name!r}: {home.__file__} has no {attribute}{hint} (it has: {', '.join(known)})")
    found = getattr(home, attribute)
    if missing := [method for method in methods if not callable(getattr(found, method, None))]:
        raise ConfigurationError(f"{name!r} has no {missing[0]}(); needed are {', '.join(methods)}")
    return found
