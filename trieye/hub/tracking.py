"""Tracking: what a run records besides points: parameters, tags, files, its config."""

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from trieye.config.redaction import redacted
from trieye.exceptions import JournalError, JournalFullError, SerializationError
from trieye.files.run_record import RunStatus
from trieye.hub.artifacts import CHECKPOINTS_PATH
from trieye.hub.directory import HubFiles
from trieye.hub.requests import request
from trieye.sinks.fan_out import FanOut
from trieye.stats.operations import LogArtifact, LogParams, Operation, SetTags

logger = logging.getLogger(__name__)

READY_TIMEOUT_S = 7.5
"""Clients use the MLflow run id as a probe and give it 10 s, in which the actor's process has to start, too."""

READY_AFTER_START_S = 6.0
"""The same where it is not known when the actor was asked for; opening MLflow takes 3 s on a calm machine."""

RECENT_S = 30.0
"""An actor that starts later than that after its config was sent is a restarted one."""

CLOSE_TIMEOUT_S = 10.0
"""Clients of the drop-in API wait 15 s for `shutdown`."""

KILLED_CLOSE_TIMEOUT_S = 6.0
"""A scheduler that sends SIGTERM waits 30 s before it kills, and saving takes its time, too."""


class Recording(Protocol):
    """Puts an operation into the history of the run, once for each key."""

    def __call__(self, operation: Operation, *, key: str = "") -> None:
        """Put it there."""


class Tracking:
    """Records parameters, tags and files in the trackers, and in the run's own files.

    Args:
        record: Puts an operation into the history of the run.
        sinks: The sinks of the run.
        files: The files of the run.
        check_open: Raises if the run is closed.
        sent_at: Unix time in seconds at which the hub was asked for, if another process did.
    """

    def __init__(
        self,
        record: Recording,
        sinks: FanOut,
        files: HubFiles,
        check_open: Callable[[], None],
        *,
        sent_at: float | None,
    ) -> None:
        self._record, self._sinks, self._files, self._check_open = record, sinks, files, check_open
        self._ready_by = time.monotonic() + _ready_within_s(sent_at)

    def begin(self, extra_config: Mapping[str, Any], *, key: str) -> None:
        """Record the directories of the run and its config.

        Args:
            extra_config: What configs.json holds besides the config of trieye.
            key: The same for all hubs of an attempt: it is recorded once.
        """
        self._record(LogParams(_texts(self._files.directory_params())), key=f"{key}:params")
        if self._files.makes_run:
            config = self._files.save_config(extra_config)
            self._record(LogArtifact(self._in_run(config), "config"), key=f"{key}:config")

    @request()
    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record parameters of the run."""
        self._check_open()
        self._record(LogParams(_texts(params)))

    @request()
    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run."""
        self._check_open()
        self._files.set_tags(tags)
        self._record(SetTags(_texts(tags)))

    @request()
    def log_artifact(self, path: Path, artifact_path: str | None = None) -> None:
        """Keep a file or directory with the run; a copy of it is made before this returns.

        Raises:
            SerializationError: There is no such file, or no room for the copy.
        """
        self._check_open()
        held = self._files.artifacts.hold(path.absolute())
        self._record_copy(held, artifact_path)

    def _record_copy(self, held: Path, artifact_path: str | None) -> None:
        artifacts = self._files.artifacts
        try:
            self._record(LogArtifact(self._in_run(held), artifact_path))
        except BaseException:
            artifacts.drop(held)
            raise
        artifacts.note_recorded(held, self._files.history.end)

    def _in_run(self, path: Path) -> str:
        return str(path.relative_to(self._files.paths.run_base_dir))

    def save_run_config(self, configs: Mapping[str, Any]) -> None:
        """Add to configs.json, and record it."""
        self._check_open()
        self._record(LogArtifact(self._in_run(self._files.add_to_config(configs)), "config"))

    def note_checkpoint(self, path: Path) -> None:
        """Tell the mirror of a checkpoint, point from the trackers to it, hand it to them if the config says so."""
        if self._files.mirror is not None:
            self._files.mirror.wake()
        is_best = self._files.paths.best_checkpoint_path.resolve() == path.resolve()
        place = str(path.relative_to(self._files.paths.app_root_dir))  # which may be moved
        self._record(
            SetTags({"trieye.latest_checkpoint": place, **({"trieye.best_checkpoint": place} if is_best else {})})
        )
        try:
            if self._sinks.trackers and (staged := self._files.artifacts.stage(path, is_best=is_best)) is not None:
                self._record_copy(staged, CHECKPOINTS_PATH)
        except JournalFullError:
            raise
        except (SerializationError, OSError) as error:  # it is saved, and deleted again, or there is no room for a copy
            logger.warning("checkpoint %s is not handed to the trackers: %s", path.name, error)

    def release(self) -> None:
        """Delete the copies of files and checkpoints that every tracker has, also after a kill."""
        history, trackers = self._files.history, self._sinks.trackers
        try:
            if trackers and self._files.artifacts.has_any(history.end):
                cursors = [history.cursor(name) for name in trackers]
                self._files.artifacts.release(min(0 if cursor is None else cursor.index for cursor in cursors))
        except (JournalError, OSError) as error:  # it is tried again
            logger.warning("copies that the trackers have cannot be deleted now: %s", error)

    @request("wait")
    def get_mlflow_run_id(self) -> str | None:
        """Return the id of the MLflow run; None if MLflow is off or not ready soon after the start of the hub."""
        return self.wait_mlflow_run_id(max(self._ready_by - time.monotonic(), 0.0))

    @request("wait")
    def wait_mlflow_run_id(self, timeout_s: float) -> str | None:
        """Return the id of the MLflow run; None if MLflow is off or not ready in time."""
        return self._sinks.mlflow_run_id(timeout_s)

    @request()
    def close_tb_writer(self) -> None:
        """Flush and close the TensorBoard sink; the others go on."""
        self._sinks.close_sink("tensorboard", CLOSE_TIMEOUT_S)


def close_timeout_s(status: RunStatus) -> float:
    """Return how long to wait for the sinks at the end: little if the run was asked to stop and may be started again.

    What they do not have by then is delivered by the next attempt.
    """
    return KILLED_CLOSE_TIMEOUT_S if status == "KILLED" else CLOSE_TIMEOUT_S


def _ready_within_s(sent_at: float | None) -> float:
    if sent_at is None or not 0.0 <= time.time() - sent_at < RECENT_S:
        return READY_AFTER_START_S
    return sent_at + READY_TIMEOUT_S - time.time()


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {_text(str(name)): _text(str(redacted(value, str(name)))) for name, value in values.items()}


def _text(value: str) -> str:
    # a lone surrogate, as a file name has that is no UTF-8, cannot be stored
    return value.encode("utf-8", "backslashreplace").decode()
