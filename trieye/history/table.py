"""Reads the points of a run as Arrow tables, even while it is running, without writing to its directory."""

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
from trieye.history.arrow import as_numpy, numbers, strings
from trieye.history.columns import Columns
from trieye.history.store import Store
from trieye.journal.file import rollback_path, wal_path
from trieye.journal.journal import Journal
from trieye.journal.ranges import Range, mask
from trieye.journal.scan import connect_read_only
from trieye.journal.watermark import stored_watermark_path, watermark_path

if TYPE_CHECKING:
    import pyarrow as pa


def read_history(
    run_dir: Path,
    metrics: Collection[str] | None = None,
    *,
    lost: list[Range] | None = None,
    superseded: bool = False,
) -> "pa.Table":
    """Return the points of a run in order, without superseded points.

    Points of the last ten seconds that a running hub has only in memory are missing.

    Args:
        run_dir: Directory of the run.
        metrics: Return only these metrics.
        lost: A list that receives the ranges of missing or damaged items of all metrics.
        superseded: Return superseded points instead.

    Returns:
        Columns index, metric, value, step, wall_time (Unix time in seconds), count (number of events).

    Raises:
        JournalError: The run has no history, or it cannot be read.
    """
    import pyarrow as pa

    empty = _points(Columns.from_items(0, []), np.zeros(0, bool))
    return pa.concat_tables([empty, *iter_history(run_dir, metrics, lost=lost, superseded=superseded)])


def iter_history(
    run_dir: Path,
    metrics: Collection[str] | None = None,
    *,
    lost: list[Range] | None = None,
    superseded: bool = False,
) -> Iterator["pa.Table"]:
    """Yield the result of `read_history` in tables of tens of thousands of points, in bounded memory."""
    with _copied_journal(Path(run_dir)) as journal:
        store = Store(journal, Path(run_dir) / HISTORY)
        ranges = store.superseded()
        index = 0
        while (loaded := store.load(index)) is not None:
            if not isinstance(loaded, Columns):
                index = loaded[1]
                continue
            index = loaded.end
            keep = mask(loaded.first, loaded.end, ranges) == superseded
            keep[list(loaded.operations)] = False
            if metrics is not None:
                keep &= np.isin(loaded.name_codes, [code for code, name in enumerate(loaded.names) if name in metrics])
            if keep.any():
                yield _points(loaded, keep)
        if lost is not None:
            lost += store.lost


def rows_by_metric(table: "pa.Table") -> dict[str, NDArray[np.int64]]:
    """Return the rows of each metric in order; a comparison of all names per metric would be quadratic."""
    encoded_names = table["metric"].dictionary_encode().combine_chunks()
    codes, names = as_numpy(encoded_names.indices), encoded_names.dictionary.to_pylist()
    order = np.argsort(codes, kind="stable")
    parts = np.split(order, np.searchsorted(codes[order], np.arange(1, len(names))))
    return dict(zip(names, parts, strict=False))  # without names, the only part is empty


def _points(columns: Columns, row_mask: NDArray[np.bool_]) -> "pa.Table":
    import pyarrow as pa

    # plain strings: Arrow cannot group by dictionaries that differ between tables
    names = strings(columns.names).take(numbers(columns.name_codes[row_mask]))
    by_name = {
        "index": np.arange(columns.first, columns.end),
        "metric": names,
        "value": columns.values,
        "step": columns.steps,
        "wall_time": columns.times,
        "count": columns.counts,
    }
    return pa.table(
        {name: column if column is names else numbers(column[row_mask]) for name, column in by_name.items()}
    )


@contextlib.contextmanager
def _copied_journal(run_dir: Path) -> Iterator[Journal]:
    """Yield a copy of the current journal, without locking, repairing or writing in the run directory."""
    path = run_dir / JOURNAL
    if not path.exists() and not (run_dir / HISTORY).is_dir():
        raise JournalError(f"{run_dir} has neither {JOURNAL} nor {HISTORY}/: there is no history to read")
    with tempfile.TemporaryDirectory(prefix="trieye-") as scratch:
        copy = Path(scratch) / JOURNAL
        if path.exists():
            with contextlib.suppress(FileNotFoundError):  # copied first: it is valid for every later journal
                shutil.copyfile(stored_watermark_path(path), watermark_path(copy))
            _copy(path, copy)
        with contextlib.closing(Journal(copy if copy.exists() else None)) as journal:
            yield journal


def _copy(path: Path, copy: Path) -> None:
    try:
        # only through SQLite: a hub in this process would lose its POSIX locks if the file was closed elsewhere
        with contextlib.closing(connect_read_only(path)) as source, contextlib.closing(sqlite3.connect(copy)) as target:
            target.execute("PRAGMA synchronous = OFF")  # the copy need not survive a crash; halves the time
            source.backup(target)
    except (JournalError, sqlite3.Error):
        # damaged, or in a read-only directory without writers: copy the files
        for file_of in (Path, wal_path, rollback_path):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(file_of(path), file_of(copy))
