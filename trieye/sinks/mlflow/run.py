"""Which MLflow experiment and runs belong to a run and its sweep, and how MLflow takes names; the client is given."""

import contextlib
import getpass
import hashlib
import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

from trieye.config.redaction import redacted_text
from trieye.exceptions import SinkGoneError, TrieyeError
from trieye.sinks.base import RunInfo
from trieye.sinks.mlflow import store as mlflow_store

log = logging.getLogger("trieye.sinks")

RUN_ID_TAG = "trieye.run_id"
"""Tag that finds the MLflow run again when the answer to its creation was lost."""

OWNER_TAG = "trieye.owner"
"""Tag with the token of the directory that the MLflow run belongs to."""

SWEEP_TAG = "trieye.sweep"
"""Tag with the sweep of a run; members of a sweep and their parent have it."""

SWEEP_PARENT_TAG = "trieye.sweep_parent"
"""Tag that only the parent of a sweep has."""

PARENT_TAG = "mlflow.parentRunId"
"""Tag by which MLflow shows a run below another one."""

KIND_TAG, KIND = "mlflow.experimentKind", "custom_model_development"
"""Tag of an experiment by which MLflow's page shows trainings and their metrics rather than traces of agents."""

_INT64 = range(-(2**63), 2**63)

MAX_NAME_LENGTH = 250
"""Characters that MLflow takes in the name of a metric, parameter or tag."""

_MAX_PATH_BYTES = 200
"""Bytes of an artifact's directory; a file system takes 255 for each part of a path."""

_BAD = re.compile(
    r"[^/\w.\- :]"  # MLflow takes these characters only
    r"|^/|(?<=/)/|/$"  # no empty part between slashes,
    r"|(?:^|(?<=/))\.(?=\.?(?:/|$))|^\.(?=\.)"  # no part that is `.` or `..`, and no `..` at the beginning
)
_LOOKS_MADE = re.compile(r"_x(?:[0-9a-f]*|sha[0-9a-f]*)_")
_COULD_BE_READ_AS_MADE = re.compile(r"_(?=x(?:[0-9a-f_]|sha))")


def experiment_id(client: Any, run: RunInfo) -> str:
    """Return the id of the app's experiment, which is created if need be.

    Raises:
        SinkGoneError: The experiment was deleted.
    """
    experiment = client.get_experiment_by_name(run.app_name)
    if experiment is None:
        # a server has its own place for artifacts; a database on this disk would take the working directory
        is_local = mlflow_store.is_sqlite(run.tracking_uri)
        location = artifacts_of(run).as_uri() if is_local else None
        try:
            return str(client.create_experiment(run.app_name, artifact_location=location, tags={KIND_TAG: KIND}))
        except Exception as error:
            if getattr(error, "error_code", None) != "RESOURCE_ALREADY_EXISTS":
                raise
            experiment = client.get_experiment_by_name(run.app_name)  # another process was faster
    _require_active_experiment(experiment)
    if KIND_TAG not in experiment.tags:
        client.set_experiment_tag(experiment.experiment_id, KIND_TAG, KIND)
    return str(experiment.experiment_id)


def _require_active_experiment(experiment: Any) -> None:
    if experiment.lifecycle_stage == "deleted":
        raise SinkGoneError(
            f"the MLflow experiment {experiment.name!r} was deleted; restore it with "
            f"`mlflow experiments restore --experiment-id {experiment.experiment_id}` or use another app_name"
        )


def artifacts_of(run: RunInfo) -> Path:
    """Return the directory of all artifacts of the app, if its MLflow store is on this disk."""
    return (run.mlflow_dir / "artifacts").absolute()


def find(client: Any, run: RunInfo, experiment_id: str) -> Any:
    """Return the MLflow run of earlier attempts, or None.

    Raises:
        SinkGoneError: The MLflow run was deleted.
    """
    if run.mlflow_run_id is not None:
        try:
            known = client.get_run(run.mlflow_run_id)
        except Exception as error:
            if getattr(error, "error_code", None) != "RESOURCE_DOES_NOT_EXIST":
                raise
            shown = redacted_text(run.tracking_uri)
            log.warning("the MLflow run %s is not in %s; another one is used", run.mlflow_run_id, shown)
        else:
            require_active(client, known)
            return known
    found = client.search_runs([experiment_id], filter_string=f"tags.`{RUN_ID_TAG}` = '{run.run_id}'")
    return found[0] if found else None


def create(client: Any, run: RunInfo, experiment_id: str) -> str:
    """Create the MLflow run and return its id."""
    tags = {RUN_ID_TAG: run.run_id, "mlflow.user": _user()}
    created = client.create_run(experiment_id, start_time=milliseconds(run.created), tags=tags, run_name=run.run_name)
    return str(created.info.run_id)


def is_owned_by(owner: str, uri: str, mlflow_run_id: str, run_id: str) -> bool:
    """Return True if an MLflow run exists and names a run and a directory as its own.

    Args:
        owner: Token of the directory.
        uri: The store or server.
        mlflow_run_id: The MLflow run.
        run_id: Identity of the run.

    Raises:
        ConfigurationError: The URI of the store needs a password, and none is configured.
        TrieyeError: MLflow does not answer.
    """
    run = _get_run(uri, mlflow_run_id)
    return run is not None and (run.data.tags.get(RUN_ID_TAG), run.data.tags.get(OWNER_TAG)) == (run_id, owner)


