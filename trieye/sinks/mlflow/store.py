"""Prepares a tracking store before MLflow opens it; creates the tables of an SQLite database atomically."""

import contextlib
import glob
import logging
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from trieye.config.redaction import is_redacted, redacted_text
from trieye.exceptions import ConfigurationError, SinkBusyError
from trieye.files.atomic import fsync_directory

log = logging.getLogger("trieye.sinks")

_SIDE_FILES = ("-wal", "-shm", "-journal")
_LOCK_TIMEOUT_S = 120.0
_BUSY_TIMEOUT_S = 10.0
_threads = threading.local()


def is_sqlite(uri: str) -> bool:
    """Return whether the store is an SQLite database."""
    return uri.startswith("sqlite:")


def is_file_store(uri: str) -> bool:
    """Return whether the store is a directory of files, the default of MLflow before version 3."""
    return uri.startswith("file:") or "://" not in uri


def prepare_client(uri: str) -> None:
    """Configure MLflow for this kind of store, in this thread and in the sink threads only.

    Environment variables of the user take precedence, and MLflow behaves as before in the user's threads.
    """
    _threads.is_ours = True
    if redacted_text(uri) != uri:  # MLflow prints the URL with its password at the end of a run
        _set_in_our_threads("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", value=True)
    if uri.startswith(("http:", "https:")):
        # MLflow's default of 7 retries would hide an outage for minutes; the sink's thread retries and counts anyway
        _set_in_our_threads("MLFLOW_HTTP_REQUEST_MAX_RETRIES", 1)
        _set_in_our_threads("MLFLOW_HTTP_REQUEST_TIMEOUT", 30)
        logging.getLogger("urllib3.connectionpool").addFilter(_is_error_or_outside_sinks)
    elif is_file_store(uri):
        _set_in_our_threads("MLFLOW_ALLOW_FILE_STORE", value=True)
    else:  # MLflow logs a traceback of 40 lines for each retry on a full disk
        logging.getLogger("mlflow.store.db.utils").addFilter(_is_outside_sinks)


def client_of(uri: str) -> Any:
    """Return an MLflow client for a store; see `prepare_client`."""
    from mlflow import MlflowClient

    prepare_client(uri)
    return MlflowClient(tracking_uri=uri)


def _set_in_our_threads(name: str, value: object) -> None:
    """Override one of MLflow's environment variables in our threads, unless the environment sets it."""
    from mlflow import environment_variables

    variable = getattr(environment_variables, name, None)
    if variable is None:  # this version of MLflow lacks the variable
        return
    original_get = type(variable).get
    variable.get = lambda: value if _is_ours() and name not in os.environ else original_get(variable)


def _is_ours() -> bool:
    return getattr(_threads, "is_ours", False) or threading.current_thread().name.startswith("trieye-sink-")


@contextlib.contextmanager
def database_lock(uri: str) -> Iterator[Path | None]:
    """Acquire the lock file of an SQLite database and yield the database's path; other stores have no lock.

    MLflow cannot create its schema safely if several processes open a new database: 22 of 24 attempts with 8 processes
    failed.

    Raises:
        SinkBusyError: Other processes have held the lock for two minutes.
    """
    path = database_of(uri)
    if path is None:
        yield None
        return
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(f"{path}.lock", timeout=_LOCK_TIMEOUT_S):
            yield path
    except Timeout as error:
        raise SinkBusyError(f"other processes have held {path}.lock for {_LOCK_TIMEOUT_S:.0f} s") from error


def is_replaced(path: Path, opened: os.stat_result) -> bool:
    """Return whether a path is missing or another file than when it was opened: a deleted file can still be written."""
    try:
        return not os.path.samestat(path.stat(), opened)
    except (FileNotFoundError, NotADirectoryError):
        return True


def activity_of(uri: str) -> object:
    """Return a value that changes with every write to an SQLite database or its draft; None for other stores.

    Lock files do not count: waiting processes write to them.
    """
    path = database_of(uri)
    if path is None:
        return None
    files = [path, Path(f"{path}-wal"), *path.parent.glob(_drafts_of(path))]
    states = []
    for file_path in files:
        with contextlib.suppress(OSError):
            stat = file_path.stat()
            states.append((stat.st_ino, stat.st_mtime_ns, stat.st_size))
    return states


def is_locked(error: Exception) -> bool:
    """Return whether an error means that MLflow timed out waiting for the lock of an SQLite database."""
    return "database is locked" in str(error) or "database table is locked" in str(error)


def follow_move(database: Path, artifacts: Path, *, experiment: str, run_id: str | None) -> None:
    """Update the artifact paths in an SQLite database that was moved with its artifacts; needs `database_lock`.

    MLflow stores an absolute path for each experiment and each run, cannot change it, and would recreate the old
    directories. Other active runs are skipped, since another process may be writing to them.

    Args:
        database: The database.
        artifacts: Current directory of the artifacts of all runs.
        experiment: Name of the experiment of these runs.
        run_id: The MLflow run that resumes, or None.

    Raises:
        sqlite3.Error: The database cannot be read or written now.
    """
    with contextlib.closing(sqlite3.connect(database, timeout=_BUSY_TIMEOUT_S)) as connection, connection:
        num_moved = _follow_move(connection, artifacts, experiment, run_id)
    if num_moved:
        text = "%s was moved: the artifacts of %d MLflow runs, including deleted ones, are now in %s"
        log.warning(text, database, num_moved, artifacts)


