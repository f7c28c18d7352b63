"""Which MLflow experiment and run belong to a run; the client is given."""

import getpass
import logging
from typing import Any

from trieye.exceptions import TrieyeError
from trieye.sinks import mlflow_store
from trieye.sinks.base import RunInfo

log = logging.getLogger("trieye.sinks")

RUN_ID_TAG = "trieye.run_id"
"""Tag that finds the MLflow run again when the answer to its creation was lost."""

_INT64 = range(-(2**63), 2**63)


def experiment_id(client: Any, run: RunInfo) -> str:
    """Return the id of the app's experiment, which is created if need be.

    Raises:
        TrieyeError: The experiment was deleted.
    """
    experiment = client.get_experiment_by_name(run.app_name)
    if experiment is None:
        # a server has its own place for artifacts; a database on this disk would take the working directory
        is_local = mlflow_store.is_sqlite(run.tracking_uri)
        location = (run.mlflow_dir / "artifacts").absolute().as_uri() if is_local else None
        try:
            return str(client.create_experiment(run.app_name, artifact_location=location))
        except Exception as error:
            if getattr(error, "error_code", None) != "RESOURCE_ALREADY_EXISTS":
                raise
            experiment = client.get_experiment_by_name(run.app_name)  # another process was faster
    if experiment.lifecycle_stage == "deleted":
        raise TrieyeError(
            f"the MLflow experiment {run.app_name!r} was deleted; restore it with "
            f"`mlflow experiments restore --experiment-id {experiment.experiment_id}` or use another app_name"
        )
    return str(experiment.experiment_id)


def find(client: Any, run: RunInfo, experiment_id: str) -> Any:
    """Return the MLflow run of earlier attempts, or None.

    Raises:
        TrieyeError: The MLflow run was deleted.
    """
    if run.mlflow_run_id is not None:
        try:
            known = client.get_run(run.mlflow_run_id)
        except Exception as error:
            if getattr(error, "error_code", None) != "RESOURCE_DOES_NOT_EXIST":
                raise
            shown = mlflow_store.without_password(run.tracking_uri)
            log.warning("the MLflow run %s is not in %s; another one is used", run.mlflow_run_id, shown)
        else:
            require_active(known)
            return known
    found = client.search_runs([experiment_id], filter_string=f"tags.`{RUN_ID_TAG}` = '{run.run_id}'")
    return found[0] if found else None


def create(client: Any, run: RunInfo, experiment_id: str) -> str:
    """Create the MLflow run and return its id."""
    tags = {RUN_ID_TAG: run.run_id, "mlflow.user": _user()}
    created = client.create_run(experiment_id, start_time=milliseconds(run.created), tags=tags, run_name=run.run_name)
    return str(created.info.run_id)


def require_active(run: Any) -> None:
    """Do nothing if the MLflow run takes points.

    Raises:
        TrieyeError: It was deleted.
    """
    if run.info.lifecycle_stage == "deleted":
        run_id = run.info.run_id
        raise TrieyeError(f"the MLflow run was deleted; restore it with `mlflow runs restore --run-id {run_id}`")


def milliseconds(unix_time: float) -> int | None:
    """Return Unix seconds as the time that MLflow stores, 0 for what is earlier; None if 64 bits cannot hold it."""
    try:
        time_ms = int(unix_time * 1000)
    except (OverflowError, ValueError, TypeError):  # inf, nan, and what is no number
        return None
    return max(0, time_ms) if time_ms in _INT64 else None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return "unknown"
