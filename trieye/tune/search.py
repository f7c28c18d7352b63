"""Asking: an ask/tell adapter of an Optuna sampler to a Ray Tune search algorithm."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ray.tune.search import BasicVariantGenerator, Searcher, SearchGenerator

from trieye.config.hydra.axes import Dimension, value_of
from trieye.config.sweeper import SweeperConfig
from trieye.exceptions import SerializationError
from trieye.sweeps.grid import bare
from trieye.sweeps.jobs import JobRecord
from trieye.sweeps.search import OptunaSearch
from trieye.sweeps.space import SearchSpace
from trieye.tune.ended import INDEX, with_secrets_of


class CurrentStudy:
    """The study of this process, for search algorithms that Ray Tune restores with a former state.

    Attributes:
        num_trials: Number of trials, which may have been raised; with a grid, the number of its repetitions. None
            outside of a study.
        directory: Its directory, which may have moved, and whose records may contain trials that the state lacks. None
            outside of a study.
    """

    num_trials: ClassVar[int | None] = None
    directory: ClassVar[Path | None] = None

    @classmethod
    def place(cls, trial: Any) -> Any:
        """Let a new trial store its state in the directory, since a restored search names that of the first start."""
        if trial is not None and cls.directory is not None:
            trial.storage.storage_fs_path = str(cls.directory)
        return trial


class GrowingVariants(BasicVariantGenerator):  # type: ignore[misc]  # Ray has no types for us
    """Draws the values of a random or grid search, also of trials that a resumed study adds."""

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the state, with the number of trials of this start."""
        for variants in state["_iterators"]:
            num_added = (CurrentStudy.num_trials or 0) - variants.num_samples
            if num_added > 0:
                state["_total_samples"] += num_added * (state["_total_samples"] // variants.num_samples)
                state["_finished"] = False
                variants.num_samples += num_added
                variants.num_samples_left += num_added
        super().set_state(state)

    def next_trial(self) -> Any:
        """Return a new trial, or None."""
        return CurrentStudy.place(super().next_trial())


class GrowingSearch(SearchGenerator):  # type: ignore[misc]  # Ray has no types for us
    """Creates the trials of a searcher, including trials that a resumed study adds."""

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the state, with the number of trials of this start."""
        num = CurrentStudy.num_trials or 0
        if num > state["total_samples"]:
            state |= {"total_samples": num, "finished": False}
        super().set_state(state)

    def next_trial(self) -> Any:
        """Return a new trial, or None."""
        return CurrentStudy.place(super().next_trial())


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
        self._trials: dict[str, _TrialValues] = {}
        self._search: OptunaSearch | None = None
        self._optuna()  # fails before anything starts

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_search": None}  # rebuilt from the trials

    def suggest(self, trial_id: str) -> Any:
        """Return the values of a new trial, with its index."""
        if len(self._trials) >= max(self._num, CurrentStudy.num_trials or 0):
            return Searcher.FINISHED
        index = len(self._trials)
        words = list(self._words_of(index))
        self._trials[trial_id] = _TrialValues(index, words)
        pairs = (word.partition("=") for word in words)
        return {INDEX: index, **{bare(key): value_of(text) for key, _, text in pairs}}

    def _words_of(self, index: int) -> Sequence[str]:
        """Return the recorded values of a trial that a killed start began, or new ones."""
        if CurrentStudy.directory is not None:
            with suppress(SerializationError):  # a damaged record
                if (record := JobRecord.read(CurrentStudy.directory / str(index))) is not None:
                    return self._optuna().resume(index, with_secrets_of(self._dimensions, record.overrides))
        return self._optuna().ask(index)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Report the outcome of a trial to the sampler."""
        trial = self._trials[trial_id]
        value = None if error or result is None else result.get("best_objective", result.get(self.metric))
        search = self._optuna()
        trial.value, trial.has_ended = value, True
        trial.is_pruned = value is not None and (result or {}).get("stop_reason") is None
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
            self._search = OptunaSearch(SearchSpace.of(self._dimensions), self._options, self.mode)
            for trial in self._trials.values():
                self._search.resume(trial.index, trial.words)
                if trial.has_ended:
                    self._search.tell(trial.index, trial.words, _values(trial.value), is_pruned=trial.is_pruned)
        return self._search


def _values(value: float | None) -> list[float]:
    return [] if value is None else [value]