def _follow_move(connection: sqlite3.Connection, artifacts: Path, experiment: str, run_id: str | None) -> int:
    experiments = connection.execute(
        "SELECT experiment_id, artifact_location FROM experiments WHERE name = ?", (experiment,)
    ).fetchall()
    moved_ids = [experiment_id for experiment_id, location in experiments if _was_moved(location, artifacts, 2)]
    connection.executemany(
        "UPDATE experiments SET artifact_location = ? WHERE experiment_id = ?",
        [(artifacts.as_uri(), experiment_id) for experiment_id in moved_ids],
    )
    runs = connection.execute(
        "SELECT run_uuid, artifact_uri FROM runs WHERE run_uuid = ? OR (experiment_id = ? AND status != 'RUNNING')",
        (run_id, moved_ids[0] if moved_ids else None),
    ).fetchall()
    artifact_dirs = {run: artifacts / run / "artifacts" for run, _ in runs}
    new_uris = [(artifact_dirs[run].as_uri(), run) for run, uri in runs if _was_moved(uri, artifact_dirs[run], 4)]
    connection.executemany("UPDATE runs SET artifact_uri = ? WHERE run_uuid = ?", new_uris)
    return len(new_uris)


def _was_moved(old_uri: str, new_path: Path, num_same: int) -> bool:
    """Return whether a directory moved; the last `num_same` components of a moved path are unchanged."""
    parts = urlsplit(old_uri)
    old_path = Path(unquote(parts.path))
    if parts.scheme != "file" or old_path == new_path or old_path.parts[-num_same:] != new_path.parts[-num_same:]:
        return False
    return not old_path.exists() or (new_path.exists() and not new_path.samefile(old_path))


def _is_error_or_outside_sinks(record: logging.LogRecord) -> bool:
    # urllib3 warns at every retry; the sink's thread reports an outage once
    return record.levelno > logging.WARNING or _is_outside_sinks(record)


def _is_outside_sinks(record: logging.LogRecord) -> bool:
    # the sink's thread catches the same error and reports it once
    return not (record.threadName or "").startswith("trieye-sink-")


def require_password(uri: str) -> None:
    """Check that the URI of a store is complete.

    Raises:
        ConfigurationError: The URI was read from the records of a run, which contain no passwords.
    """
    if is_redacted(uri):
        current_uri = redacted_text(os.environ.get("MLFLOW_TRACKING_URI", ""))
        raise ConfigurationError(
            f"MLflow at {uri}: passwords are never stored; set the environment variable MLFLOW_TRACKING_URI to that "
            f"URI with the password (currently {current_uri or 'not set'})"
        )


def database_of(uri: str) -> Path | None:
    """Return the file of an SQLite database, or None for another kind of store."""
    scheme, _, location = uri.partition(":///")
    path = location.partition("?")[0]
    if not scheme.startswith("sqlite") or path in {"", ":memory:"} or path.startswith("file:"):
        return None
    return Path(path).resolve()  # SQLite writes its journals next to the file, not next to a symbolic link


def prepare_database(path: Path) -> None:
    """Create a database with MLflow's tables if it does not exist, and set WAL mode; needs `database_lock`.

    On SQLite, MLflow's migrations are not transactional, and MLflow cannot open a database after a crash during them.
    Therefore MLflow creates its tables in a draft file, which is renamed to `path` when it is complete.

    Args:
        path: Path of the database, no symbolic link; its directory exists.
    """
    _remove_drafts(path)
    if not path.exists() or not path.stat().st_size:
        _create(path)
    else:
        _use_wal(path)


def forget_connections(path: Path) -> None:
    """Close MLflow's connections to a database: those to a deleted file would swallow all points.

    Args:
        path: The database.
    """
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for uri, engine in list(getattr(SqlAlchemyStore, "_engine_map", {}).items()):
        if database_of(uri) == path:
            engine.dispose()


def _create(path: Path) -> None:
    draft_path = path.with_name(f"{path.name}.new-{os.getpid()}")
    try:
        _make_tables(draft_path)
        _use_wal(draft_path)
        with draft_path.open("rb+") as file:
            os.fsync(file.fileno())
        for suffix in _SIDE_FILES:  # left by a deleted database: SQLite would apply them to the new one
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        draft_path.replace(path)
        fsync_directory(path.parent)
    finally:
        _remove_drafts(path)


def _make_tables(draft_path: Path) -> None:
    from mlflow import MlflowClient, environment_variables

    # MLflow never disposes its engines, and an engine with a pool leaves a connection to the draft open
    pool = environment_variables.MLFLOW_SQLALCHEMYSTORE_POOLCLASS
    pool.get = lambda: getattr(_threads, "pool", None) or type(pool).get(pool)
    _threads.pool = "NullPool"
    try:
        with quiet("mlflow.store.db.utils"):
            MlflowClient(tracking_uri=f"sqlite:///{draft_path}").search_experiments(max_results=1)
    finally:
        _threads.pool = None


def _remove_drafts(path: Path) -> None:
    # only the lock holder creates drafts, so any other draft is left over from a crash
    for draft_path in path.parent.glob(_drafts_of(path)):
        draft_path.unlink(missing_ok=True)


def _drafts_of(path: Path) -> str:
    return f"{glob.escape(path.name)}.new-*"


def _use_wal(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S)) as connection:
        # in WAL mode, readers such as `mlflow ui` do not block writers. The mode is stored in the file. On a network
        # file system SQLite keeps the previous mode without an error.
        connection.execute("PRAGMA journal_mode=WAL")


@contextlib.contextmanager
def quiet(name: str) -> Iterator[None]:
    """Suppress MLflow's INFO messages about created tables and missing GPUs."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
