"""The summary of a sweep in MLflow, logged to the parent run of its members."""

import json
import time
from collections.abc import Mapping
from typing import Any

from trieye.config.redaction import redacted_text
from trieye.exceptions import TrieyeError
from trieye.sinks.mlflow import store as mlflow_store
from trieye.sinks.mlflow.run import PARENT_TAG

_TABLE = "jobs.json"
_LONGEST_PARAM = 500
_NOTE, _TABLES = "mlflow.note.content", "mlflow.loggedArtifacts"


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
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, RunTag

    mlflow_store.require_password(uri)
    mlflow_store.prepare_client(uri)
    client: Any = MlflowClient(tracking_uri=uri)
    try:
        parent_id = client.get_run(member_id).data.tags.get(PARENT_TAG)
        if parent_id is None:
            return  # the tag was deleted manually
        parent = client.get_run(parent_id)
        now = int(time.time() * 1000)
        # parameters are immutable in MLflow: a tag stores the values of a parameter that has gained some
        fresh = {key: value[:_LONGEST_PARAM] for key, value in params.items() if key not in parent.data.params}
        grown = {key: value for key, value in params.items() if parent.data.params.get(key, value) != value}
        tags = {_NOTE: note, _TABLES: json.dumps([{"path": _TABLE, "type": "table"}]), **grown}
        client.log_batch(
            parent_id,
            metrics=[Metric(key, value, now, 0) for key, value in metrics.items()],
            params=[Param(key, value) for key, value in fresh.items()],
            tags=[RunTag(key, value) for key, value in tags.items()],
        )
        client.log_text(parent_id, table.decode(), _TABLE)
    except Exception as error:  # the border to MLflow
        reason = redacted_text(str(error)).partition("\n")[0]
        raise TrieyeError(f"the sweep cannot be shown in MLflow at {redacted_text(uri)}: {reason}") from error
