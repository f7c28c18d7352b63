"""The MLflow UI: the command that serves it, schema checks, and URLs of runs, sweeps and experiments."""

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
"""Path that a running server answers."""

_REVISION = re.compile(r"^revision\s*(?::[^=]*)?=\s*['\"](\w+)['\"]", re.MULTILINE)
_PARENTS = re.compile(r"^down_revision\s*(?::[^=]*)?=(.*)$", re.MULTILINE)


def server_command(database: Path, port: int) -> list[str]:
    """Return the command that starts a server for an SQLite database, with the minimum number of processes."""
    # as in the sink: artifacts logged through this server are stored next to the database, not in the working directory
    artifacts = (database.parent / "artifacts").as_uri()
    return [
        sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
        "--no-serve-artifacts", "--default-artifact-root", artifacts,
    ]  # fmt: skip


def server_environment(database: Path) -> Mapping[str, str]:
    """Return the environment variables of that server."""
    return {
        "MLFLOW_BACKEND_STORE_URI": f"sqlite:///{database}",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # more processes, for agents
        "MLFLOW_STATIC_PREFIX": "",
    }


def check_schema(database: Path) -> None:
    """Check that the installed MLflow and a database have the same schema version.

    MLflow silently migrates a database of an older version, which the older MLflow of other writers can then no longer
    open.

    Raises:
        ConfigurationError: The database has another schema version, or is no MLflow database.
    """
    try:
        with contextlib.closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except (sqlite3.Error, TypeError) as error:
        raise ConfigurationError(f"{database} cannot be read as an MLflow database: {error}") from error
    latest = _latest_revision()
    if latest not in {revision, None}:
        raise ConfigurationError(
            f"{database} has another schema than the installed MLflow {version('mlflow')} (revision {revision}, not "
            f"{latest}), which may migrate it: use the MLflow that wrote it (pip install --upgrade mlflow); or, if "
            f"it is older and no run of that version is active, copy it and run `mlflow db upgrade sqlite:///{database}`"
        )


@cache
def _latest_revision() -> str | None:
    """Return the latest schema revision of the installed MLflow; None if that is ambiguous.

    The function parses MLflow's migration files, because importing them takes a second. Their location is private;
    `test_a_database_of_an_older_mlflow_is_left_alone` detects a change.
    """
    spec = importlib.util.find_spec("mlflow")
    packages = (spec.submodule_search_locations if spec is not None else None) or []
    files = [file for package in packages for file in Path(package, "store", "db_migrations", "versions").glob("*.py")]
    texts = [file.read_text(encoding="utf-8") for file in files]
    revisions = {revision for text in texts for revision in _REVISION.findall(text)}
    parents = {word for text in texts for line in _PARENTS.findall(text) for word in re.findall(r"\w+", line)}
    latest = revisions - parents
    return latest.pop() if len(latest) == 1 else None


def experiments_of(uri: str, run_ids: Sequence[str]) -> list[str]:
    """Return the ids of the experiments that contain some MLflow runs; empty if a server fails.

    Args:
        uri: The SQLite store or the server.
        run_ids: The runs; a server gets one request for each.
    """
    database = mlflow_store.database_of(uri)
    if database is None:
        client = mlflow_store.client_of(uri)
        try:
            return sorted({str(client.get_run(run_id).info.experiment_id) for run_id in run_ids})
        except Exception:  # noqa: BLE001 - the border to MLflow: its start page then shows the problem
            return []
    with contextlib.closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        rows = connection.execute(
            "SELECT DISTINCT experiment_id FROM runs WHERE run_uuid IN (SELECT value FROM json_each(?))",
            [json.dumps(run_ids)],
        )
        return sorted(str(experiment_id) for (experiment_id,) in rows)


def address_of(uri: str) -> str:
    """Return the URL of a server for a browser, without user and password."""
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], path=parts.path.rstrip("/")))


def fragment_of(experiments: Sequence[str], *, run_id: str | None = None, sweep: str | None = None) -> str:
    """Return the URL fragment of the page of a run, a sweep or an experiment; with several experiments their list.

    Args:
        experiments: The ids of the experiments to show.
        run_id: The MLflow run to show alone.
        sweep: The sweep, as in its tag, whose runs to show alone.
    """
    if len(experiments) != 1:
        return "/#/experiments"
    run = "" if run_id is None else f"/{run_id}"
    # without the workflow type, MLflow shows the page for LLM agents
    page = f"/#/experiments/{experiments[0]}/runs{run}?workflowType=machine_learning"
    if sweep is None or "'" in sweep:  # MLflow's filter syntax cannot express a quote
        return page
    return f"{page}&searchFilter=" + quote(f"tags.`{SWEEP_TAG}` = '{sweep}'", safe="")
