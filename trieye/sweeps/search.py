"""Searches: what a job is to try is decided when there is room for it, from what others have reached."""

import math
import random
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from trieye.config.hydra.axes import Dimension
from trieye.config.sweeper import SweeperConfig
from trieye.exceptions import ConfigurationError, JournalError
from trieye.hub.status import read_status
from trieye.sweeps.grid import bare
from trieye.sweeps.jobs import RUN, Done, Job, JobRecord

_LOOK_S = 1.0
_LATER = 2
"""Points of a job before Optuna's pruners look at it."""


class Search(Protocol):
    """Chooses values."""

    def ask(self, index: int) -> tuple[str, ...]:
        """Return the overrides of a new job."""

    def tell(self, index: int, overrides: Sequence[str], value: float | None, *, is_pruned: bool) -> None:
        """Hear what a job reached, which may be one of an earlier start of the sweep; None: it failed."""

    def is_hopeless(self, index: int, step: int, value: float) -> bool:
        """Hear of a point of a job that runs; tell whether to stop it."""


class RandomSearch:
    """Draws values; what a job tries depends on the seed and its number only."""

    def __init__(self, dimensions: Sequence[Dimension], seed: int) -> None:
        self._dimensions, self._seed = dimensions, seed

    def ask(self, index: int) -> tuple[str, ...]:
        """Return the overrides of a new job."""
        generator = random.Random(f"{self._seed}/{index}")  # noqa: S311 - no secret
        return tuple(f"{dimension.key}={_drawn(dimension, generator)}" for dimension in self._dimensions)

    def tell(self, index: int, overrides: Sequence[str], value: float | None, *, is_pruned: bool) -> None:
        """Do nothing."""

    def is_hopeless(self, index: int, step: int, value: float) -> bool:
        """No job is."""
        del index, step, value
        return False


def _drawn(dimension: Dimension, generator: random.Random) -> str:
    if dimension.choices:
        return generator.choice(dimension.choices)
    low, high = dimension.low, dimension.high
    if dimension.is_int and not dimension.is_log:
        return str(generator.randint(int(low), int(high)))
    if dimension.is_log:
        drawn = math.exp(generator.uniform(math.log(low), math.log(high)))
    else:
        drawn = generator.uniform(low, high)
    return str(round(drawn)) if dimension.is_int else repr(min(max(drawn, low), high))


class OptunaSearch:
    """Lets a sampler of Optuna choose, and a pruner of Optuna stop.

    Its study lives as long as the process; a sweep that is started again tells it what was reached before.

    Args:
        dimensions: What may be chosen.
        options: The sampler, the pruner, the seed.
        mode: Whether more is better, `max`, or less, `min`.

    Raises:
        ConfigurationError: Optuna is not installed, or lacks what the sampler needs.
    """

    def __init__(self, dimensions: Sequence[Dimension], options: SweeperConfig, mode: str) -> None:
        try:
            optuna: Any = import_module("optuna")
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                "hydra.sweeper.kind=optuna needs Optuna: pip install 'trieye[optuna]' (or kind=random)"
            ) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna, self._dimensions = optuna, dimensions
        self._spaces = {
            bare(dimension.key): _space(dimension, optuna.distributions)
            for dimension in dimensions
            if len(dimension.choices) != 1
        }
        self._study = optuna.create_study(
            direction="maximize" if mode == "max" else "minimize",
            sampler=_sampler(optuna.samplers, options),
            pruner=_pruner(optuna.pruners, options),
        )
        self._asked: dict[int, Any] = {}

    def ask(self, index: int) -> tuple[str, ...]:
        """Return the overrides of a new job."""
        trial = self._study.ask(self._spaces)
        self._asked[index] = trial
        return tuple(
            f"{held.key}={_typed(trial.params[bare(held.key)]) if bare(held.key) in trial.params else held.choices[0]}"
            for held in self._dimensions
        )

    def tell(self, index: int, overrides: Sequence[str], value: float | None, *, is_pruned: bool) -> None:
        """Hear what a job reached."""
        states = self._optuna.trial.TrialState
        is_sound = value is not None and math.isfinite(value)
        state = states.FAIL if not is_sound else states.PRUNED if is_pruned else states.COMPLETE
        if index in self._asked:
            trial = self._asked.pop(index)
            self._study.tell(trial, value if state == states.COMPLETE else None, state=state)
            return
        words = {bare(key): text for key, _, text in (word.partition("=") for word in overrides)}
        try:
            params = {name: _read(words[name], space) for name, space in self._spaces.items()}
            made = self._optuna.trial.create_trial(
                params=params,
                distributions=self._spaces,
                value=value if state == states.COMPLETE else None,
                state=state,
            )
        except (KeyError, ValueError):
            return  # it was tried when the sweep had other bounds, so that it tells nothing about these
        self._study.add_trial(made)

    def is_hopeless(self, index: int, step: int, value: float) -> bool:
        """Hear of a point of a job that runs; tell whether to stop it."""
        trial = self._asked.get(index)
        if trial is None or not math.isfinite(value):
            return False
        trial.report(value, step)
        return bool(trial.should_prune())


