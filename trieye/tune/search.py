"""Asking: an ask/tell adapter of an Optuna sampler to a Ray Tune search algorithm."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.tune.search import Searcher

from trieye.config.hydra.axes import Dimension, value_of
from trieye.config.sweeper import SweeperConfig
from trieye.sweeps.grid import bare
from trieye.sweeps.search import OptunaSearch
from trieye.sweeps.space import SearchSpace
from trieye.tune.trainable import INDEX


@dataclass
class _TrialValues:
    """Values of a trial, and its objective; None if it is running or failed."""

    index: int
    words: list[str]
    value: float | None = None
    has_ended: bool = False
    is_pruned: bool = False


class Asking(Searcher):  # type: ignore[misc]  # Ray has no types for us
    """Wraps the Optuna search of sweeps; its only state is the trials and their objectives, as JSON.

    Args:
        dimensions: The search space.
        options: The sampler and its seed.
        metric: The objective.
        mode: `max` or `min`: whether a higher or lower objective is better.
        num_trials: Maximum number of trials.
    """

    def __init__(
        self, dimensions: list[Dimension], options: SweeperConfig, *, metric: str, mode: str, num_trials: int
    ) -> None:
        super().__init__(metric=metric, mode=mode)
        self._dimensions, self._options, self._num = dimensions, options, num_trials
        self._best_is = mode
        self._trials: dict[str, _TrialValues] = {}
        self._search: OptunaSearch | None = OptunaSearch(
            SearchSpace.of(dimensions), options, mode
        )  # fails before anything starts

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_search": None}  # rebuilt from the trials

    def suggest(self, trial_id: str) -> Any:
        """Return the values of a new trial, with its index."""
        if len(self._trials) >= self._num:
            return Searcher.FINISHED
        index = len(self._trials)
        words = list(self._optuna().ask(index))
        self._trials[trial_id] = _TrialValues(index, words)
        pairs = (word.partition("=") for word in words)
        return {INDEX: index, **{bare(key): value_of(text) for key, _, text in pairs}}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Report the outcome of a trial to the sampler."""
        trial = self._trials[trial_id]
        value = None if error or result is None else result.get("best_objective", result.get(self.metric))
        search = self._optuna()
        trial.value, trial.has_ended = value, True
        trial.is_pruned = value is not None and not (result or {}).get("done", True)
        search.tell(trial.index, trial.words, _values(value), is_pruned=trial.is_pruned)

    def save(self, checkpoint_path: str) -> None:
        """Write the trials to a file."""
        trials = {name: vars(trial) for name, trial in self._trials.items()}
        Path(checkpoint_path).write_text(json.dumps(trials), "utf-8")

    def restore(self, checkpoint_path: str) -> None:
        """Restore the trials from a file."""
        trials = json.loads(Path(checkpoint_path).read_text("utf-8"))
        self._trials = {name: _TrialValues(**trial) for name, trial in trials.items()}
        self._search = None

    def _optuna(self) -> OptunaSearch:
        if self._search is None:
            self._search = OptunaSearch(SearchSpace.of(self._dimensions), self._options, self._best_is)
            for trial in self._trials.values():
                self._search.resume(trial.index, trial.words)
                if trial.has_ended:
                    self._search.tell(trial.index, trial.words, _values(trial.value), is_pruned=trial.is_pruned)
        return self._search


def _values(value: float | None) -> list[float]:
    return [] if value is None else [value]
