"""MetricPoints: the points of a metric of a stored run, without superseded ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError
from trieye.history.arrow import as_numpy
from trieye.history.table import read_history, rows_by_metric
from trieye.runs.finding import RunReference, get

_NO_ROWS: NDArray[np.int64] = np.zeros(0, np.int64)


@dataclass(frozen=True)
class MetricPoints:
    """Points in the order in which they were produced.

    Attributes:
        steps: int64 `[n]`, in the unit of the run's steps.
        values: float64 `[n]`.
        times: float64 `[n]`, Unix time in seconds.
        counts: int64 `[n]`, number of events that each point summarises.
    """

    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    times: NDArray[np.float64]
    counts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.steps)


def points(
    run: RunReference, metrics: Sequence[str] = ("*",), *, since: int | None = None, root: Path | None = None
) -> dict[str, MetricPoints]:
    """Return the points of metrics of a run, which may be running.

    The points of its last ten seconds may be missing, for a killed run until `trieye close`.

    Args:
        run: The run, its directory or its name.
        metrics: Names, or patterns such as `loss/*`; the name of a metric selects only this metric.
        since: The first step to return; None: all steps.
        root: Directory of all apps; None: the directories of the project around the working directory.

    Returns:
        Points by metric; without points, if the run published the metric and has not stored a point of it yet.

    Raises:
        ConfigurationError: There is no such run, or it has no such metric.
        JournalError: Its journal or history cannot be read.
    """
    stored_run = get(run, root=root)
    table = read_history(stored_run.run_dir)
    columns = [as_numpy(table[name]) for name in ("step", "value", "wall_time", "count")]
    rows_by_name = rows_by_metric(table)
    known_names = dict.fromkeys([*stored_run.metrics, *rows_by_name])
    points_by_name: dict[str, MetricPoints] = {}
    for pattern in metrics:
        names = [pattern] if pattern in known_names else [name for name in known_names if fnmatchcase(name, pattern)]
        if not names and pattern != "*":
            raise ConfigurationError(
                f"{stored_run}: it has no metric {pattern!r}{did_you_mean(pattern, known_names)} "
                f"(it has: {', '.join(known_names) or 'none yet'})"
            )
        for name in names:
            rows = rows_by_name.get(name, _NO_ROWS)
            if since is not None:
                rows = rows[columns[0][rows] >= since]
            points_by_name[name] = MetricPoints(*(column[rows] for column in columns))
    return points_by_name
