"""MLflow's pages of runs: what serves them, and the address of each."""

import contextlib
import importlib.util
import json
import re
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from trieye.exceptions import ConfigurationError
from trieye.sinks.mlflow import store as mlflow_store
from trieye.sinks.mlflow.run import SWEEP_TAG

HEALTH = "/health"
"""What the server answers when it is up."""

_REVISION = re.compile(r"^revision\s*(?::[^=]*)?=\s*['\"](\w+)['\"]", re.MULTILINE)
_BEFORE = re.compile(r"^down_revision\s*(?::[^=]*)?=(.*)$", re.MULTILINE)


def server_command(database: Path, port: int) -> list[str]:
    """Return the words that start a server for an SQLite database, with as few processes as MLflow can do with."""
    # as the sink has it: what somebody logs through this server lies beside the database, not where one stands
    artifacts = (database.parent / "artifacts").as_uri()
    return [
        sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
        "--no-serve-artifacts", "--default-artifact-root", artifacts,
    ]  # fmt: skip


def server_environment(database: Path) -> Mapping[str, str]:
    """Return the variables of that server."""
    return {
        "MLFLOW_BACKEND_STORE_URI": f"sqlite:///{database}",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # more processes, for agents
        "MLFLOW_STATIC_PREFIX": "",
    }


def check_schema(database: Path) -> None:
    """Do nothing if the installed MLflow has the tables of a database.

    MLflow itself adds the tables that a database of an older version lacks, without a word; the older MLflow of those
    who still write to it can then no longer open it.

    Raises:
        ConfigurationError: It is of another version, or no database of MLflow.
    """
    try:
        with contextlib.closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            (held,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except (sqlite3.Error, TypeError) as error:
        raise ConfigurationError(f"{database} cannot be read as a database of MLflow: {error}") from error
    known, newest = _revisions()
    if held == newest or newest is None:
        return
    ours = f"the installed MLflow {version('mlflow')}"
    if held not in known:
        raise ConfigurationError(
            f"{database} is of a newer version than {ours} (its tables are {held}, not {newest}): "
            "pip install --upgrade mlflow"
        )
    raise ConfigurationError(
        f"{database} is of an older version than {ours} (its tables are {held}, not {newest}), which would change it: "
        "use the MLflow that wrote it; or, when no run of that version is under way, copy the file, and then type "
        f"`mlflow db upgrade sqlite:///{database}`"
    )


@cache
def _revisions() -> tuple[frozenset[str], str | None]:
    """Return the versions of tables that the installed MLflow knows, and the newest one, None if that is not clear.

    They are those of its migrations, which are read, since to import them takes a second. Where MLflow has them is
    its own affair; `test_a_database_of_an_older_mlflow_is_left_alone` notices when they are gone.
    """
    spec = importlib.util.find_spec("mlflow")
    places = (spec.submodule_search_locations if spec is not None else None) or []
    files = [file for place in places for file in Path(place, "store", "db_migrations", "versions").glob("*.py")]
    texts = [file.read_text(encoding="utf-8") for file in files]
    known = {revision for text in texts for revision in _REVISION.findall(text)}
    before = {word for text in texts for line in _BEFORE.findall(text) for word in re.findall(r"\w+", line)}
    newest = known - before
    return frozenset(known), newest.pop() if len(newest) == 1 else None


def experiments_of(uri: str, run_ids: Sequence[str]) -> list[str]:
    """Return the ids of the experiments that some MLflow runs are in; of a server only those that it tells.

    Args:
        uri: The SQLite store or the server.
        run_ids: The runs; a server is asked for each.
    """
    database = mlflow_store.database_of(uri)
    if database is None:
        return _told_by_server(uri, run_ids)
    with contextlib.closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        rows = connection.execute(
            "SELECT DISTINCT experiment_id FROM runs WHERE run_uuid IN (SELECT value FROM json_each(?))",
            [json.dumps(run_ids)],
        )
        return sorted(str(experiment_id) for (experiment_id,) in rows)


def _told_by_server(uri: str, run_ids: Sequence[str]) -> list[str]:
    from mlflow import MlflowClient

    mlflow_store.prepare_client(uri)
    client = MlflowClient(tracking_uri=uri)
    try:
        return sorted({str(client.get_run(run_id).info.experiment_id) for run_id in run_ids})
    except Exception:  # noqa: BLE001 - the border to MLflow: its first page then says what is wrong
        return []


def address_of(uri: str) -> str:
    """Return the address of a server as a browser may have it, without user and password."""
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], path=parts.path.rstrip("/")))


def fragment_of(experiments: Sequence[str], *, run_id: str | None = None, sweep: str | None = None) -> str:
    """Return what follows the address of a server, for the page of a run, a sweep, an experiment or all of them.

    Args:
        experiments: The ids of the experiments that are to be seen.
        run_id: The MLflow run that is to be seen alone.
        sweep: The sweep whose runs are to be seen alone, as its tag has it.
    """
    if len(experiments) != 1:
        return "/#/experiments"
    run = "" if run_id is None else f"/{run_id}"
    # without the type of work, the browser shows what is of interest for agents of language models
    page = f"/#/experiments/{experiments[0]}/runs{run}?workflowType=machine_learning"
    if sweep is None or "'" in sweep:  # which no filter can have
        return page
    return f"{page}&searchFilter=" + quote(f"tags.`{SWEEP_TAG}` = '{sweep}'", safe="")
