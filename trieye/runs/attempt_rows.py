"""AttemptRow: the attempts of a run, with the points that each one logged."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trieye.files.run_files import JOURNAL
from trieye.history.history import read_history
from trieye.hub.marks import AttemptMark
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
    """

    number: int
    started: float
    resumed_step: int | None
    shown: int
    superseded: int
    metrics: list[str]


def attempts(run: RunReference, *, root: Path | None = None) -> list[AttemptRow]:
    """Return the attempts of a run with the points that its journal and history hold.

    Args:
        run: The run, its directory or its name.
        root: Directory of all apps; None: the directories of the project around the working directory.

    Raises:
        ConfigurationError: There is no such run.
        JournalError: Its journal or history cannot be read.
    """
    run_dir = run_directory(run, root=root)
    shown, hidden = read_history(run_dir), read_history(run_dir, superseded=True)
    mark = read_meta(run_dir / JOURNAL, "attempt")
    openings = AttemptMark.from_bytes(mark).all_openings if mark is not None else ()
    firsts = np.array([opening.index for opening in openings], np.int64)

    of_shown, of_hidden = (np.searchsorted(firsts, table["index"].to_numpy(), "right") for table in (shown, hidden))
    names = np.array(hidden["metric"].to_pylist(), object)
    rows = [
        AttemptRow(
            opening.number,
            opening.started,
            opening.resumed_step,
            int((of_shown == number).sum()),
            int((of_hidden == number).sum()),
            sorted(set(names[of_hidden == number].tolist())),
        )
        for number, opening in enumerate(openings, 1)
    ]
    return [row for row in rows if row.shown or row.superseded]
