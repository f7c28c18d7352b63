"""Asking: a sampler of Optuna as a search algorithm of Ray Tune."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.tune.search import Searcher

from trieye.config.hydra.axes import Dimension, value_of
from trieye.config.sweeper import SweeperConfig
from trieye.sweeps.grid import bare
from trieye.sweeps.search import OptunaSearch
from trieye.tune.trainable import INDEX


@dataclass
class _Asked:
    """The values of a trial and its objective; None if it runs or failed."""

    index: int
    words: list[str]
    value: float | None = None
    has_ended: bool = False
    is_pruned: bool = False


class Asking(Searcher):  # type: ignore[misc]  # Ray has no types for us
    """Asks the search of sweeps; what was tried and reached is all of its state, as JSON.

    Args:
        dimensions: What may be chosen.
        options: The sampler and its seed.
        metric: The objective.
        mode: Whether more of it is better, `max`, or less, `min`.
        num_trials: Trials at most.
    """

    def __init__(
        self, dimensions: list[Dimension], options: SweeperConfig, *, metric: str, mode: str, num_trials: int
    ) -> None:
        super().__init__(metric=metric, mode=mode)
        self._dimensions, self._options, self._num = dimensions, options, num_trials
        self._best_is = mode
        self._trials: dict[str, _Asked] = {}
        self._search: OptunaSearch | None = OptunaSearch(dimensions, options, mode)  # fails before anything starts

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_search": None}  # rebuilt from the trials

    def suggest(self, trial_id: str) -> Any:
        """Return the values of a new trial, with its number."""
        if len(self._trials) >= self._num:
            return Searcher.FINISHED
        index = len(self._trials)
        words = list(self._asked().ask(index))
        self._trials[trial_id] = _Asked(index, words)
        pairs = (word.partition("=") for word in words)
        return {INDEX: index, **{bare(key): value_of(text) for key, _, text in pairs}}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Hear what a trial reached."""
        asked = self._trials[trial_id]
        value = None if error or result is None else result.get("best_objective", result.get(self.metric))
        search = self._asked()
        asked.value, asked.has_ended = value, True
        asked.is_pruned = value is not None and not (result or {}).get("done", True)
        search.tell(asked.index, asked.words, value, is_pruned=asked.is_pruned)

    def save(self, checkpoint_path: str) -> None:
        """Write down what was tried."""
        held = {name: vars(asked) for name, asked in self._trials.items()}
        Path(checkpoint_path).write_text(json.dumps(held), "utf-8")

    def restore(self, checkpoint_path: str) -> None:
        """Go on from what was tried."""
        held = json.loads(Path(checkpoint_path).read_text("utf-8"))
        self._trials = {name: _Asked(**asked) for name, asked in held.items()}
        self._search = None

    def _asked(self) -> OptunaSearch:
        if self._search is None:
            self._search = OptunaSearch(self._dimensions, self._options, self._best_is)
            for asked in self._trials.values():
                self._search.resume(asked.index, asked.words)
                if asked.has_ended:
                    self._search.tell(asked.index, asked.words, asked.value, is_pruned=asked.is_pruned)
        return self._search
