"""Make a journal ready to be opened: new if there is none, and repaired if it is damaged."""

import contextlib
import errno
import itertools
import shutil
import sqlite3
import uuid
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path

import msgspec

from trieye.exceptions import JournalError, JournalFullError
from trieye.files.atomic import fsync_directory
from trieye.journal.check import count, examine, missing_positions
from trieye.journal.file import create, wal_path, worded
from trieye.journal.salvage import Salvaged, salvage
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
    """Make sure that there is a whole journal; what is found damaged is set aside, and what is whole in it is kept.

    Args:
        path: The file.
        expected: What is known of it.

    Raises:
        JournalError: The file is no journal, or it cannot be read or written.
    """
    repaired = _beside(path, "repaired")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if repaired.exists():  # a repair was interrupted when all but this was done
            _install(repaired, path)
        is_there = path.exists() or (wal_path(path).exists() and wal_path(path).stat().st_size > 0)
        findings = examine(path, expected) if is_there else expected.of_missing()
        if findings:
            _repair(path, findings, expected)
        elif not is_there:
            new = _beside(path, "new")
            create(new, uuid.uuid4().hex)
            _install(new, path)
    except sqlite3.Error as error:
        raise worded(error, path) from error
    except OSError as error:
        if isinstance(error, JournalError):
            raise
        kind = JournalFullError if error.errno in _FULL else JournalError
        raise kind(f"the journal {path} cannot be made: {error.strerror or error}") from error


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}.{suffix}")


def _install(new: Path, path: Path) -> None:
    for suffix in ("-wal", "-shm", "-journal"):  # SQLite would apply them to the new file
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    new.replace(path)
    fsync_directory(path.parent)


def _repair(path: Path, findings: list[str], expected: Expected) -> None:
    found = salvage(path, expected.journal)
    if expected.is_of_another_run(found.meta(ATTEMPT)):  # so is the witness
        witness_path(path).unlink(missing_ok=True)
        found, expected = Salvaged(broken=set(TABLES), is_end_broken=True), Expected(Witness(uuid.uuid4().hex))
    found.is_end_broken |= expected.is_begun and found.meta(ATTEMPT) is None
    journal, witness = expected.journal, expected.witness or Witness()
    if journal is None:
        journal = found.identity if any(found.rows.values()) else uuid.uuid4().hex
    losses, num_lost, state = _losses(found, witness)
    aside = _name_aside(path)
    where = f"it was set aside as {aside.name}; " if path.exists() or wal_path(path).exists() else ""
    lost = "; ".join(losses) if losses else "nothing"
    text = f"the journal {path} was damaged ({'; '.join(findings)}); {where}lost: {lost}"
    own = [("meta", (STATE, state.to_bytes())), ("meta", (REPAIR, msgspec.msgpack.encode((text, num_lost))))]
    new, repaired = _beside(path, "new"), _beside(path, "repaired")
    own += [("cursors", row) for row in _cursors(found, witness, state)]
    if _is_newer(witness, found):
        own += [("superseded", row) for row in _superseded(found, witness)]
        found.rows["superseded"].clear()
    _write(new, journal, found, own)
    _set_aside(path, aside)
    # a repair that is killed from here on is completed: the old log must not stay beside the new file
    new.replace(repaired)
    fsync_directory(path.parent)
    _install(repaired, path)


def _cursors(found: Salvaged, witness: Witness, state: State) -> Iterator[Row]:
    """Yield where each sink is, as journal or witness say; without its position if the newest records are lost.

    A sink that goes back to a position takes back what it has shown since, and that comes again only from records.
    """
    is_end_lost = found.is_end_broken or found.is_log_broken or any(gap[1] == state.last_pos for gap in state.gaps)
    held = {sink: (index, position) for sink, index, position, _ in found.rows["cursors"].values()}
    for sink in {**held, **witness.cursors}:
        index, position = max(held.get(sink, (-1, None)), witness.cursors.get(sink, (-1, None)), key=itemgetter(0))
        yield sink, index, None if is_end_lost else position


def _is_newer(witness: Witness, found: Salvaged) -> bool:
    """Tell whether the witness, which each rewind writes, knows rewinds better than what is left of the journal."""
    is_lost = found.is_log_broken or found.is_end_broken or "superseded" in found.broken
    return witness.superseded is not None and (is_lost or witness.pos > found.last_pos)


