"""Find out whether the file of a journal is whole, and change nothing."""

import contextlib
import sqlite3
from pathlib import Path

from trieye.exceptions import JournalError
from trieye.journal.file import is_circumstance, open_for_reading, rollback_path, wal_path, worded
from trieye.journal.salvage import salvage
from trieye.journal.schema import (
    APPLICATION_ID,
    PAGE_SIZE,
    STATE,
    TABLES,
    VERSION,
    Connection,
    State,
    empty_first_page,
    identity,
    is_whole,
    seed_of,
    select,
    statements,
)
from trieye.journal.wal import read_wal
from trieye.journal.witness import Expected

_SCHEMA_MARK = statements()[0].encode()


def examine(path: Path, expected: Expected) -> list[str]:
    """Return what is damaged in a journal and in the write-ahead log beside it, in words.

    Args:
        path: The file.
        expected: What is known of it.

    Raises:
        JournalError: The file is no journal, or that of a newer version, or it cannot be read now.
    """
    try:
        head, log = _read(path, PAGE_SIZE), _read(wal_path(path))
    except OSError as error:
        raise JournalError(f"the journal {path} cannot be read: {error.strerror or error}") from error
    _check_owner(path, head, log)
    found = [*_in_header(head), read_wal(log).damage]
    if head[18:20] == b"\1\1" and log:
        found.append("the header denies that there is a write-ahead log")
    if head:  # SQLite deletes the log of an empty file
        found += _in_content(path, head, expected)
    return [finding for finding in found if finding]


def _read(path: Path, size: int = -1) -> bytes:
    if not path.exists():
        return b""
    with path.open("rb") as file:
        return file.read(size)


def _check_owner(path: Path, head: bytes, log: bytes) -> None:
    """Raise JournalError if nothing says that this is a journal: a mark in the header, the tables, or a row in them."""
    is_ours = _number(head, 68) == APPLICATION_ID or _SCHEMA_MARK in head or _SCHEMA_MARK in log
    is_rest_of_one = len(head) < 100 and empty_first_page().startswith(head[:18])  # noqa: PLR2004 - size of the header
    if not (is_ours or is_rest_of_one or any(salvage(path).rows.values())):
        raise JournalError(f"{path} is no journal of a run; move it away, or choose another run_name")


def _number(head: bytes, offset: int) -> int:
    return int.from_bytes(head[offset : offset + 4], "big")


def _in_header(head: bytes) -> list[str]:
    """Compare what is the same in all journals; with wrong bytes 18 and 19 SQLite would ignore the log."""
    if not head:
        return ["the file is empty or missing"]
    whole = empty_first_page()
    constant = [slice(0, 18), slice(20, 24), slice(44, 48), slice(52, 72)]
    is_known = all(head[part] == whole[part] for part in constant) and head[18:20] in {b"\1\1", b"\2\2"}
    return [] if is_known else ["the header of the file is damaged"]


def _in_content(path: Path, head: bytes, expected: Expected) -> list[str]:
    has_our_tables = False
    try:
        if _read(rollback_path(path), 1):
            _roll_back(path)
        with contextlib.closing(open_for_reading(path)) as connection:
            tables = [text for (text,) in connection.execute("SELECT sql FROM sqlite_schema ORDER BY rootpage")]
            has_our_tables = tables == statements()
            if has_our_tables:
                return [*_in_trees(connection), *_in_rows(connection, expected)]
            problem = "the definitions of its tables are damaged"
    except sqlite3.Error as error:
        if is_circumstance(error):
            raise worded(error, path) from error
        problem = f"SQLite says: {error}"
    if not has_our_tables and _number(head, 68) == APPLICATION_ID and _number(head, 60) > VERSION:
        raise JournalError(f"the journal {path} was written by a newer trieye: update trieye to go on with this run")
    return [problem]


def _roll_back(path: Path) -> None:
    """Let SQLite undo what a kill interrupted, where there is no write-ahead log; only a writer may do that."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("SELECT 1 FROM sqlite_schema").fetchone()


def _in_trees(connection: Connection) -> list[str]:
    # `quick_check` leaves out indexes, of which there are none
    texts = [" ".join(text.split()) for (text,) in connection.execute("PRAGMA quick_check(3)")]
    return [f"SQLite says: {text}" for text in texts if text != "ok"]


def _in_rows(connection: Connection, expected: Expected) -> list[str]:
    journal = identity(connection)
    seed, found = seed_of(journal), expected.of_identity(journal)
    positions: list[int] = []
    meta: dict[str, bytes] = {}
    for table in TABLES:
        num_bad = 0
        for row in connection.execute(select(table)):
            num_bad += not is_whole(table, row, seed)
            if table == "records":
                positions.append(row[0])
            elif table == "meta":
                meta[row[0]] = row[1]
        if num_bad:
            found.append(f"{num_bad} rows of {table} are damaged")
    return found or _in_positions(positions, meta, expected)


def _in_positions(positions: list[int], meta: dict[str, bytes], expected: Expected) -> list[str]:
    """Compare the positions of the records with what the last snapshot left, and with what is known from outside."""
    state = State.from_bytes(meta.get(STATE))
    missing = missing_positions(positions, state)
    found = [f"{count(missing)} records are missing"] if missing else []
    return found + expected.of_content(meta, max([state.last_pos, *positions[-1:]]))


def missing_positions(positions: list[int], state: State) -> list[tuple[int, int]]:
    """Return first and last of each run of positions of which there is no record, but for those known to be lost.

    Args:
        positions: Of the records, ascending.
        state: Of the journal.
    """
    missing = []
    expected = state.deleted_to + 1
    for pos in [*positions, max([state.last_pos, *positions[-1:]]) + 1]:
        is_known = any(first <= expected and pos - 1 <= last for first, last in state.gaps)
        if pos > expected and not is_known:
            missing.append((expected, pos - 1))
        expected = max(expected, pos + 1)
    return missing


def count(ranges: list[tuple[int, int]]) -> int:
    """Return how many numbers are in ranges of which the first and the last are given."""
    return sum(last - first + 1 for first, last in ranges)
