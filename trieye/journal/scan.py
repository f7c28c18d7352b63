"""Read a journal without changing its files: whether it is damaged, and which of its rows are intact."""

import contextlib
import errno
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from trieye.exceptions import JournalError
from trieye.journal.file import FULL, rollback_path, text_of, wal_path
from trieye.journal.ranges import merged, uncovered
from trieye.journal.schema import (
    APPLICATION_ID,
    ATTEMPT,
    IDENTITY,
    PAGE_SIZE,
    STATE,
    TABLES,
    VERSION,
    JournalState,
    Row,
    Segment,
    columns,
    empty_first_page,
    identity,
    is_intact,
    seed_of,
    select,
    statements,
)
from trieye.journal.wal import damage_in_wal
from trieye.journal.watermark import Expected, read_watermark

_BUSY_TIMEOUT_S = 5.0
_MAX_TRIES = 20
_HEADER_BYTES = 100
_OTHER_TABLES = "the definitions of its tables are damaged"


class _Files(NamedTuple):
    """The bytes of a journal: the file, its rollback journal and its write-ahead log."""

    file: bytes
    undo: bytes = b""
    log: bytes = b""


@dataclass
class Contents:
    """The intact rows of a journal.

    Attributes:
        damage: Descriptions of the damage; empty if the journal is intact.
        rows: Intact rows of each table by key, the checksum last.
        broken: Number of damaged rows of each table that has some; tables that SQLite cannot read are here, too.
        log_damage: Description of the damage to the write-ahead log; empty if that is intact.
    """

    damage: list[str] = field(default_factory=list)
    rows: dict[str, dict[Any, Row]] = field(default_factory=lambda: {table: {} for table in TABLES})
    broken: dict[str, int] = field(default_factory=dict)
    log_damage: str = ""

    def ordered(self, table: str) -> list[Row]:
        """Return the rows of a table in the order of their keys."""
        return [self.rows[table][key] for key in sorted(self.rows[table])]

    def meta(self, name: str) -> bytes | None:
        """Return a value by name; None if it is lost, or was never stored."""
        row = self.rows["meta"].get(name)
        return None if row is None else row[1]

    @property
    def identity(self) -> str:
        """Identity of the journal; empty if it has none."""
        return (self.meta(IDENTITY) or b"").decode()

    @property
    def state(self) -> JournalState:
        """State of the journal as of its newest snapshot."""
        return JournalState.from_bytes(self.meta(STATE))

    @property
    def num_records(self) -> int:
        """Number of entries in the journal."""
        return len(self.rows["records"])

    @property
    def last_pos(self) -> int:
        """Position of the newest entry, according to entries and snapshots; 0 without any."""
        return max([*self.rows["records"], *(pos for pos, _ in self.snapshots)], default=0)

    @property
    def snapshots(self) -> list[tuple[int, int]]:
        """Position and index of the snapshots, the newest one last."""
        return [(row[1], row[2]) for row in self.ordered("snapshots")]

    @property
    def chunks(self) -> list[tuple[int, int]]:
        """First index and index after the last one of each chunk."""
        return [(row[0], row[1]) for row in self.ordered("chunks")]

    @property
    def segments(self) -> list[Segment]:
        """Files of the history; raises the errors of `checked_name`."""
        return [Segment.of(row[:-1]) for row in self.ordered("segments")]

    @property
    def cursors(self) -> dict[str, int]:
        """Index of each sink."""
        return {sink: index for sink, index, *_ in self.rows["cursors"].values()}


def scan(path: Path, expected: Expected) -> Contents:
    """Read the intact rows of a journal that no process writes; SQLite works on copies of its files.

    Args:
        path: The file; only its write-ahead log may exist.
        expected: Expectations of the journal; rows of another journal are not intact.

    Raises:
        JournalError: The file is not a journal, has a newer version, or cannot be read.
    """
    try:
        # reads the log last: it has the frames that are copied into the file during the read, unless a new round starts
        files = _Files(*(_bytes(part) for part in _parts(path)))
        contents = _read(files, expected.journal)
        damage = [*_in_header(files), *contents.damage]
        if damage or contents.log_damage or expected.of_identity(contents.identity):
            contents = _read_damaged(files, expected)
    except OSError as error:
        raise JournalError(f"the journal {path} cannot be read: {error}") from error
    _check_owner(path, files.file, contents, expected, has_other_tables=_OTHER_TABLES in damage)
    damage += [contents.log_damage] if contents.log_damage else []
    contents.damage = damage + _in_rows(contents, expected)
    return contents


def _parts(path: Path) -> tuple[Path, Path, Path]:
    return path, rollback_path(path), wal_path(path)


def _bytes(path: Path, size: int = -1) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(size)
    except FileNotFoundError:
        return b""


