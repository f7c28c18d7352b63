"""How an SQLite database gets MLflow's tables, all of them or none; MLflow's part in it is given."""

import contextlib
import glob
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from trieye.exceptions import TrieyeError
from trieye.files.atomic import fsync_directory

log = logging.getLogger("trieye.sinks")

_SIDE_FILES = ("-wal", "-shm", "-journal")
_HALF_MADE = "_alembic_tmp_"
"""Prefix of the tables into which a migration copies a table, which it then replaces."""
_VALUABLE = ("runs", f"{_HALF_MADE}runs", "registered_models", "trace_info")
_BUSY_TIMEOUT_S = 120.0


def prepare(path: Path, *, create_tables: Callable[[Path], None], newest_revision: Callable[[], str]) -> None:
    """Make sure that `path` is a database with all tables, in WAL mode; one process at a time may do this.

    MLflow's migrations are no transaction on SQLite, and MLflow cannot open what a kill in the middle of them leaves.
    They are made in a draft beside `path` therefore. A database without runs that is not whole, or older than this
    MLflow, is renamed to `<path>.damaged`.

    Args:
        path: Where the database belongs; its directory exists, and it is no symbolic link.
        create_tables: Makes all tables in the file that it is given, and closes it.
        newest_revision: Returns the revision of the schema that `create_tables` makes.

    Raises:
        TrieyeError: The database is damaged, and holds runs or cannot be read at all.
    """
    _remove_drafts(path)
    if path.exists() and not _is_whole(path, newest_revision):
        _set_aside(path)
    if path.exists():
        _use_wal(path)
    else:
        _create(path, create_tables)


def _create(path: Path, create_tables: Callable[[Path], None]) -> None:
    draft = path.with_name(f"{path.name}.new-{os.getpid()}")
    try:
        create_tables(draft)
        _use_wal(draft)
        with draft.open("rb+") as file:
            os.fsync(file.fileno())
        for suffix in _SIDE_FILES:  # of a database that was taken away: SQLite would apply it to the new one
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        draft.replace(path)
    finally:
        _remove_drafts(path)
    fsync_directory(path.parent)


def _remove_drafts(path: Path) -> None:
    # only the process that is here makes drafts, so those of others were left by a kill
    for draft in path.parent.glob(f"{glob.escape(path.name)}.new-*"):
        draft.unlink(missing_ok=True)


def _is_whole(path: Path, newest_revision: Callable[[], str]) -> bool:
    with _readable(path) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        holds_runs = any(_has_rows(connection, table) for table in tables.intersection(_VALUABLE))
        revision = None
        if "alembic_version" in tables:
            revision = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    half_made = sorted(table for table in tables if table.startswith(_HALF_MADE))
    if not holds_runs:
        return not half_made and revision == (newest_revision(),)
    if half_made:
        raise TrieyeError(
            f"{path} holds runs, but a migration of it was interrupted (it has the table {half_made[0]}), and MLflow "
            "cannot open it; put a backup in its place, or move it away: the next start makes a new one"
        )
    return True  # MLflow upgrades an older one, or says how


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S)) as connection:
            yield connection
    except sqlite3.OperationalError:  # busy, not permitted, disk full: may pass
        raise
    except sqlite3.DatabaseError as error:
        raise TrieyeError(
            f"{path} cannot be read as an SQLite database ({error}); put a backup in its place, or move it away: the "
            "next start makes a new one"
        ) from error


def _has_rows(connection: sqlite3.Connection, table: str) -> bool:
    return connection.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() is not None  # noqa: S608 - one of ours


def _set_aside(path: Path) -> None:
    aside = Path(f"{path}.damaged")
    for suffix in ("", *_SIDE_FILES):
        Path(f"{aside}{suffix}").unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            Path(f"{path}{suffix}").replace(f"{aside}{suffix}")
    log.warning(
        "%s holds no runs and is not a whole MLflow database of this version, as if a process had been killed while it "
        "made it; it is called %s now, and a new one is made",
        path,
        aside.name,
    )


def _use_wal(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S)) as connection:
        # readers such as `mlflow ui` do not block writers then; the mode stays with the file. A network file system
        # refuses it by answering with another mode, and works as before.
        connection.execute("PRAGMA journal_mode=WAL")
