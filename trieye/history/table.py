"""The points of a run as Arrow tables, for whoever looks at it: also while it is running, and without writing."""

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import JournalError
from trieye.history.arrow import points_schema, to_points_table
from trieye.history.columns import Columns
from trieye.history.files import survey
from trieye.history.opening import note_gaps, superseded_by_files
from trieye.history.ranges import Range, merged, overlapping
from trieye.history.store import Opener, Store
from trieye.journal.file import rollback_path, wal_path
from trieye.journal.journal import Journal
from trieye.journal.witness import witness_path

if TYPE_CHECKING:
    import pyarrow as pa

JOURNAL = "journal.db"
DIRECTORY = "history"

ATTEMPTS = 5
"""How often to look again when files are replaced just then; a merge takes seconds, looking milliseconds."""


def read_history(run_dir: Path, metrics: Collection[str] | None = None) -> "pa.Table":
    """Return the points of a run in order, without those that a rewind has superseded.

    What a living hub has only in memory is missing: points of the last ten seconds.

    Args:
        run_dir: Directory of the run.
        metrics: Return only these.

    Returns:
        Columns index, metric, value, step, wall_time (Unix time in seconds), count (events it summarizes).

    Raises:
        JournalError: There is no history, or it cannot be read.
    """
    import pyarrow as pa

    tables = list(iter_history(run_dir, metrics))
    return pa.concat_tables(tables) if tables else points_schema().empty_table()


def iter_history(run_dir: Path, metrics: Collection[str] | None = None) -> Iterator["pa.Table"]:
    """Yield what `read_history` returns in tables of some ten thousand points, in bounded memory."""
    with contextlib.ExitStack() as stack:
        store, end, superseded = _open(Path(run_dir), stack)
        index = 0
        while index < end and (found := store.load(index, keep=False)) is not None:
            if isinstance(found, Columns):
                keep = _kept(found, superseded, metrics)
                if keep.any():
                    yield to_points_table(found, keep)
                index = found.end
            else:
                index = found[1]


def _kept(columns: Columns, superseded: Sequence[Range], metrics: Collection[str] | None) -> NDArray[np.bool_]:
    keep = np.ones(len(columns), bool)
    keep[list(columns.operations)] = False
    for first, end in overlapping(columns.first, columns.end, superseded):
        keep[first - columns.first : end - columns.first] = False
    if metrics is not None:
        wanted = [code for code, name in enumerate(columns.names) if name in metrics]
        keep &= np.isin(columns.name_codes, wanted)
    return keep


def _open(run_dir: Path, stack: contextlib.ExitStack) -> tuple[Store, int, list[Range]]:
    """Return what is stored, its end, and what of it is superseded; `stack` closes it."""
    directory = run_dir / DIRECTORY
    for attempt in range(1, ATTEMPTS + 1):
        with contextlib.ExitStack() as tried:
            journal = tried.enter_context(_copied_journal(run_dir))
            found = survey(directory, journal.segments(), journal.chunks())
            names = {part.segment.name for part in found.stored if part.segment is not None}
            # open already: a hub may delete a file as soon as a larger one has the same items
            files = {name: file for name in names if (file := _opened(directory / name, tried)) is not None}
            if attempt < ATTEMPTS and (found.missing or len(files) < len(names)):
                continue
            stack.enter_context(tried.pop_all())
            break
    store = Store(journal, found.stored, _opener(files))
    note_gaps(store, found)
    superseded = journal.superseded()
    if found.adopted or journal.damage:
        superseded = merged([*superseded, *superseded_by_files(found, store.open_file)])
    return store, found.end, superseded


def _opened(path: Path, stack: contextlib.ExitStack) -> BinaryIO | None:
    try:
        return stack.enter_context(path.open("rb"))
    except FileNotFoundError:
        return None


def _opener(files: Mapping[str, BinaryIO]) -> Opener:
    def open_file(name: str) -> AbstractContextManager[BinaryIO]:
        if name not in files:
            raise FileNotFoundError(name)
        return contextlib.nullcontext(files[name])

    return open_file


@contextlib.contextmanager
def _copied_journal(run_dir: Path) -> Iterator[Journal]:
    """Give a copy of the journal as it is now: nothing is locked, repaired or written where the run is."""
    path = run_dir / JOURNAL
    if not path.exists() and not (run_dir / DIRECTORY).is_dir():
        raise JournalError(f"{run_dir} has neither {JOURNAL} nor {DIRECTORY}/: there is no history to read")
    with tempfile.TemporaryDirectory(prefix="trieye-") as scratch:
        copy = Path(scratch) / JOURNAL
        if path.exists():
            with contextlib.suppress(FileNotFoundError):  # first: what it says is true of every later journal
                shutil.copyfile(witness_path(path), witness_path(copy))
            _copy(path, copy)
        with contextlib.closing(Journal(copy if copy.exists() else None)) as journal:
            yield journal


def _copy(path: Path, copy: Path) -> None:
    if _is_at_rest(path):
        shutil.copyfile(path, copy)
        if _is_at_rest(path):
            return
        copy.unlink()
    try:
        # by SQLite's own means only: a hub in this process would lose its locks if the file was closed by others
        source = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        with contextlib.closing(source), contextlib.closing(sqlite3.connect(copy)) as target:
            source.backup(target)
    except sqlite3.Error:
        # damaged, or in a directory that cannot be written, where nobody writes to it: its files as they are
        for file_of in (Path, wal_path, rollback_path):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(file_of(path), file_of(copy))


def _is_at_rest(path: Path) -> bool:
    """Tell whether nobody has a journal open, and SQLite would have to make files beside it to look into it."""
    return not wal_path(path).exists() and not rollback_path(path).exists()