def _read(files: _Files, journal: str | None) -> Contents:
    """Return the rows that are intact in a journal with this identity; None: the identity in its own `meta`."""
    contents = Contents()
    with tempfile.TemporaryDirectory(prefix="trieye-journal-") as scratch:
        copy = Path(scratch) / "copy.db"
        for part, data in zip(_parts(copy), files, strict=True):
            if data:
                part.write_bytes(data)
        with contextlib.closing(sqlite3.connect(copy, isolation_level=None)) as connection:
            connection.text_factory = text_of
            num_taken, own_identity = 0, ""
            try:
                connection.execute("PRAGMA synchronous = OFF")
                _, num_taken, _ = connection.execute("PRAGMA wal_checkpoint").fetchone()
                contents.damage = _in_trees(connection)
                own_identity = identity(connection)
            except sqlite3.Error as error:
                _check_room(error)
                contents.damage = [f"SQLite reports: {error}"]
            seed = seed_of(own_identity if journal is None else journal)
            for table in TABLES:
                _read_table(connection, table, seed, contents)
    contents.log_damage = damage_in_wal(files.log, max(num_taken, 0))
    if journal not in {None, own_identity}:
        contents.rows["meta"].pop(IDENTITY, None)
    return contents


def _read_table(connection: sqlite3.Connection, table: str, seed: int, contents: Contents) -> None:
    try:
        rows = connection.execute(select(table)).fetchall()
    except sqlite3.Error as error:
        _check_room(error)
        rows = list(_readable(connection, table))
        contents.broken[table] = 0
    for row in rows:
        if is_intact(table, row, seed):
            contents.rows[table][row[0]] = row
        else:
            contents.broken[table] = contents.broken.get(table, 0) + 1


def _check_room(error: sqlite3.Error) -> None:
    """Raise OSError if the disk of the copies is full; the journal itself is not damaged."""
    if getattr(error, "sqlite_errorcode", None) in FULL:
        raise OSError(errno.ENOSPC, "no room for a copy of it", tempfile.gettempdir()) from error


def _readable(connection: sqlite3.Connection, table: str) -> Iterator[Row]:
    """Yield the rows before an unreadable page: the older of two snapshots may be among them."""
    key, keys = columns(table)[0], list[Row]()
    with contextlib.suppress(sqlite3.Error):
        keys.extend(connection.execute(f"SELECT {key} FROM {table} ORDER BY {key}"))  # noqa: S608 - constant names
    for values in keys:
        with contextlib.suppress(sqlite3.Error):
            yield from connection.execute(select(table, f"WHERE {key} = ?"), values).fetchall()


def _in_trees(connection: sqlite3.Connection) -> list[str]:
    tables = [text for (text,) in connection.execute("SELECT sql FROM sqlite_schema ORDER BY rootpage")]
    if tables != statements():
        return [_OTHER_TABLES]
    # `quick_check` omits indexes, and a journal has none
    texts = [" ".join(text.split()) for (text,) in connection.execute("PRAGMA quick_check(3)")]
    return [f"SQLite reports: {text}" for text in texts if text != "ok"]


