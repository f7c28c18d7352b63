"""How a tracking URI is prepared before MLflow opens it."""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from trieye.config.redaction import is_redacted, redacted_text
from trieye.exceptions import ConfigurationError

_HTTP_DEFAULTS = {
    # MLflow's own 7 retries with pauses take minutes, in which nothing is known of the outage; the sink's thread
    # retries anyway, and keeps count
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}
_LOCK_TIMEOUT_S = 120.0


def is_sqlite(uri: str) -> bool:
    """Tell whether the store is an SQLite database."""
    return uri.startswith("sqlite:")


def is_file_store(uri: str) -> bool:
    """Tell whether the store is a directory of files, the form of MLflow before version 3."""
    return uri.startswith("file:") or "://" not in uri


def set_environment(uri: str) -> None:
    """Give MLflow the settings that this kind of store needs; what the user has set stays."""
    if redacted_text(uri) != uri:  # at the end of a run it prints the address with the password
        os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    if uri.startswith(("http:", "https:")):
        for name, value in _HTTP_DEFAULTS.items():
            os.environ.setdefault(name, value)
        logging.getLogger("urllib3.connectionpool").addFilter(_not_from_a_sink)
    elif is_file_store(uri):
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    else:  # a traceback of 40 lines for each retry on a full disk
        logging.getLogger("mlflow.store.db.utils").addFilter(_not_of_a_sink_at_all)


@contextlib.contextmanager
def alone(uri: str) -> Iterator[Path | None]:
    """Hold the lock file beside an SQLite database, and yield the path of the database; other stores need none.

    MLflow's creation of a schema is not safe when several processes open a fresh database: 22 of 24 tries with 8
    processes failed.

    Raises:
        TimeoutError: Another process has held the lock for two minutes.
    """
    path = _database(uri)
    if path is None:
        yield None
        return
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock", timeout=_LOCK_TIMEOUT_S):
        yield path


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


def _database(uri: str) -> Path | None:
    scheme, _, rest = uri.partition(":///")
    path = rest.partition("?")[0]
    if not scheme.startswith("sqlite") or path in {"", ":memory:"} or path.startswith("file:"):
        return None
    return Path(path).resolve()  # SQLite keeps its journals beside the file, not beside a link to it
