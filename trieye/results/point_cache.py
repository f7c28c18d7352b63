"""PointCache: points of jointly loaded runs, read once and shared by all selections."""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

from trieye.results import selection
from trieye.results.runs import NOTHING, LoadedRun, PointReader, Problems, Series


class PointCache:
    """The points read so far, and the problems, sweeps and runs of one loading.

    Args:
        problems: Collects problems of loading and reading.
        sweeps: Seeds of each sweep, by sweep directory.
        runs: The loaded runs, of which selections are subsets.
    """

    def __init__(self, problems: Problems, sweeps: Mapping[str, Collection[int]], runs: Sequence[LoadedRun]) -> None:
        self.problems, self.sweeps, self._runs = problems, sweeps, runs
        self._points: dict[str, dict[str, Series]] = {}
        self._whole: set[str] = set()

    @cached_property
    def configs(self) -> list[list[LoadedRun]]:
        """The loaded runs of each sweep and config."""
        keys = [selection.attribute("sweep", self._runs), *selection.varying(self._runs)]
        return list(selection.grouped(self._runs, keys).values())

    def points(self, runs: Sequence[LoadedRun], metrics: Collection[str] | None) -> list[Mapping[str, Series]]:
        """Return the points of each run by metric, and read each metric once; None: all metrics."""
        for source, group in by_source([run for run in runs if self._lacks(run, metrics)]):
            read_points = source.read(group, metrics)
            for run in group:
                cached_points = self._points.setdefault(run.path, {})
                cached_points |= dict.fromkeys(metrics or (), NOTHING) | dict(read_points.get(run.path, {}))
                if metrics is None:
                    self._whole.add(run.path)
        return [self._points.get(run.path, {}) for run in runs]

    def _lacks(self, run: LoadedRun, metrics: Collection[str] | None) -> bool:
        if run.path in self._whole:
            return False
        return metrics is None or not self._points.get(run.path, {}).keys() >= set(metrics)


def by_source(runs: Sequence[LoadedRun]) -> list[tuple[PointReader, list[LoadedRun]]]:
    """Group runs by the source of their points."""
    groups: dict[int, tuple[PointReader, list[LoadedRun]]] = {}
    for run in runs:
        groups.setdefault(id(run.source), (run.source, []))[1].append(run)
    return list(groups.values())
