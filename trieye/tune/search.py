"""StudySearch: turns the jobs of a search into trials of Ray Tune."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.search import SearchAlgorithm

from trieye.config.hydra.axes import value_of
from trieye.config.hydra.override_text import values_of
from trieye.sweeps.grid import Grid
from trieye.sweeps.jobs import Done, Job, JobRecord, ReportedError
from trieye.sweeps.search import Search, SearchQueue

_OPTIONS = ("checkpoint_config", "max_failures", "storage", "trial_dirname_creator")
"""Options of Tune's experiment that each trial has."""


class GridSearch(Search):
    """All combinations of a grid, repeated for all further jobs.

    Args:
        grid: The grid.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def ask(self, index: int) -> tuple[str, ...]:
        """Return the overrides of a new job."""
        return self._grid[index % self._grid.size]

    def resume(self, index: int, recorded: Sequence[str]) -> tuple[str, ...]:
        """Return the overrides of a job that an earlier start of the study began."""
        del recorded
        return self.ask(index)


class StudySearch(SearchAlgorithm):  # type: ignore[misc]  # Ray has no types for us
    """Creates the trials of a study that have not ended.

    Args:
        search: Chooses the values.
        size: Number of trials, including ended ones.
        records: Records of the trials of earlier starts, by index.
        ended: Indices of the trials that have ended.
        directory: Directory of the study.
        max_concurrent: Maximum number of trials that run at the same time; None: no limit.
    """

    def __init__(
        self,
        search: Search,
        size: int,
        records: Mapping[int, JobRecord],
        ended: Sequence[int],
        *,
        directory: Path,
        max_concurrent: int | None = None,
    ) -> None:
        self._queue = SearchQueue(search, size, records, directory, None)
        self._size, self._ended, self._max_concurrent = size, ended, max_concurrent
        self._running: dict[str, Job] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune stores its options, which a study never reads

    @property
    def total_samples(self) -> int:
        """Number of trials that this start creates."""
        return self._size - len(self._ended)

    def add_configurations(self, experiments: Any) -> None:
        """Receive the options of the trials."""
        (experiment,) = experiments
        self._trainable_name = experiment.spec["run"]
        self._options = {name: experiment.spec[name] for name in _OPTIONS}

    def next_trial(self) -> Trial | None:
        """Return a new trial; None if there is none, or none until another trial has ended."""
        if self._max_concurrent is not None and len(self._running) >= self._max_concurrent:
            return None
        job = next((job for job in iter(self._queue.next, None) if job.index not in self._ended), None)
        if job is None:
            self.set_finished()
            return None
        trial_id, texts = id_of(job.index), values_of(job.overrides)
        values = {key: value_of(text) for key, text in texts.items()}
        self._running[trial_id] = job
        return Trial(
            self._trainable_name, config=values, trial_id=trial_id, experiment_tag=str(job.index), **self._options
        )

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Report the outcome of a trial to the search."""
        job, result = self._running.pop(trial_id), result or {}
        value = result.get("best_objective")
        if error or value is None:
            done = Done(job.index, error=ReportedError("it failed or has no objective"))
        else:
            done = Done(job.index, value, is_pruned=result.get("stop_reason") is None)
        self._queue.ended(job, done)


def id_of(index: int) -> str:
    """Return Tune's id of a trial; `trainable.index_of` parses it."""
    return f"trial_{index:05}"