class Searching:
    """The jobs of a search: those that an earlier start of the sweep began, and then new ones.

    Args:
        search: Chooses values.
        num_trials: How many jobs there will be.
        begun: The records of the jobs that an earlier start began, by number; the search hears at once of those that
            have ended, whether they are asked for now or not.
        directory: Of the sweep.
        objective: The metric by whose points a job may be hopeless; None = none is.
    """

    def __init__(
        self,
        search: Search,
        num_trials: int,
        begun: Mapping[int, JobRecord],
        directory: Path,
        objective: str | None,
    ) -> None:
        self._search, self._directory, self._objective = search, directory, objective
        self._begun = {index: tuple(record.overrides) for index, record in begun.items()}
        self._known = {index for index, record in begun.items() if record.state in ("completed", "pruned")}
        for index in sorted(self._known):
            is_pruned = begun[index].state == "pruned"
            search.tell(index, self._begun[index], begun[index].objective, is_pruned=is_pruned)
        self._left = deque([*sorted(begun), *(index for index in range(num_trials) if index not in begun)])
        self._told: dict[int, int] = {}
        self._look_at = 0.0

    def next(self) -> Job | None:
        """Return the next job; what it is to try is decided here."""
        if not self._left:
            return None
        index = self._left.popleft()
        return Job(index, self._begun.get(index) or self._search.ask(index))

    def ended(self, job: Job, done: Done) -> None:
        """Tell the search what a job has reached."""
        if job.index not in self._known:
            self._search.tell(job.index, job.overrides, done.number, is_pruned=done.is_pruned)

    def hopeless(self, running: Sequence[Job]) -> Mapping[int, float]:
        """Return the jobs that the search gives up, by the points of their objective."""
        found: dict[int, float] = {}
        if self._objective is None or time.monotonic() < self._look_at:
            return found
        self._look_at = time.monotonic() + _LOOK_S
        for job in running:
            point = self._newest(job.index)
            if point is not None and point[0] > self._told.get(job.index, -1):
                self._told[job.index] = point[0]
                if self._search.is_hopeless(job.index, *point):
                    found[job.index] = point[1]
        return found

    def _newest(self, index: int) -> tuple[int, float] | None:
        run_dir = self._directory / str(index) / RUN
        with suppress(JournalError, OSError):
            held = read_status(run_dir).get("metrics", {}).get(self._objective) if run_dir.is_dir() else None
            return None if held is None else (int(held["step"]), float(held["last"]))
        return None


def _typed(value: object) -> str:
    return repr(value) if isinstance(value, float) else str(value)


def _read(text: str, space: Any) -> Any:
    kind = type(space).__name__
    return text if kind == "CategoricalDistribution" else int(text) if kind == "IntDistribution" else float(text)


def _space(dimension: Dimension, distributions: Any) -> Any:
    if dimension.choices:
        return distributions.CategoricalDistribution(dimension.choices)
    if dimension.is_int:
        return distributions.IntDistribution(int(dimension.low), int(dimension.high), log=dimension.is_log)
    return distributions.FloatDistribution(dimension.low, dimension.high, log=dimension.is_log)


def _sampler(samplers: Any, options: SweeperConfig) -> Any:
    makers: Mapping[str, Any] = {
        # several jobs run at once: those that have not ended count as bad ones
        "tpe": lambda: samplers.TPESampler(seed=options.seed, constant_liar=True),
        "random": lambda: samplers.RandomSampler(seed=options.seed),
        "cmaes": lambda: samplers.CmaEsSampler(seed=options.seed),
        "gp": lambda: samplers.GPSampler(seed=options.seed),
    }
    try:
        return makers[options.sampler]()
    except ImportError as error:
        raise ConfigurationError(f"hydra.sweeper.sampler={options.sampler}: {error}") from error


def _pruner(pruners: Any, options: SweeperConfig) -> Any:
    if options.pruner == "median":
        return pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=0, n_min_trials=_LATER)
    if options.pruner == "asha":
        return pruners.SuccessiveHalvingPruner()
    return pruners.NopPruner()
