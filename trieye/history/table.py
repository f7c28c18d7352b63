"""The points of a run as Arrow tables, read from outside: also while it is running, and without writing."""

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import JournalError
from trieye.files.run_files import HISTORY, JOURNAL
from trieye.history.columns import Columns
from trieye.history.store import Store
from trieye.journal.file import rollback_path, wal_path
from trieye.journal.journal import Journal
from trieye.journal.ranges import Range, mask
from trieye.journal.scan import connect_read_only
from trieye.journal.watermark import watermark_path

if TYPE_CHECKING:
    import pyarrow as pa


def read_history(
    run_dir: Path,
    metrics: Collection[str] | None = None,
    *,
    lost: list[Range] | None = None,
    superseded: bool = False,
) -> "pa.Table":
    """Return the points of a run in order, without those that a rewind has superseded.

    What a living hub has only in memory is missing: points of the last ten seconds.

    Args:
        run_dir: Directory of the run.
        metrics: Return only these.
        lost: Takes the ranges of items that are missing or damaged, of whatever metric.
        superseded: Return superseded points instead.

    Returns:
        Columns index, metric, value, step, wall_time (Unix time in seconds), count (events it summarizes).

    Raises:
        JournalError: There is no history, or it cannot be read.
    """
    import pyarrow as pa

    nothing = _points(Columns.from_items(0, []), np.zeros(0, bool))
    return pa.concat_tables([nothing, *iter_history(run_dir, metrics, lost=lost, superseded=superseded)])


def iter_history(
    run_dir: Path,
    metrics: Collection[str] | None = None,
    *,
    lost: list[Range] | None = None,
    superseded: bool = False,
) -> Iterator["pa.Table"]:
    """Yield what `read_history` returns in tables of some ten thousand points, in bounded memory."""
    with _copied_journal(Path(run_dir)) as journal:
        store = Store(journal, Path(run_dir) / HISTORY)
        ranges = store.superseded()
        index = 0
        while (found := store.load(index)) is not None:
            if not isinstance(found, Columns):
                index = found[1]
                continue
            index = found.end
            keep = mask(found.first, found.end, ranges) == superseded
            keep[list(found.operations)] = False
            if metrics is not None:
                keep &= np.isin(found.name_codes, [code for code, name in enumerate(found.names) if name in metrics])
            if keep.any():
                yield _points(found, keep)
        if lost is not None:
            lost += store.lost


def _points(columns: Columns, keep: NDArray[np.bool_]) -> "pa.Table":
    import pyarrow as pa

    # plain text: Arrow cannot group by dictionaries that differ from part to part
    names = pa.array(columns.names, pa.string())
    return pa.table(
        {
            "index": np.arange(columns.first, columns.end)[keep],
            "metric": names.take(pa.array(columns.name_codes[keep])),
            "value": columns.values[keep],
            "step": columns.steps[keep],
            "wall_time": columns.times[keep],
            "count": columns.counts[keep],
        }
    )


@contextlib.contextmanager
def _copied_journal(run_dir: Path) -> Iterator[Journal]:
    """Give a copy of the journal as it is now: nothing is locked, repaired or written where the run is."""
    path = run_dir / JOURNAL
    if not path.exists() and not (run_dir / HISTORY).is_dir():
        raise JournalError(f"{run_dir} has neither {JOURNAL} nor {HISTORY}/: there is no history to read")
    with tempfile.TemporaryDirectory(prefix="trieye-") as scratch:
        copy = Path(scratch) / JOURNAL
        if path.exists():
            with contextlib.suppress(FileNotFoundError):  # first: what it says is true of every later journal
                shutil.copyfile(watermark_path(path), watermark_path(copy))
            _copy(path, copy)
        with contextlib.closing(Journal(copy if copy.exists() else None)) as journal:
            yield journal


def _copy(path: Path, copy: Path) -> None:
    try:
        # by SQLite's own means only: a hub in this process would lose its locks if the file was closed by others
        with contextlib.closing(connect_read_only(path)) as source, contextlib.closing(sqlite3.connect(copy)) as target:
            target.execute("PRAGMA synchronous = OFF")  # nobody needs the copy after a crash; half the time of a run
            source.backup(target)
    except (JournalError, sqlite3.Error):
        # damaged, or in a directory that cannot be written, where nobody writes to it: its files as they are
        for file_of in (Path, wal_path, rollback_path):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(file_of(path), file_of(copy))
