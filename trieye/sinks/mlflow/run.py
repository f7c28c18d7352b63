"""MLflow experiments, runs and sweep parents of a run, and MLflow-compatible names."""

import contextlib
import hashlib
import json
import logging
import re
import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

from trieye.config.redaction import redacted_text
from trieye.exceptions import SinkGoneError, TrieyeError
from trieye.process.identity import user_name
from trieye.sinks.base import RunInfo
from trieye.sinks.mlflow import store as mlflow_store

log = logging.getLogger("trieye.sinks")

RUN_ID_TAG = "trieye.run_id"
"""Tag that identifies the MLflow run if the response to its creation was lost."""

OWNER_TAG = "trieye.owner"
"""Tag with the token of the run directory that owns the MLflow run."""

SWEEP_TAG = "trieye.sweep"
"""Tag with the sweep of a run; set on the members of a sweep and their parent."""

SWEEP_PARENT_TAG = "trieye.sweep_parent"
"""Tag of the parent of a sweep only."""

PARENT_TAG = "mlflow.parentRunId"
"""Tag that nests a run below another one in MLflow."""

KIND_TAG, KIND = "mlflow.experimentKind", "custom_model_development"
"""Tag of an experiment that makes MLflow show training runs and their metrics rather than agent traces."""

_NOTE_TAG, _TABLES_TAG = "mlflow.note.content", "mlflow.loggedArtifacts"
_SWEEP_TABLE = "jobs.json"
_MAX_SWEEP_PARAM = 500

_FULL_DISK_ERRORS = ("disk is full", "No space left", "disk I/O error")
"""Parts of the messages of SQLite and the operating system."""

MAX_NAME_LENGTH = 250
"""MLflow's maximum length of the name of a metric, parameter or tag, in characters."""

_MAX_PATH_BYTES = 200
"""Maximum length of an artifact's directory name; file systems limit each path component to 255 bytes."""

_INVALID = re.compile(
    r"[^/\w.\- :]"  # characters that MLflow rejects
    r"|^/|(?<=/)/|/$"  # empty path components
    r"|(?:^|(?<=/))\.(?=\.?(?:/|$))|^\.(?=\.)"  # components `.` and `..`, and a leading `..`
)
_LOOKS_ESCAPED = re.compile(r"_x(?:[0-9a-f]*|sha[0-9a-f]*)_")
_AMBIGUOUS_UNDERSCORE = re.compile(r"_(?=x(?:[0-9a-f_]|sha))")


def experiment_id(client: Any, run: RunInfo) -> str:
    """Return the id of the app's experiment; create the experiment if it does not exist.

    Raises:
        SinkGoneError: The experiment was deleted.
    """
    experiment = client.get_experiment_by_name(run.app_name)
    if experiment is None:
        # a server chooses the artifact location; a local database would default to the working directory
        is_local = mlflow_store.is_sqlite(run.tracking_uri)
        location = artifacts_of(run).as_uri() if is_local else None
        try:
            return str(client.create_experiment(run.app_name, artifact_location=location, tags={KIND_TAG: KIND}))
        except Exception as error:
            if getattr(error, "error_code", None) != "RESOURCE_ALREADY_EXISTS":
                raise
            experiment = client.get_experiment_by_name(run.app_name)  # another process was faster
    _require_active_experiment(client, experiment)
    if KIND_TAG not in experiment.tags:
        client.set_experiment_tag(experiment.experiment_id, KIND_TAG, KIND)
    return str(experiment.experiment_id)


def _require_active_experiment(client: Any, experiment: Any) -> None:
    if experiment.lifecycle_stage == "deleted":
        command = _in_store(client, f"mlflow experiments restore --experiment-id {experiment.experiment_id}")
        raise SinkGoneError(
            f"the MLflow experiment {experiment.name!r} was deleted; restore it with {command} or use another app_name"
        )


def _in_store(client: Any, command: str) -> str:
    return f"`MLFLOW_TRACKING_URI={shlex.quote(redacted_text(client.tracking_uri))} {command}`"


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
            mlflow_run = client.get_run(run.mlflow_run_id)
        except Exception as error:
            if getattr(error, "error_code", None) != "RESOURCE_DOES_NOT_EXIST":
                raise
            shown_uri = redacted_text(run.tracking_uri)
            log.warning("the MLflow run %s is not in %s; using another one", run.mlflow_run_id, shown_uri)
        else:
            require_active(client, mlflow_run)
            return mlflow_run
    candidates = client.search_runs([experiment_id], filter_string=f"tags.`{RUN_ID_TAG}` = '{run.run_id}'")
    return candidates[0] if candidates else None


