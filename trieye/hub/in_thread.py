"""LocalHub: the hub as threads of this process; no Ray."""

import uuid
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from trieye.config import TrieyeConfig
from trieye.exceptions import ConfigurationError
from trieye.files.run_record import MetricSummary, RunStatus
from trieye.hub.logic import ActorLogic
from trieye.hub.save_thread import SaveThread
from trieye.snapshot.encode import EncodedState
from trieye.stats.batch import EventBatch
from trieye.stats.operations import Operation


class LocalHub:
    """A hub in this process: deterministic, for debugging, tests and small runs.

    Args:
        config: The config of the run, whose lock this process holds.
        extra_config: What configs.json holds besides.
    """

    works_at_exit = True

    def __init__(self, config: TrieyeConfig, extra_config: Mapping[str, Any]) -> None:
        self.key = uuid.uuid4().hex
        self.run_name = config.run_name
        self._logic = ActorLogic(config).open(owns_run=False, extra_config=extra_config)
        self._saving = SaveThread()
        self.flush = self._logic.flush
        self.get_state = self._logic.get_state
        self.log_params = self._logic.tracking.log_params
        self.set_tags = self._logic.tracking.set_tags
        self.progress = self._logic.status.progress

    def log(self, batch: EventBatch, *, client: str, seq: int) -> None:
        """Return when the batch is accepted."""
        self._logic.log_columns(batch, client=client, seq=seq)

    def count_dropped(self, reason: str, count: int, *, key: str) -> None:
        """Count events that had to be dropped before they reached the hub."""
        self._logic.count_dropped(reason, count, key=key)

    def log_operation(self, operation: Operation, *, key: str) -> None:
        """Return when the histogram, the picture or the text is accepted."""
        self._logic.log_operation(operation, key=key)

    def save(
        self, step: int, state: EncodedState, metadata: Mapping[str, Any], hub_state: Mapping[str, Any]
    ) -> "Future[str]":
        """Write a checkpoint on the writer thread."""
        return self._saving.submit(self._logic.save_checkpoint, step, state, metadata, hub_state)

    def restore(self, *, group: str | None, config_hash: str | None) -> tuple[EncodedState, dict[str, Any]] | None:
        """Return the state to go on with and its origin."""
        return self._logic.restore(group=group, config_hash=config_hash)

    def log_artifact(self, path: Path, artifact_path: str | None) -> None:
        """Keep a file with the run."""
        self._logic.tracking.log_artifact(path, artifact_path)

    def summary(self) -> dict[str, MetricSummary]:
        """Return the extremes of the points of each metric."""
        return self._logic.summary()

    def mlflow_run_id(self, timeout_s: float) -> str | None:
        """Return the id of the MLflow run, None if it is not known in time."""
        return self._logic.tracking.mlflow_run_id(timeout_s)

    def health(self) -> dict[str, Any]:
        """Return the state of the sinks and what was dropped."""
        return self._logic.health()

    def close(self, status: RunStatus) -> None:
        """Wait for saves, log what is left and close the sinks."""
        try:
            self._saving.close()
        finally:  # also when Ctrl-C ends the waiting
            self._logic.shutdown(status, patient=status != "KILLED")

    def __reduce__(self) -> tuple[Any, ...]:
        raise ConfigurationError(
            f"run {self.run_name!r} lives in this process (runtime=local), so neither it nor its client can be sent to "
            "another one; set runtime=ray, or use threads"
        )
