"""How a tracking URI is prepared before MLflow opens it; an SQLite database gets all of its tables or none."""

import contextlib
import glob
import logging
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self
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
    """Tell whether the store is an SQLite database."""
    return uri.startswith("sqlite:")


def is_file_store(uri: str) -> bool:
    """Tell whether the store is a directory of files, the form of MLflow before version 3."""
    return uri.startswith("file:") or "://" not in uri


def prepare_client(uri: str) -> None:
    """Give the MLflow of this thread, and of our other ones, the settings that this kind of store needs.

    What the user has set stays, and so does what MLflow does in the user's own threads.
    """
    _threads.is_ours = True
    if redacted_text(uri) != uri:  # at the end of a run it prints the address with the password
        _set_in_our_threads("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", value=True)
    if uri.startswith(("http:", "https:")):
        # MLflow's own 7 retries with pauses take minutes, in which nothing is known of the outage; the sink's thread
        # retries anyway, and keeps count
        _set_in_our_threads("MLFLOW_HTTP_REQUEST_MAX_RETRIES", 1)
        _set_in_our_threads("MLFLOW_HTTP_REQUEST_TIMEOUT", 30)
        logging.getLogger("urllib3.connectionpool").addFilter(_not_from_a_sink)
    elif is_file_store(uri):
        _set_in_our_threads("MLFLOW_ALLOW_FILE_STORE", value=True)
    else:  # a traceback of 40 lines for each retry on a full disk
        logging.getLogger("mlflow.store.db.utils").addFilter(_not_of_a_sink_at_all)


def _set_in_our_threads(name: str, value: object) -> None:
    """Let one of MLflow's environment variables, where the environment does not have it, be something else for us."""
    from mlflow import environment_variables

    variable = getattr(environment_variables, name, None)
    if variable is None:  # an MLflow that does not ask
        return
    before = type(variable).get
    variable.get = lambda: value if _is_ours() and name not in os.environ else before(variable)


def _is_ours() -> bool:
    return getattr(_threads, "is_ours", False) or threading.current_thread().name.startswith("trieye-sink-")


@contextlib.contextmanager
def alone(uri: str) -> Iterator[Path | None]:
    """Hold the lock file beside an SQLite database, and yield the path of the database; other stores need none.

    MLflow's creation of a schema is not safe when several processes open a fresh database: 22 of 24 tries with 8
    processes failed.

    Raises:
        SinkBusyError: Other processes have held the lock for two minutes.
    """
    path = database_of(uri)
    if path is None:
        yield None
        return
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(f"{path}.lock", timeout=_LOCK_TIMEOUT_S)
    try:
        lock.acquire()
    except Timeout as error:
        raise SinkBusyError(f"other processes have held {path}.lock for {_LOCK_TIMEOUT_S:.0f} s") from error
    try:
        yield path
    finally:
        lock.release()


class Held(NamedTuple):
    """The file of a database as it was when it was opened: whoever has it open can write to it when it is deleted.

    Attributes:
        path: Its path.
        place: Its device and inode.
    """

    path: Path
    place: tuple[int, int]

    @classmethod
    def of(cls, path: Path) -> Self:
        """Return the file that has a path now."""
        held = path.stat()
        return cls(path, (held.st_dev, held.st_ino))

    @property
    def is_gone(self) -> bool:
        """Whether there is no file at the path any more, or another one."""
        try:
            return Held.of(self.path) != self
        except (FileNotFoundError, NotADirectoryError):
            return True


def activity_of(uri: str) -> object:
    """Return what changes whenever a process writes to an SQLite database, or makes its tables; None for other stores.

    Those that wait for their turn write to the lock files only, which do not count.
    """
    path = database_of(uri)
    if path is None:
        return None
    files = [path, Path(f"{path}-wal"), *path.parent.glob(_drafts_of(path))]
    found = []
    for file in files:
        with contextlib.suppress(OSError):
            held = file.stat()
            found.append((held.st_ino, held.st_mtime_ns, held.st_size))
    return found


def is_locked(error: Exception) -> bool:
    """Tell whether an error says that other connections kept an SQLite database locked for as long as MLflow waits."""
    return "database is locked" in str(error) or "database table is locked" in str(error)


def follow_move(database: Path, artifacts: Path, *, experiment: str, run_id: str | None) -> None:
    """Tell an SQLite database where the artifacts are that were moved together with it; holds what `alone` holds.

    MLflow keeps an absolute place for each experiment and each run, and would make the old directories anew. It has no
    way to change them. What another process may be writing to, a run under way, is left to that process.

    Args:
        database: The database.
        artifacts: Where the artifacts of all its runs are now.
        experiment: Name of the experiment that has them.
        run_id: The MLflow run that goes on, if there is one.
    """
    try:
        with contextlib.closing(sqlite3.connect(database, timeout=_BUSY_TIMEOUT_S)) as connection, connection:
            moved = _follow_move(connection, artifacts, experiment, run_id)
    except sqlite3.Error as error:
        log.warning(
            "whether %s was moved cannot be told (%s): if it was, MLflow puts artifacts where it was before",
            database,
            error,
        )
        return
    if moved:
        log.warning("%s was moved: %d of its runs have their artifacts in %s now", database, moved, artifacts)