def _read_damaged(files: _Files, expected: Expected) -> Contents:
    """Return the rows of a damaged journal with the readable frames of its log, or without the log if that is newer.

    The readable frames may be older than the pages of the file, or belong to another journal.
    """
    # the first page is the same in all journals, but for the size of the file
    first, num_pages = empty_first_page(), max(-(-len(files.file) // PAGE_SIZE), 1)
    mode = b"\2\2" if files.log else b"\1\1"
    mended_bytes = first[:18] + mode + first[20:28] + num_pages.to_bytes(4, "big") + first[32:] + files.file[PAGE_SIZE:]
    with_log = _read(files._replace(file=mended_bytes), expected.journal)
    without_log = _read(_Files(mended_bytes), expected.journal)
    newest = max((with_log, without_log), key=lambda contents: _rank(contents, expected))
    if newest is without_log and files.log:
        without_log.log_damage = with_log.log_damage or "the write-ahead log is another journal's"
    return newest


def _rank(contents: Contents, expected: Expected) -> tuple[bool, int, int]:
    """Return a sort key that is greater for the newer reading of a journal."""
    return not expected.of_identity(contents.identity), contents.last_pos, max(contents.rows["snapshots"], default=0)


def _check_owner(path: Path, content: bytes, contents: Contents, expected: Expected, *, has_other_tables: bool) -> None:
    """Raise JournalError unless a mark in the header, a row, or a watermark shows that this is a journal."""
    is_marked = _number(content, 68) == APPLICATION_ID
    if has_other_tables and is_marked and _number(content, 60) > VERSION:
        raise JournalError(f"the journal {path} was written by a newer trieye: update trieye to continue this run")
    if content and not (is_marked or expected.watermark or any(contents.rows.values())):
        raise JournalError(f"{path} is not the journal of a run; move it away, or choose another run_name")


def _number(content: bytes, offset: int) -> int:
    return int.from_bytes(content[offset : offset + 4], "big")


def _in_header(files: _Files) -> list[str]:
    """Compare the constant bytes of the header; with wrong bytes 18 and 19 SQLite would ignore the log."""
    content, intact_page = files.file, empty_first_page()
    if not content:
        return ["the file is empty or missing"]
    constant = [slice(0, 18), slice(20, 24), slice(44, 48), slice(52, 72)]
    is_known = all(content[part] == intact_page[part] for part in constant) and content[18:20] in {b"\1\1", b"\2\2"}
    damage = [] if is_known else ["the header of the file is damaged"]
    if files.log and content[18:20] == b"\1\1":
        damage.append("the header denies that there is a write-ahead log")
    return damage


def _in_rows(contents: Contents, expected: Expected) -> list[str]:
    if identity_errors := expected.of_identity(contents.identity):
        return identity_errors
    if damage := [f"{num_rows} rows of {table} are damaged" for table, num_rows in contents.broken.items() if num_rows]:
        return damage
    end = max([contents.state.last_pos, *contents.rows["records"]])
    missing_ranges = missing_positions(contents.rows["records"], contents.state._replace(last_pos=end))
    damage = [f"{count(missing_ranges)} entries are missing"] if missing_ranges else []
    return damage + expected.of_content(contents.meta(ATTEMPT), end)


def missing_positions(positions: Iterable[int], state: JournalState) -> list[tuple[int, int]]:
    """Return the positions up to the last one of a state that have no entry, except its gaps."""
    known_ranges = [(pos, pos + 1) for pos in positions] + [(first, last + 1) for first, last in state.gaps]
    return uncovered(state.deleted_to + 1, state.last_pos + 1, merged(known_ranges))


def count(ranges: Iterable[tuple[int, int]]) -> int:
    """Return the number of indices in ranges."""
    return sum(end - first for first, end in ranges)


# reading while another process writes


def inspect(path: Path, expected: Expected | None = None) -> Contents:
    """Scan a journal that another process may be writing; the writer itself would lose its locks on the file.

    Args:
        path: The file.
        expected: Expectations besides its watermark.

    Raises:
        JournalError: The file is missing, not a journal or unreadable, or names files outside the run's directory.
    """
    if not path.exists() and not wal_path(path).exists():
        raise JournalError(f"there is no journal {path}")
    expected = (expected or Expected())._replace(watermark=read_watermark(path))  # before the journal, which grows
    last_damage: list[str] = []
    for _ in range(_MAX_TRIES):
        stamp = _stamp(path)
        contents = scan(path, expected)
        if stamp == _stamp(path):
            # damage persists, whereas a partially written frame or page is complete at the next try
            if not contents.damage or contents.damage == last_damage:
                break
            last_damage = contents.damage
    else:
        contents.damage = last_damage or ["another process wrote it too fast for a consistent read"]
    contents.segments  # noqa: B018 - raises
    return contents


def _stamp(path: Path) -> bytes:
    """Return bytes that change with each new round of the log or, without a log, with each transaction."""
    return _bytes(wal_path(path), 32) or _bytes(path, _HEADER_BYTES) + _bytes(rollback_path(path), 512)


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Return a connection that can change nothing; the writer is not disturbed.

    Raises:
        JournalError: The file is missing or cannot be opened.
    """
    # SQLite would create files next to a closed journal, or fail in a read-only directory
    is_at_rest = not (wal_path(path).exists() or rollback_path(path).exists())
    mode = "immutable=1" if is_at_rest else "mode=ro"
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=_BUSY_TIMEOUT_S)
        connection.execute("PRAGMA query_only = ON")
    except sqlite3.Error as error:
        raise JournalError(f"the journal {path} cannot be read: {error}") from error
    return connection


def read_meta(path: Path, key: str) -> bytes | None:
    """Return a value of the journal by name; None if the value or the journal does not exist.

    Raises:
        JournalError: The journal cannot be read.
    """
    return next((value for _, value in _rows(path, "meta", "WHERE name = ?", key)), None)


def read_cursors(path: Path) -> dict[str, int]:
    """Return the index of each sink; {} if there is no journal yet.

    Raises:
        JournalError: The journal cannot be read.
    """
    return {sink: index for sink, index, _ in _rows(path, "cursors")}


def _rows(path: Path, table: str, condition: str = "", *values: object) -> list[Row]:
    """Return the intact rows, without their checksums."""
    if not path.exists():
        return []
    with contextlib.closing(connect_read_only(path)) as connection:
        try:
            seed = seed_of(identity(connection))
            rows = connection.execute(select(table, condition), values).fetchall()
        except sqlite3.Error as error:
            raise JournalError(f"the journal {path} cannot be read: {error}") from error
    return [row[:-1] for row in rows if is_intact(table, row, seed)]
