"""AttemptRow: the attempts of a run, with the points that each one logged."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import SerializationError
from trieye.files.run_files import JOURNAL, RUN_RECORD
from trieye.files.run_record import RunRecord
from trieye.history.arrow import as_numpy
from trieye.history.history import read_history
from trieye.hub.marks import AttemptMark
from trieye.hub.supersession import Opening
from trieye.journal.scan import read_meta
from trieye.runs.finding import RunReference, run_directory


@dataclass(frozen=True)
class AttemptRow:
    """An attempt of a run.

    Attributes:
        number: From 1.
        started: Unix time in seconds.
        resumed_step: Step of the checkpoint that it resumed from; None: it restored none.
        shown: Number of its points that are shown.
        superseded: Number of its points that are superseded.
        metrics: Metrics of its superseded points.
        first_step: Lowest step of its shown points; None without any.
        last_step: Highest step of its shown points; None without any.
        superseded_first_step: Lowest step of its superseded points; None without any.
        superseded_last_step: Highest step of its superseded points; None without any.
    """

    number: int
    started: float
    resumed_step: int | None
    shown: int
    superseded: int
    metrics: list[str]
    first_step: int | None = None
    last_step: int | None = None
    superseded_first_step: int | None = None
    superseded_last_step: int | None = None


def attempts(run: RunReference, *, root: Path | None = None) -> list[AttemptRow]:
    """Return the attempts of a run with the points that its journal and history hold.

    An attempt that logged no points is included.

    Args:
        run: The run, its directory or its name.
        root: Directory of all apps; None: the directories of the project around the working directory.

    Raises:
        ConfigurationError: There is no such run.
        JournalError: Its journal or history cannot be read.
    """
    run_dir = run_directory(run, root=root)
    shown_table, hidden_table = read_history(run_dir), read_history(run_dir, superseded=True)
    openings = _openings(run_dir)
    firsts = np.array([opening.index for opening in openings], np.int64)

    of_shown, of_hidden = (
        np.searchsorted(firsts, as_numpy(table["index"]), "right") for table in (shown_table, hidden_table)
    )
    names = np.array(hidden_table["metric"].to_pylist(), object)
    rows = []
    for position, opening in enumerate(openings, 1):
        shown_mask, hidden_mask = of_shown == position, of_hidden == position
        row = AttemptRow(
            opening.number,
            opening.started,
            opening.resumed_step,
            int(shown_mask.sum()),
            int(hidden_mask.sum()),
            sorted(set(names[hidden_mask].tolist())),
            *_extremes(as_numpy(shown_table["step"])[shown_mask]),
            *_extremes(as_numpy(hidden_table["step"])[hidden_mask]),
        )
        if row.shown or row.superseded or not opening.is_reopening:
            rows.append(row)
    return rows


def _openings(run_dir: Path) -> list[Opening]:
    """Return the openings in the journal, and the attempt of run.json if its process died before it wrote there."""
    mark_bytes = read_meta(run_dir / JOURNAL, "attempt")
    mark = None if mark_bytes is None else AttemptMark.from_bytes(mark_bytes)
    openings = [] if mark is None else list(mark.all_openings)
    record = None
    with suppress(SerializationError):
        record = RunRecord.read(run_dir / RUN_RECORD)
    if record is not None and record.attempt > (0 if mark is None else mark.number):
        attempt = max(record.attempt, openings[-1].number + 1 if openings else 1)
        openings.append(Opening(attempt, np.iinfo(np.int64).max, record.started))
    return openings


def _extremes(steps: NDArray[np.int64]) -> tuple[int | None, int | None]:
    return (int(steps.min()), int(steps.max())) if len(steps) else (None, None)