def _follow_move(connection: sqlite3.Connection, artifacts: Path, experiment: str, run_id: str | None) -> int:
    experiments = connection.execute(
        "SELECT experiment_id, artifact_location FROM experiments WHERE name = ?", (experiment,)
    ).fetchall()
    moved = [experiment_id for experiment_id, place in experiments if _was_moved(place, artifacts, 2)]
    connection.executemany(
        "UPDATE experiments SET artifact_location = ? WHERE experiment_id = ?",
        [(artifacts.as_uri(), experiment_id) for experiment_id in moved],
    )
    runs = connection.execute(
        "SELECT run_uuid, artifact_uri FROM runs WHERE run_uuid = ? OR (experiment_id = ? AND status != 'RUNNING')",
        (run_id, moved[0] if moved else None),
    ).fetchall()
    places = {run: artifacts / run / "artifacts" for run, _ in runs}
    new = [(places[run].as_uri(), run) for run, place in runs if _was_moved(place, places[run], 4)]
    connection.executemany("UPDATE runs SET artifact_uri = ? WHERE run_uuid = ?", new)
    return len(new)


def _was_moved(place: str, now: Path, num_same: int) -> bool:
    """Tell whether a directory, of which the last parts of the path stay the same, is somewhere else than it was."""
    parts = urlsplit(place)
    before = Path(unquote(parts.path))
    if parts.scheme != "file" or before == now or before.parts[-num_same:] != now.parts[-num_same:]:
        return False
    return not before.exists() or (now.exists() and not now.samefile(before))


def _not_from_a_sink(record: logging.LogRecord) -> bool:
    # urllib3 warns at every retry; the thread of the sink says once that the server is away
    return record.levelno > logging.WARNING or not (record.threadName or "").startswith("trieye-sink-")


def _not_of_a_sink_at_all(record: logging.LogRecord) -> bool:
    # the thread of the sink gets the error, too, and says once what does not work
    return not (record.threadName or "").startswith("trieye-sink-")


def require_password(uri: str) -> None:
    """Do nothing if a store can be opened.

    Raises:
        ConfigurationError: The URI was read from the records of a run, which hold no passwords.
    """
    if is_redacted(uri):
        now = redacted_text(os.environ.get("MLFLOW_TRACKING_URI", ""))
        raise ConfigurationError(
            f"MLflow at {uri}: its password is written down nowhere; set the environment variable MLFLOW_TRACKING_URI "
            f"to that address with the password (now it is {now or 'not set'})"
        )


def database_of(uri: str) -> Path | None:
    """Return the file of an SQLite database, or None for another kind of store."""
    scheme, _, rest = uri.partition(":///")
    path = rest.partition("?")[0]
    if not scheme.startswith("sqlite") or path in {"", ":memory:"} or path.startswith("file:"):
        return None
    return Path(path).resolve()  # SQLite keeps its journals beside the file, not beside a link to it


def prepare_database(path: Path) -> None:
    """Make sure that there is a database with MLflow's tables, in WAL mode; the caller holds what `alone` holds.

    MLflow's migrations are no transaction on SQLite, and MLflow cannot open what a kill in the middle of them leaves.
    So MLflow makes its tables in a draft beside `path`, which takes that name when it is whole.

    Args:
        path: Where the database belongs; its directory exists, and it is no symbolic link.
    """
    _remove_drafts(path)
    if not path.exists() or not path.stat().st_size:
        _create(path)
    else:
        _use_wal(path)


def forget_connections(path: Path) -> None:
    """Let MLflow open a database anew: this process may have one open that was deleted, where nobody would see points.

    Args:
        path: The database.
    """
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for uri, engine in list(getattr(SqlAlchemyStore, "_engine_map", {}).items()):
        if database_of(uri) == path:
            engine.dispose()


def _create(path: Path) -> None:
    draft = path.with_name(f"{path.name}.new-{os.getpid()}")
    try:
        _make_tables(draft)
        _use_wal(draft)
        with draft.open("rb+") as file:
            os.fsync(file.fileno())
        for suffix in _SIDE_FILES:  # of a database that was taken away: SQLite would apply it to the new one
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        draft.replace(path)
        fsync_directory(path.parent)
    finally:
        _remove_drafts(path)


def _make_tables(draft: Path) -> None:
    from mlflow import MlflowClient, environment_variables

    # MLflow keeps its engines for ever, and an engine with a pool keeps a connection to the draft open
    pool = environment_variables.MLFLOW_SQLALCHEMYSTORE_POOLCLASS
    pool.get = lambda: getattr(_threads, "pool", None) or type(pool).get(pool)
    _threads.pool = "NullPool"
    try:
        with quiet("mlflow.store.db.utils"):
            MlflowClient(tracking_uri=f"sqlite:///{draft}").search_experiments(max_results=1)
    finally:
        _threads.pool = None


def _remove_drafts(path: Path) -> None:
    # only the process that is here makes drafts, so those of others were left by a kill
    for draft in path.parent.glob(_drafts_of(path)):
        draft.unlink(missing_ok=True)


def _drafts_of(path: Path) -> str:
    return f"{glob.escape(path.name)}.new-*"


def _use_wal(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S)) as connection:
        # readers such as `mlflow ui` do not block writers then; the mode stays with the file. A network file system
        # refuses it by answering with another mode, and works as before.
        connection.execute("PRAGMA journal_mode=WAL")


@contextlib.contextmanager
def quiet(name: str) -> Iterator[None]:
    """Keep what MLflow tells about the tables it creates or the GPU it does not find off the terminal."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
