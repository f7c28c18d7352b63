"""Hub: what a `Run` needs of the place that collects, logs and saves."""

import os
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

from trieye.config import TrieyeConfig
from trieye.files.run_record import MetricSummary, RunStatus
from trieye.snapshot.encode import EncodedState
from trieye.stats.batch import EventBatch
from trieye.stats.operations import Operation


class Channel(Protocol):
    """The way on which logged values reach a hub, from any process that it can be sent to; safe to use from threads.

    Every call returns when the hub has accepted what it was given, which is then safe. It may be made again with the
    same number or key: the hub takes it once. All of them raise

    - ConnectionError: The hub cannot be reached now; it may have accepted what was sent.
    - JournalError: It cannot store anything now.
    - TrieyeError: It will never take it, since it was closed or is dead.

    Attributes:
        key: What tells this hub from every other one.
        run_name: Name of the run.
        works_at_exit: Whether it can still be used when the process ends.
    """

    key: str
    run_name: str
    works_at_exit: bool

    def log(self, batch: EventBatch, *, client: str, seq: int) -> None:
        """Hand over events.

        Args:
            batch: The events.
            client: Who sends them.
            seq: Number of the batch, one more than that of the client's last one.

        Raises:
            SequenceGapError: The hub does not know the batch before it.
        """

    def count_dropped(self, reason: str, count: int, *, key: str) -> None:
        """Count events that had to be dropped before they reached the hub."""

    def log_operation(self, operation: Operation, *, key: str) -> None:
        """Hand over a histogram, a picture or a text."""


class Hub(Channel, Protocol):
    """Collects events, logs points, saves and restores; safe to call from several threads."""

    def flush(self, complete_step: int | None = None) -> None:
        """Return when every accepted event is in its window, and windows up to a step are closed."""

    def get_state(self, complete_step: int) -> dict[str, Any]:
        """Return what a checkpoint keeps of the hub, after closing windows up to a step."""

    def save(
        self, step: int, state: EncodedState, metadata: Mapping[str, Any], hub_state: Mapping[str, Any]
    ) -> "Future[str]":
        """Write a checkpoint in the background; the result is its path.

        Args:
            step: The step that is complete.
            state: What to save.
            metadata: Plain data for the manifest.
            hub_state: What `get_state` returned when the step was complete.
        """

    def restore(self, *, group: str | None, config_hash: str | None) -> tuple[EncodedState, dict[str, Any]] | None:
        """Return the state to go on with and its origin; see `ActorLogic.restore`."""

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record parameters."""

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags."""

    def log_artifact(self, path: Path, artifact_path: str | None) -> None:
        """Keep a file with the run."""

    def summary(self) -> dict[str, MetricSummary]:
        """Return the extremes of the points of each metric."""

    def mlflow_run_id(self, timeout_s: float) -> str | None:
        """Return the id of the MLflow run, None if it is not known in time."""

    def health(self) -> dict[str, Any]:
        """Return the state of the sinks and what was dropped."""

    def progress(self) -> str:
        """Return what takes long at the moment and how far it is, in words; it changes as long as work goes on."""

    def close(self, status: RunStatus) -> None:
        """Log what is left, record how the run ended, and let go of the hub."""


def start_hub(config: TrieyeConfig, extra_config: Mapping[str, Any]) -> Hub:
    """Start the hub that `config.runtime` asks for; Ray is imported only if it is needed.

    Args:
        config: The config of the run.
        extra_config: What configs.json holds besides.
    """
    if config.runtime.kind == "local":
        from trieye.hub.in_thread import LocalHub

        return LocalHub(config, extra_config)
    # the actor prints results; Ray would hide the second of two that look alike
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    from trieye.hub.in_ray import RayHub

    return RayHub(config, extra_config)
