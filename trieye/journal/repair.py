"""Make a journal ready to be opened: new if there is none, and if it is damaged, set aside and built again."""

import contextlib
import errno
import itertools
import sqlite3
import uuid
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path

import msgspec

from trieye.exceptions import JournalError, JournalFullError
from trieye.files.atomic import fsync_directory
from trieye.journal.file import create, rollback_path, wal_path, worded
from trieye.journal.look import Contents, count, examine, missing_positions
from trieye.journal.ranges import merged, uncovered
from trieye.journal.schema import (
    ATTEMPT,
    REPAIR,
    STATE,
    TABLES,
    Connection,
    Row,
    State,
    insert,
    put,
    seed_of,
)
from trieye.journal.witness import Expected, Witness, witness_path

_FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
_LOSSES = {
    "clients": "which batches some senders sent last: one that is sent again now counts twice",
    "calls": "which calls came: one that is repeated now counts twice",
    "segments": "which files hold the history: it looks for them",
    "cursors": "how far the sinks are: those get everything again",
    "superseded": "what rewinds left out: it may be shown again",
    "meta": "parts of the description of the run",
}


def prepare(path: Path, expected: Expected) -> None:
    """Make sure that there is a whole journal; a damaged one is set aside, and what is whole in it is kept.

    Args:
        path: The file.
        expected: What is known of it.

    Raises:
        JournalError: The file is no journal, or it cannot be read or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if (repaired := _beside(path, "repaired")).exists():  # a repair was interrupted when all but this was done
            _install(repaired, path)
        found = examine(path, expected) if _is_there(path) else Contents(expected.of_missing())
        if found.damage:
            _repair(path, found, expected)
        elif not _is_there(path):
            create(_beside(path, "new"), uuid.uuid4().hex)
            _install(_beside(path, "new"), path)
    except sqlite3.Error as error:
        raise worded(error, path) from error
    except OSError as error:
        if isinstance(error, JournalError):
            raise
        kind = JournalFullError if error.errno in _FULL else JournalError
        raise kind(f"the journal {path} cannot be made: {error.strerror or error}") from error


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}.{suffix}")


def _is_there(path: Path) -> bool:
    return path.exists() or (wal_path(path).exists() and wal_path(path).stat().st_size > 0)


def _install(new: Path, path: Path) -> None:
    """Put a file in the place of a journal; what is there, and what SQLite would apply to the new file, goes aside."""
    if _is_there(path):
        path.touch()  # a log may be all that there is
        aside = _aside(path)
        for file_of in (wal_path, rollback_path, Path):  # the file last: until then its name stays free
            if file_of(path).exists():
                file_of(path).replace(file_of(aside))
    for suffix in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    new.replace(path)
    fsync_directory(path.parent)


def _aside(path: Path) -> Path:
    """Return the name under which a damaged journal is set aside; SQLite can open it there."""
    names = (_beside(path, f"damaged-{number}") for number in itertools.count(1))
    return next(name for name in names if not name.exists())


def _repair(path: Path, found: Contents, expected: Expected) -> None:
    findings = "; ".join(found.damage)
    if expected.is_of_another_run(found.meta(ATTEMPT)):  # so is the witness
        witness_path(path).unlink(missing_ok=True)
        found, expected = Contents(broken={table: set() for table in TABLES}), Expected(Witness(uuid.uuid4().hex))
        found.is_end_lost = True
    found.is_end_lost |= expected.is_begun and found.meta(ATTEMPT) is None
    journal, witness = expected.journal, expected.witness or Witness()
    if journal is None:
        journal = found.identity if any(found.rows.values()) else uuid.uuid4().hex
    losses, num_lost, state = _losses(found, witness)
    where = f"it was set aside as {_aside(path).name}; " if _is_there(path) else ""
    text = f"the journal {path} was damaged ({findings}); {where}lost: {'; '.join(losses) or 'nothing'}"
    own = [("meta", (STATE, state.to_bytes())), ("meta", (REPAIR, msgspec.msgpack.encode((text, num_lost))))]
    own += [("cursors", row) for row in _cursors(found, witness, state)]
    if _is_newer(witness, found):
        own += [("superseded", row) for row in _superseded(found, witness)]
        found.rows["superseded"].clear()
    new, repaired = _beside(path, "new"), _beside(path, "repaired")
    _write(new, journal, found, own)
    # a repair that is killed from here on is completed: the old log must not stay beside the new file
    new.replace(repaired)
    fsync_directory(path.parent)
    _install(repaired, path)


def _cursors(found: Contents, witness: Witness, state: State) -> Iterator[Row]:
    """Yield where each sink is, as journal or witness say; without its position if the newest records are lost.

    A sink that goes back to a position takes back what it has shown since, and that comes again only from records.
    """
    is_end_lost = found.is_end_lost or any(last == state.last_pos for _, last in state.gaps)
    held = {sink: (index, position) for sink, index, position, _ in found.rows["cursors"].values()}
    for sink in {**held, **witness.cursors}:
        index, position = max(held.get(sink, (-1, None)), witness.cursors.get(sink, (-1, None)), key=itemgetter(0))
        yield sink, index, None if is_end_lost else position


def _is_newer(witness: Witness, found: Contents) -> bool:
    """Tell whether the witness, which each rewind writes, knows rewinds better than what is left of the journal."""
    is_lost = found.is_end_lost or "superseded" in found.broken
    return witness.superseded is not None and (is_lost or witness.pos > found.last_pos)


def _superseded(found: Contents, witness: Witness) -> Iterator[Row]:
    """Yield what rewinds left out; not beyond the items that are stored: the indices after them go to other items."""
    stored = [row[1] for table in ("chunks", "segments") for row in found.rows[table].values()]
    end = max([*stored, *(index for _, index in found.snapshots)], default=0)
    return ((first, min(last, end)) for first, last in witness.superseded or () if first < end)


def _write(new: Path, journal: str, found: Contents, own: Iterable[tuple[str, Row]]) -> None:
    create(new, journal)
    with contextlib.closing(sqlite3.connect(new, isolation_level=None, factory=Connection)) as connection:
        connection.seed = seed_of(journal)
        connection.execute("BEGIN")
        for table, rows in found.rows.items():
            connection.executemany(insert(table), rows.values())
        for table, row in own:
            put(connection, table, row)
        connection.execute("COMMIT")


def _losses(found: Contents, witness: Witness) -> tuple[list[str], int, State]:
    """Return what is lost in words, the number of records, and the state of the repaired journal."""
    state = _state(found, witness)
    missing = missing_positions(found, state)
    losses = []
    if missing:
        places = ", ".join(f"{first}-{end - 1}" if end - first > 1 else f"{first}" for first, end in missing[:5])
        losses.append(f"{count(missing)} records (positions {places}{', ...' if missing[5:] else ''})")
    if found.is_end_lost:
        rewinds = "" if _is_newer(witness, found) else "; what a rewind among it left out is shown again"
        losses.append(f"what was accepted last, perhaps{rewinds}")
    if state.deleted_to and not found.rows["snapshots"]:
        losses.append("the state of the metrics, which begin anew")
    stored = [row[:2] for table in ("chunks", "segments") for row in found.rows[table].values()]
    items = uncovered(0, max((index for _, index in found.snapshots), default=0), merged(stored))
    if items and found.broken.keys() & {"chunks", "segments"}:
        places = ", ".join(f"{first} to {end - 1}" for first, end in items[:5])
        losses.append(f"items of the history ({places}), unless its files hold them")
    known = ({"cursors"} if witness.cursors else set()) | ({"superseded"} if _is_newer(witness, found) else set())
    losses += [text for table, text in _LOSSES.items() if table in found.broken.keys() - known]
    gaps = (*state.gaps, *((first, end - 1) for first, end in missing))
    return losses, max(count(missing), int(bool(losses))), state._replace(gaps=gaps)


def _state(found: Contents, witness: Witness) -> State:
    state, records, snapshots = found.state, found.ordered("records")[-1:], found.ordered("snapshots")[-1:]
    # a snapshot knows of the newest record, but has a time of its own
    ends = [(state.last_pos, True, state.last_at), *((row[0], True, row[2]) for row in records)]
    last_pos, _, last_at = max([*ends, *((row[1], False, row[3]) for row in snapshots)])
    deleted_to = state.deleted_to
    if found.meta(STATE) is None and witness.pos:
        deleted_to = witness.deleted_to
    elif found.meta(STATE) is None and "meta" in found.broken:  # nobody knows what was deleted before the first record
        deleted_to = min(found.rows["records"], default=last_pos + 1) - 1
    return state._replace(deleted_to=deleted_to, last_pos=max(last_pos, witness.pos), last_at=last_at)