def _superseded(found: Salvaged, witness: Witness) -> Iterator[Row]:
    """Yield what rewinds left out; not beyond the items that are stored: the indices after them go to other items."""
    stored = [row[1] for table in ("chunks", "segments") for row in found.rows[table].values()]
    end = max([*stored, *(row[2] for row in found.rows["snapshots"].values())], default=0)
    return ((first, min(last, end)) for first, last in witness.superseded or () if first < end)


def _write(new: Path, journal: str, found: Salvaged, own: Iterable[tuple[str, Row]]) -> None:
    create(new, journal)
    with contextlib.closing(sqlite3.connect(new, isolation_level=None, factory=Connection)) as connection:
        connection.seed = seed_of(journal)
        connection.execute("BEGIN")
        for table, rows in found.rows.items():
            connection.executemany(insert(table), rows.values())
        for table, row in own:
            put(connection, table, row)
        connection.execute("COMMIT")


def _name_aside(path: Path) -> Path:
    """Return a free name; SQLite can open the files under it."""
    names = (_beside(path, f"damaged-{number}") for number in itertools.count(1))
    return next(name for name in names if not (name.exists() or wal_path(name).exists()))


def _set_aside(path: Path, aside: Path) -> None:
    for file, copy in ((path, aside), (wal_path(path), wal_path(aside))):
        if file.exists():
            try:
                copy.hardlink_to(file)
            except OSError:  # there are none on this file system
                shutil.copyfile(file, copy)


def _losses(found: Salvaged, witness: Witness) -> tuple[list[str], int, State]:
    """Return what is lost in words, the number of records, and the state of the repaired journal."""
    state = _state(found, witness)
    missing = missing_positions([pos for (pos, *_) in found.ordered("records")], state)
    losses = []
    if missing:
        places = ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in missing[:5])
        losses.append(f"{count(missing)} records (positions {places}{', ...' if missing[5:] else ''})")
    if found.is_log_broken or found.is_end_broken:
        rewinds = "" if _is_newer(witness, found) else "; what a rewind among it left out is shown again"
        losses.append(f"what was accepted last, perhaps{rewinds}")
    if "snapshots" in found.broken and state.deleted_to and not found.rows["snapshots"]:
        losses.append("the state of the metrics, which begin anew")
    if found.broken & {"chunks", "segments"} and (items := _missing_items(found)):
        places = ", ".join(f"{first} to {end - 1}" for first, end in items[:5])
        losses.append(f"items of the history ({places}), unless its files hold them")
    known = ({"cursors"} if witness.cursors else set()) | ({"superseded"} if _is_newer(witness, found) else set())
    losses += [text for table, text in _LOSSES.items() if table in found.broken - known]
    return losses, max(count(missing), int(bool(losses))), state._replace(gaps=(*state.gaps, *missing))


def _state(found: Salvaged, witness: Witness) -> State:
    held = found.meta(STATE)
    state = State.from_bytes(held)
    records, snapshots = found.ordered("records"), found.ordered("snapshots")
    # a snapshot knows of the newest record, but has a time of its own
    ends = [(state.last_pos, True, state.last_at)]
    ends += [(row[0], True, row[2]) for row in records[-1:]] + [(row[1], False, row[3]) for row in snapshots[-1:]]
    last_pos, _, last_at = max(ends)
    deleted_to = state.deleted_to
    if held is None and witness.pos:
        deleted_to = witness.deleted_to
    elif held is None and "meta" in found.broken:  # nobody knows what was deleted before the first record
        deleted_to = (records[0][0] - 1) if records else last_pos
    return state._replace(deleted_to=deleted_to, last_pos=max(last_pos, witness.pos), last_at=last_at)


def _missing_items(found: Salvaged) -> list[tuple[int, int]]:
    """Return the ranges of indices that neither a chunk nor a file holds."""
    held = sorted((row[0], row[1]) for table in ("chunks", "segments") for row in found.rows[table].values())
    end = max([row[2] for row in found.rows["snapshots"].values()], default=0)
    missing, expected = [], 0
    for first, last in [*held, (end, end)]:
        if first > expected:
            missing.append((expected, first))
        expected = max(expected, last)
    return missing