def delete_run(uri: str, run_id: str) -> None:
    """Move an MLflow run to MLflow's trash; a missing or deleted run is no error.

    Args:
        uri: The store or server.
        run_id: The MLflow run.

    Raises:
        ConfigurationError: The URI of the store needs a password, and none is configured.
        TrieyeError: MLflow does not answer, or refuses.
    """
    run = _get_run(uri, run_id)
    if run is not None and run.info.lifecycle_stage != "deleted":
        with _explained(uri, run_id, "deleted"):
            _client(uri).delete_run(run_id)


def _get_run(uri: str, run_id: str) -> Any:
    mlflow_store.require_password(uri)
    database = mlflow_store.database_of(uri)
    if database is not None and not database.exists():  # MLflow would make one
        return None
    with _explained(uri, run_id, "read"):
        try:
            return _client(uri).get_run(run_id)
        except Exception as error:
            if getattr(error, "error_code", None) != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None


def _client(uri: str) -> Any:
    from mlflow import MlflowClient

    mlflow_store.prepare_client(uri)
    return MlflowClient(tracking_uri=uri)


@contextlib.contextmanager
def _explained(uri: str, run_id: str, verb: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the border to MLflow
        reason = redacted_text(str(error)).partition("\n")[0]
        raise TrieyeError(f"the MLflow run {run_id} in {redacted_text(uri)} cannot be {verb}: {reason}") from error


def sweep_parent(client: Any, experiment_id: str, group: str) -> str:
    """Return the id of the MLflow run below which the members of a sweep are shown; it is created if need be.

    Many processes may ask at the same time. No store offers "create if absent", so each that finds none creates one and
    then looks again: the oldest is the parent, and whoever made a younger one deletes it. Where one was on its way when
    another looked, there are two for a while; `end_sweep` settles that.
    """
    parents = _sweep_parents(client, experiment_id, group)
    if not parents:
        tags = {SWEEP_TAG: group, SWEEP_PARENT_TAG: "true", "mlflow.user": _user()}
        now = milliseconds(time.time())
        own = client.create_run(experiment_id, start_time=now, tags=tags, run_name=sweep_name(group)).info.run_id
        parents = _sweep_parents(client, experiment_id, group)
        if parents[0].info.run_id != own:
            client.delete_run(own)
    parent = parents[0]
    if parent.info.status != "RUNNING":
        client.update_run(parent.info.run_id, status="RUNNING")
    return str(parent.info.run_id)


def sweep_name(group: str) -> str:
    """Return the last two parts of a sweep's directory, which are a date and a time as Hydra names it."""
    return "/".join(PurePath(group).parts[-2:]).lstrip("/") or group


def end_sweep(client: Any, member_id: str, experiment_id: str, group: str) -> None:
    """Mark the parent of a sweep as finished; the next member that opens marks it as running again.

    Args:
        client: The client.
        member_id: The member that ends; it comes below the oldest parent if it is below another one.
        experiment_id: The experiment of both.
        group: The sweep.
    """
    parents = _sweep_parents(client, experiment_id, group)
    if not parents:
        log.warning("the parent of the sweep %s in MLflow was deleted; its runs are no longer nested", group)
        return
    oldest = parents[0].info.run_id
    before = client.get_run(member_id).data.tags.get(PARENT_TAG)
    if before != oldest:
        client.set_tag(member_id, PARENT_TAG, oldest)
        for younger in parents[1:]:
            client.delete_run(younger.info.run_id)
    client.set_terminated(oldest, "FINISHED")


def _sweep_parents(client: Any, experiment_id: str, group: str) -> list[Any]:
    # a filter has no way to write a value with both kinds of quotes; `_` matches any character
    pattern = group.replace("'", "_").replace('"', "_")
    where = f"tags.`{SWEEP_PARENT_TAG}` = 'true' AND tags.`{SWEEP_TAG}` LIKE '{pattern}'"
    found = [run for run in client.search_runs([experiment_id], where) if run.data.tags[SWEEP_TAG] == group]
    return sorted(found, key=lambda run: (run.info.start_time, run.info.run_id))


def require_active(client: Any, run: Any) -> None:
    """Do nothing if the MLflow run takes points.

    Raises:
        SinkGoneError: It was deleted, or its experiment was, and all its runs with it.
    """
    if run.info.lifecycle_stage == "deleted":
        _require_active_experiment(client.get_experiment(run.info.experiment_id))
        raise SinkGoneError(
            f"the MLflow run was deleted and lies in MLflow's trash; "
            f"restore it with `mlflow runs restore --run-id {run.info.run_id}`"
        )


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


def mlflow_name(name: str) -> str:
    """Return `name` with `_x40_` for a `@` and so on; a name that MLflow takes stays as it is.

    The mapping is injective: a valid name that looks as if it were made here (`a_x40_`) is escaped too. What is longer
    than `MAX_NAME_LENGTH` is cut and ends in a hash of the whole.
    """
    made = name
    if _BAD.search(name) or _LOOKS_MADE.search(name):
        made = _COULD_BE_READ_AS_MADE.sub("_x5f_", name)
        made = _BAD.sub(lambda match: f"_x{ord(match[0]):x}_", made)
    if not name:
        return "_x_"
    return f"{made[:200]}{_ending(name)}" if len(made) > MAX_NAME_LENGTH else made


def artifact_directory(name: str) -> str:
    """Return `mlflow_name(name)` as a relative path that a file system takes; different names stay different."""
    made = mlflow_name(name).encode()
    if len(made) <= _MAX_PATH_BYTES:
        return made.decode()
    return f"{made[: _MAX_PATH_BYTES - 24].decode(errors='ignore')}{_ending(name)}"


def _ending(name: str) -> str:
    return f"_xsha{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}_"
