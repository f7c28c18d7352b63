"""Prepare a journal for opening: create it, or quarantine a damaged one and restart from its newest intact snapshot."""

import contextlib
import errno
import itertools
import sqlite3
import uuid
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import msgspec

from trieye.exceptions import JournalError, JournalFullError
from trieye.files.atomic import fsync_directory
from trieye.journal.file import create, journal_error, rollback_path, wal_path
from trieye.journal.scan import Contents, count, missing_positions, scan
from trieye.journal.schema import ATTEMPT, REPAIR, STATE, TABLES, Connection, JournalState, Row, insert, put, seed_of
from trieye.journal.watermark import Expected, Watermark, delete_watermark

_FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
_LOSSES = {
    "clients": "the batch numbers of some senders: a batch that is sent again counts twice",
    "calls": "the keys of some accepted calls: a repeated call counts twice",
    "chunks": "points of the history that no file contains yet",
    "segments": "the list of history files: the directory is searched for them",
    "cursors": "the cursors of sinks: a sink without a cursor receives all items again",
    "superseded": "the ranges of superseded points: these may be shown again",
    "meta": "parts of the description of the run",
}


def prepare(path: Path, expected: Expected) -> None:
    """Create a journal, or replace a damaged one by its newest intact snapshot and the entries that follow it.

    Args:
        path: The file.
        expected: Expectations of the journal.

    Raises:
        JournalError: The file is not a journal, or it cannot be read or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if (rebuilt := _beside(path, "repaired")).exists():  # an earlier process was killed while it replaced the file
            _install(rebuilt, path)
        contents = scan(path, expected) if _is_there(path) else Contents(expected.of_missing())
        if contents.damage:
            _rebuild(path, contents, expected)
        elif not _is_there(path):
            create(_beside(path, "new"), uuid.uuid4().hex)
            _install(_beside(path, "new"), path)
    except sqlite3.Error as error:
        raise journal_error(error, path) from error
    except OSError as error:
        if isinstance(error, JournalError):
            raise
        kind = JournalFullError if error.errno in _FULL else JournalError
        raise kind(f"the journal {path} cannot be created: {error.strerror or error}") from error


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}.{suffix}")


def _is_there(path: Path) -> bool:
    return path.exists() or (wal_path(path).exists() and wal_path(path).stat().st_size > 0)


def _install(new_path: Path, path: Path) -> None:
    """Quarantine a journal with its logs, which SQLite would apply to the new file, and install the new file."""
    if _is_there(path):
        path.touch()  # only a log may exist
        quarantine_path = _quarantined(path)
        for file_of in (wal_path, rollback_path, Path):  # moves the file last: until then its new name is free
            if file_of(path).exists():
                file_of(path).replace(file_of(quarantine_path))
    for suffix in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    new_path.replace(path)
    fsync_directory(path.parent)


def _quarantined(path: Path) -> Path:
    """Return a free name for a damaged journal; SQLite can open it there."""
    names = (_beside(path, f"damaged-{index}") for index in itertools.count(1))
    return next(name for name in names if not name.exists())


def _rebuild(path: Path, contents: Contents, expected: Expected) -> None:
    findings = "; ".join(contents.damage)
    if expected.is_of_another_run(contents.meta(ATTEMPT)):  # its watermark belongs to that run, too
        delete_watermark(path)
        contents, expected = Contents(broken=dict.fromkeys(TABLES, 0)), Expected(Watermark(uuid.uuid4().hex))
    journal, watermark = expected.journal, expected.watermark or Watermark()
    if journal is None:
        journal = contents.identity if any(contents.rows.values()) else uuid.uuid4().hex
    outcome = _Outcome.of(contents, watermark, is_end_lost=expected.is_begun and contents.meta(ATTEMPT) is None)
    quarantine_text = f"it was quarantined as {_quarantined(path).name}; " if _is_there(path) else ""
    text = (
        f"the journal {path} was damaged ({findings}); {quarantine_text}lost: {'; '.join(outcome.losses) or 'nothing'}"
    )
    new_path, rebuilt_path = _beside(path, "new"), _beside(path, "repaired")
    create(new_path, journal)
    with contextlib.closing(sqlite3.connect(new_path, isolation_level=None, factory=Connection)) as connection:
        connection.seed = seed_of(journal)
        connection.execute("BEGIN")
        for table, rows in contents.rows.items():
            connection.executemany(insert(table), rows.values())
        for table, row in outcome.rows(contents, watermark):
            put(connection, table, row)
        put(connection, "meta", (REPAIR, msgspec.msgpack.encode((text, outcome.num_lost))))
        connection.execute("COMMIT")
    # the next start completes a killed replacement: the new file must never meet the old log
    new_path.replace(rebuilt_path)
    fsync_directory(path.parent)
    _install(rebuilt_path, path)


class _Outcome(NamedTuple):
    """State of the new journal, and the losses.

    Attributes:
        state: State of the new journal; its last position is the highest that any row or the watermark names.
        losses: Descriptions of the losses.
        num_lost: Number of lost entries; at least 1 if anything is lost.
        superseded: Superseded ranges that replace the damaged journal's; empty if the journal's are intact.
    """

    state: JournalState
    losses: list[str]
    num_lost: int
    superseded: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, contents: Contents, watermark: Watermark, *, is_end_lost: bool) -> "_Outcome":
        """Drop the entries behind the first gap after the newest snapshot, and count the losses."""
        state, records = _state(contents, watermark), contents.rows["records"]
        start = max([state.deleted_to, *(pos for pos, _ in contents.snapshots)])
        damaged = missing_positions(records, state)
        if damaged and damaged[0][0] <= start:  # the snapshot includes them
            state = state._replace(deleted_to=start)
        end = min((max(first, start + 1) for first, stop in damaged if stop > start + 1), default=state.last_pos + 1)
        contents.rows["records"] = {pos: row for pos, row in records.items() if state.deleted_to < pos < end}
        # a damaged page may restore deleted snapshots
        snapshots = contents.rows["snapshots"].items()
        contents.rows["snapshots"] = {key: row for key, row in snapshots if row[1] >= state.deleted_to}
        missing_ranges = missing_positions(contents.rows["records"], state)
        losses = [f"{count(missing_ranges)} entries (positions {_worded(missing_ranges)})"] if missing_ranges else []
        if is_end_lost or contents.log_damage or "records" in contents.broken:
            losses.append("perhaps entries after these" if missing_ranges else "perhaps the newest entries")
        if state.deleted_to and not contents.snapshots:
            losses.append("the state of the metrics, which start from scratch")
        # each rewind writes the watermark
        ranges = watermark.superseded if losses or "superseded" in contents.broken else None
        from_watermark = {"cursors"} if watermark.cursors else set()
        if ranges is not None:
            contents.rows["superseded"].clear()
            from_watermark.add("superseded")
        losses += [text for table, text in _LOSSES.items() if table in contents.broken.keys() - from_watermark]
        gaps = (*state.gaps, *((first, last - 1) for first, last in missing_ranges))
        return cls(state._replace(gaps=gaps), losses, max(count(missing_ranges), int(bool(losses))), ranges or ())

    def rows(self, contents: Contents, watermark: Watermark) -> Iterator[tuple[str, Row]]:
        """Yield the state, the cursors, and the superseded ranges of the watermark.

        A sink that returns to a position truncates the points after it. Lost entries cannot deliver them again, so
        a loss resets every position.
        """
        yield "meta", (STATE, self.state.to_bytes())
        cursors = {sink: (index, position) for sink, index, position, _ in contents.rows["cursors"].values()}
        for sink in {**cursors, **watermark.cursors}:
            newest = (cursors.get(sink, (-1, None)), watermark.cursors.get(sink, (-1, None)))
            index, position = max(newest, key=itemgetter(0))
            yield "cursors", (sink, index, None if self.num_lost else position)
        # new items will get the indices after the stored items
        stored_ends = [row[1] for table in ("chunks", "segments") for row in contents.rows[table].values()]
        end = max([*stored_ends, *(index for _, index in contents.snapshots)], default=0)
        yield from (("superseded", (first, min(last, end))) for first, last in self.superseded if first < end)


def _state(contents: Contents, watermark: Watermark) -> JournalState:
    state, records, snapshots = contents.state, contents.ordered("records")[-1:], contents.ordered("snapshots")[-1:]
    if (deleted_to := state.deleted_to) == 0 and contents.meta(STATE) is None:
        newest = snapshots[0][1] if snapshots else 0
        deleted_to = watermark.deleted_to if watermark.pos else newest
    ends = [(state.last_pos, state.last_at), *((row[0], row[2]) for row in records)]
    last_pos, last_at = max([*ends, *((row[1], row[3]) for row in snapshots)])
    return state._replace(deleted_to=deleted_to, last_pos=max(last_pos, watermark.pos), last_at=last_at)


def _worded(ranges: list[tuple[int, int]]) -> str:
    text = ", ".join(f"{first}-{end - 1}" if end - first > 1 else f"{first}" for first, end in ranges[:5])
    return text + (", ..." if ranges[5:] else "")