def create(client: Any, run: RunInfo, experiment_id: str) -> str:
    """Create the MLflow run and return its id."""
    tags = {RUN_ID_TAG: run.run_id, "mlflow.user": user_name()}
    start_ms = int(run.created * 1000)
    mlflow_run = client.create_run(experiment_id, start_time=start_ms, tags=tags, run_name=run.run_name)
    return str(mlflow_run.info.run_id)


def is_owned_by(owner: str, uri: str, mlflow_run_id: str, run_id: str) -> bool:
    """Return True if an MLflow run exists and its tags name the run and the directory.

    Args:
        owner: Token of the run directory.
        uri: The store or server.
        mlflow_run_id: The MLflow run.
        run_id: Id of the run.

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
        with _explained(f"the MLflow run {run_id} in {redacted_text(uri)} cannot be deleted"):
            mlflow_store.client_of(uri).delete_run(run_id)


def _get_run(uri: str, run_id: str) -> Any:
    mlflow_store.require_password(uri)
    database = mlflow_store.database_of(uri)
    if database is not None and not database.exists():  # MLflow would create one
        return None
    with _explained(f"the MLflow run {run_id} in {redacted_text(uri)} cannot be read"):
        try:
            return mlflow_store.client_of(uri).get_run(run_id)
        except Exception as error:
            if getattr(error, "error_code", None) != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None


@contextlib.contextmanager
def _explained(failure: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the border to MLflow
        reason = redacted_text(str(error)).partition("\n")[0]
        is_about_space = any(text in reason for text in _FULL_DISK_ERRORS)
        advice = "; if the disk is full, free some space first" if is_about_space else ""
        raise TrieyeError(f"{failure}: {reason}{advice}") from error


def sweep_parent(client: Any, experiment_id: str, group: str) -> str:
    """Return the id of the MLflow run that is the parent of a sweep's members; create the run if it does not exist.

    Concurrent processes may race: no store offers "create if absent". A process that sees no parent creates one and
    searches again; the oldest run is the parent, and the creator of a younger one deletes it. If a creation was still
    in flight during that search, two parents remain until `end_sweep` deletes the younger one.
    """
    parents = _sweep_parents(client, experiment_id, group)
    if not parents:
        tags = {SWEEP_TAG: group, SWEEP_PARENT_TAG: "true", "mlflow.user": user_name()}
        now_ms = int(time.time() * 1000)
        new_id = client.create_run(experiment_id, start_time=now_ms, tags=tags, run_name=sweep_name(group)).info.run_id
        parents = _sweep_parents(client, experiment_id, group)
        if parents[0].info.run_id != new_id:
            client.delete_run(new_id)
    parent = parents[0]
    if parent.info.status != "RUNNING":
        client.update_run(parent.info.run_id, status="RUNNING")
    return str(parent.info.run_id)


def sweep_name(group: str) -> str:
    """Return the last two components of a sweep's directory: a date and a time by Hydra's default."""
    return "/".join(PurePath(group).parts[-2:]).lstrip("/") or group


def end_sweep(client: Any, member_id: str, experiment_id: str, group: str) -> None:
    """Mark the parent of a sweep as finished; the next member that opens marks it as running again.

    Args:
        client: The client.
        member_id: The member that ends; it moves to the oldest parent if it has another one.
        experiment_id: The experiment of both.
        group: The sweep.
    """
    parents = _sweep_parents(client, experiment_id, group)
    if not parents:  # deleted by the user
        return
    oldest_id = parents[0].info.run_id
    parent_id = client.get_run(member_id).data.tags.get(PARENT_TAG)
    if parent_id != oldest_id:
        client.set_tag(member_id, PARENT_TAG, oldest_id, synchronous=True)
        for younger_run in parents[1:]:
            client.delete_run(younger_run.info.run_id)
    client.set_terminated(oldest_id, "FINISHED")


def describe_sweep(
    uri: str, member_id: str, *, params: Mapping[str, str], metrics: Mapping[str, float], table: bytes, note: str
) -> None:
    """Replace the summary of a sweep in MLflow: varied parameters, job outcomes and a table of jobs.

    Args:
        uri: The store or server.
        member_id: The MLflow run of any member.
        params: The varied parameters, each with all its values.
        metrics: Number of jobs by outcome, and the best objective.
        table: The jobs, `{"columns": [...], "data": [[...], ...]}`.
        note: The summary as Markdown, for the page of the run.

    Raises:
        ConfigurationError: The URI of the store needs a password, and none is configured.
        TrieyeError: MLflow does not answer, or refuses.
    """
    from mlflow.entities import Metric, Param, RunTag

    mlflow_store.require_password(uri)
    client = mlflow_store.client_of(uri)
    with _explained(f"the sweep cannot be shown in MLflow at {redacted_text(uri)}"):
        parent_id = client.get_run(member_id).data.tags.get(PARENT_TAG)
        if parent_id is None:
            return  # the tag was deleted manually
        parent = client.get_run(parent_id)
        now_ms = int(time.time() * 1000)
        # parameters are immutable in MLflow: a tag stores the values of a parameter that has gained some
        new_params = {key: value[:_MAX_SWEEP_PARAM] for key, value in params.items() if key not in parent.data.params}
        changed_params = {key: value for key, value in params.items() if parent.data.params.get(key, value) != value}
        tags = {_NOTE_TAG: note, _TABLES_TAG: json.dumps([{"path": _SWEEP_TABLE, "type": "table"}]), **changed_params}
        client.log_batch(
            parent_id,
            metrics=[Metric(key, value, now_ms, 0) for key, value in metrics.items()],
            params=[Param(key, value) for key, value in new_params.items()],
            tags=[RunTag(key, value) for key, value in tags.items()],
            synchronous=True,
        )
        client.log_text(parent_id, table.decode(), _SWEEP_TABLE)


def _sweep_parents(client: Any, experiment_id: str, group: str) -> list[Any]:
    # MLflow's filter syntax cannot express a value with both kinds of quotes; `_` matches any character
    pattern = group.replace("'", "_").replace('"', "_")
    filter_string = f"tags.`{SWEEP_PARENT_TAG}` = 'true' AND tags.`{SWEEP_TAG}` LIKE '{pattern}'"
    parents = [run for run in client.search_runs([experiment_id], filter_string) if run.data.tags[SWEEP_TAG] == group]
    return sorted(parents, key=lambda run: (run.info.start_time, run.info.run_id))


def require_active(client: Any, run: Any) -> None:
    """Check that an MLflow run accepts points.

    Raises:
        SinkGoneError: The run or its experiment was deleted.
    """
    if run.info.lifecycle_stage == "deleted":
        _require_active_experiment(client, client.get_experiment(run.info.experiment_id))
        command = _in_store(client, f"mlflow runs restore --run-id {run.info.run_id}")
        raise SinkGoneError(f"the MLflow run was deleted and is in MLflow's trash; restore it with {command}")


def mlflow_name(name: str) -> str:
    """Escape the characters of `name` that MLflow rejects, such as `@` as `_x40_`; a valid name stays unchanged.

    The mapping is injective: a valid name that looks escaped (`a_x40_`) is escaped too. An escaped name longer than
    `MAX_NAME_LENGTH` is truncated and ends in a hash of the original name.
    """
    escaped_name = name
    if _INVALID.search(name) or _LOOKS_ESCAPED.search(name):
        escaped_name = _AMBIGUOUS_UNDERSCORE.sub("_x5f_", name)
        escaped_name = _INVALID.sub(lambda match: f"_x{ord(match[0]):x}_", escaped_name)
    if not name:
        return "_x_"
    return f"{escaped_name[:200]}{_hash_suffix(name)}" if len(escaped_name) > MAX_NAME_LENGTH else escaped_name


def artifact_directory(name: str) -> str:
    """Return `mlflow_name(name)` as a relative path that file systems accept; the mapping stays injective."""
    escaped_name = mlflow_name(name).encode()
    if len(escaped_name) <= _MAX_PATH_BYTES:
        return escaped_name.decode()
    return f"{escaped_name[: _MAX_PATH_BYTES - 24].decode(errors='ignore')}{_hash_suffix(name)}"


def _hash_suffix(name: str) -> str:
    return f"_xsha{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}_"
