"""ActorLogic: everything the hub does, as a plain object without Ray."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trieye.actor_state import ActorState
from trieye.config import TrieyeConfig
from trieye.exceptions import CheckpointError, ProcessingError, RunClosedError
from trieye.hub_files import HubFiles
from trieye.path_manager import PathManager
from trieye.persistence.encoding import EncodedState
from trieye.persistence.run_record import RunRecord
from trieye.schemas import LoadedTrainingState, MetricSummary, RawMetricEvent, RunStatus
from trieye.serializer import Serializer
from trieye.sinks.fan_out import FanOut
from trieye.sinks.registry import make_sinks
from trieye.stats.batch import EventBatch
from trieye.stats.point import Point
from trieye.stats_processor import StatsProcessor
from trieye.ticker import Ticker
from trieye.tracking import CLOSE_TIMEOUT_S, Tracking

logger = logging.getLogger(__name__)

MAX_PENDING_EVENTS = 50_000
"""More than this are put into their windows at once, so that memory stays bounded however slow the timer is."""

SYNC_TIMEOUT_S = 3.0
"""How long `force_process_and_log` waits for the sinks."""


class ActorLogic:
    """Collect events, close windows, feed the sinks, save and restore; used by the Ray actor and by the thread alike.

    Logging never waits for a save: only `_lock` is shared, and it is held for arithmetic only.

    Args:
        config: The config of the run.
        actor_state: Pending events; a new one if None.
        path_manager: File names of the run; made from the config if None. If given, `open` creates no directories,
            log file or config dump: the caller has its own.
        serializer: Reads and writes states.
        mlflow_run_id: The MLflow run to continue, for an injected client.
        mlflow_client: The MLflow client to use.
        tb_writer: A TensorBoard writer to use.
        clock: Monotonic clock in seconds.
        wall_clock: Unix time in seconds.

    Raises:
        ConfigurationError: A name is not safe, or the root directory cannot be used.
        RunLockedError: Another process writes to the run.
    """

    def __init__(  # noqa: PLR0913 - the first seven are the drop-in API
        self,
        config: TrieyeConfig,
        actor_state: ActorState | None = None,
        path_manager: PathManager | None = None,
        serializer: Serializer | None = None,
        mlflow_run_id: str | None = None,
        mlflow_client: Any = None,
        tb_writer: Any = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self._clock, self._wall_clock = clock, wall_clock
        self._started, self._started_unix = clock(), wall_clock()
        self._state = actor_state or ActorState()
        self.files = HubFiles(config, path_manager, serializer or Serializer())
        self._injected_run_id = mlflow_run_id
        self._clients = {"mlflow_client": mlflow_client, "tb_writer": tb_writer}
        self._lock = threading.Lock()
        self._last_asked = 0.0
        self._num_save_failures = 0
        self._closed = False
        self._sinks: FanOut
        self._stats: StatsProcessor
        self._ticker: Ticker

    def open(self, *, owns_run: bool = True, extra_config: Mapping[str, Any] | None = None) -> "ActorLogic":
        """Begin an attempt: directories, identity, sinks and the timer; heavy imports happen in the sinks' threads.

        Args:
            owns_run: Take the run's lock and count a new attempt here; False if the driver did.
            extra_config: What configs.json holds besides the config of trieye.
        """
        record = self.files.open(owns_run=owns_run)
        try:
            self._start(record, extra_config or {})
        except BaseException:
            self.files.close("FAILED", record.summary)
            raise
        return self

    def _start(self, record: RunRecord, extra_config: Mapping[str, Any]) -> None:
        sinks = make_sinks(self.config.sinks, on_run_id=self.files.note_mlflow_run_id, **self._clients)
        self._sinks = FanOut(
            sinks,
            self.files.run_info(self._injected_run_id),
            max_backlog_points=self.config.sinks.mlflow.max_backlog_points,
        )
        self._stats = StatsProcessor(
            self.config.stats,
            self.config.run_name,
            sinks=self._sinks,
            undeclared=self.config.stats.undeclared or ("warn" if self.config.stats.metrics else "auto"),
            started=self._started_unix,
            run_created=record.created,
        )
        self._stats.aggregator.remember(record.summary)
        self._state.drops = self._stats.aggregator.drops
        self.tracking = Tracking(self._sinks, self.files, self._check_open, sent_at=self.config.sent_at)
        self.tracking.begin(extra_config)
        self._ticker = Ticker(self.tick, self.config.stats.processing_interval_seconds)

    # events

    def log_event(self, event: RawMetricEvent) -> None:
        """Accept one event; anything else than an event is counted and warned about.

        Raises:
            RunClosedError: The run was shut down.
        """
        self._check_open()
        if isinstance(event, RawMetricEvent):
            self._state.add_event(event, arrived=self._wall_clock())
        else:
            self._state.drops.add("invalid", type(event).__name__)
        self._bound_memory()

    def log_batch_events(self, events: Iterable[RawMetricEvent]) -> None:
        """Accept events; one that is not valid never costs its neighbors."""
        for event in events:
            self.log_event(event)

    def log_columns(self, batch: EventBatch) -> None:
        """Accept a batch of events in columns."""
        self._check_open()
        self._state.add_batch(batch)
        self._bound_memory()

    def count_dropped(self, reason: str, count: int) -> None:
        """Count events that a client had to drop."""
        self._state.drops.add(reason, "*", count)

    def _bound_memory(self) -> None:
        if len(self._state) > MAX_PENDING_EVENTS:
            with self._lock:
                self._ingest()

    def _check_open(self) -> None:
        if self._closed:
            raise RunClosedError(f"run {self.config.run_name!r} is closed; start it again to log more")

    # processing

    def process_and_log(self, current_global_step: int) -> None:
        """Say that a step is complete; does nothing if the last call was less than the processing interval ago."""
        at = self._at()
        if at - self._last_asked < self.config.stats.processing_interval_seconds:
            return
        self._last_asked = at
        self._pass(step=current_global_step)

    def force_process_and_log(self, current_global_step: int) -> None:
        """Log everything up to a step now, open windows too; returns when the sinks that work have it."""
        self._pass(step=current_global_step, force=True)
        self._sinks.flush(SYNC_TIMEOUT_S, working_only=True)

    process_and_log_metrics = process_and_log

    def tick(self) -> None:
        """Close the windows that later steps have completed; the timer calls it every processing interval."""
        self._pass(step=None)

    def flush(self, complete_step: int | None = None) -> None:
        """Put every accepted event into its window.

        Args:
            complete_step: Close windows up to this step.

        Raises:
            ProcessingError: A pass failed since the last call.
        """
        with self._lock:
            at = self._ingest()
            if complete_step is not None:
                self._stats.advance(at=at, step=complete_step)
        self._report_failure()

    def _report_failure(self) -> None:
        failure = self._ticker.take_failure()
        if failure is not None:
            raise ProcessingError(f"metrics of run {self.config.run_name!r} could not be processed") from failure

    def _pass(self, *, step: int | None, force: bool = False) -> None:
        with self._lock:
            if self._closed:
                return
            at = self._ingest()
            points = self._stats.flush(at=at, step=step) if force else self._stats.advance(at=at, step=step)
            for point in points:
                self._state.note_logged(point.metric, at)
            self._state.note_latest(self._stats.aggregator.latest())
            if step is not None:
                self._state.update_last_processed_step(step)
            self._state.update_last_processed_time(at)

    def _ingest(self) -> float:
        at = self._at()
        for batch in self._state.take():
            try:
                self._stats.ingest([batch], at=at)
            except Exception:  # a border to user data: what it raises must not cost other batches; it is counted
                logger.exception("a batch of %d events could not be put into windows", len(batch))
                self._state.drops.add("invalid", ", ".join(batch.names[:3]), len(batch))
        return at

    def _at(self) -> float:
        return self._clock() - self._started

    # saving and loading

    def save_checkpoint(
        self, step: int, state: EncodedState, metadata: Mapping[str, Any], hub_state: Mapping[str, Any]
    ) -> str:
        """Write a checkpoint and return its path when it is safe on disk.

        Args:
            step: The step that is complete.
            state: What to save.
            metadata: Plain data for the manifest.
            hub_state: What `get_state` returned when the step was complete.

        Raises:
            CheckpointError: It could not be written; counted in `persistence/save_failures`.
        """
        manifest = {**metadata, "hub": hub_state}
        return str(self._saved(step, lambda: self.files.save_checkpoint(step, state, manifest)))

    def save_training_state(self, *, actor_state_data: dict[str, Any] | None = None, **state: Any) -> None:
        """Write a checkpoint, and a buffer if asked to, of the drop-in API.

        Args:
            actor_state_data: State of the hub; the present one if None.
            **state: `nn_state_dict`, `optimizer_state_dict`, `buffer_content`, `global_step`, `episodes_played`,
                `total_simulations_run`, `is_best`, `save_buffer`, `model_config_dict`, `env_config_dict`, `user_data`.

        Raises:
            CheckpointError: Nothing was written; counted in `persistence/save_failures`.
        """
        step = state["global_step"]
        hub_state = self.get_state(_plain_step(step)) if actor_state_data is None else actor_state_data
        self._saved(step, lambda: self.files.save_training_state(hub_state, **state))

    def _saved(self, step: Any, write: Callable[[], Path]) -> Path:
        self._check_open()
        try:
            path = write()
        except Exception as error:  # a user's objects: whatever they raise, the caller and the curves get to know
            self._num_save_failures += 1
            failures = Point(
                "persistence/save_failures", self._num_save_failures, _plain_step(step), self._wall_clock()
            )
            self._sinks.write([failures])
            logger.error("saving step %s failed: %s", step, error)  # noqa: TRY400 - raised to the caller below
            raise CheckpointError(f"saving step {step} of run {self.config.run_name!r} failed: {error}") from error
        self.tracking.note_checkpoint(path)
        return path

    def load_initial_state(self) -> LoadedTrainingState:
        """Return what an earlier attempt or run left, by the rules of the config, and go on with its open windows."""
        self._check_open()
        loaded, hub_state = self.files.load_initial_state()
        self.set_state(hub_state)
        return loaded

    def restore(
        self, *, group: str | None = None, config_hash: str | None = None
    ) -> tuple[EncodedState, dict[str, Any]] | None:
        """Return the state to go on with and where it comes from; open windows go on as they were.

        Args:
            group: The sweep that the run belongs to; its other members are never resumed.
            config_hash: Only a run with the same one is resumed.

        Raises:
            CheckpointError: There are checkpoints, and none of them is whole.
        """
        self._check_open()
        found = self.files.find_checkpoint(group=group, config_hash=config_hash)
        if found is None:
            return None
        state, hub_state, origin = found
        self.set_state(hub_state)
        return state, origin

    def get_state(self, complete_step: int | None = None) -> dict[str, Any]:
        """Return what a checkpoint keeps of the hub, as plain data.

        Args:
            complete_step: Close windows up to this step first: they are logged now, and not again by another attempt.
        """
        with self._lock:
            at = self._ingest()
            if complete_step is not None:
                self._stats.advance(at=at, step=complete_step)
            return self._present_state()

    def _present_state(self) -> dict[str, Any]:
        return {**self._state.get_persistable_state(), "stats": self._stats.aggregator.to_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where `get_state` left off; events that are pending stay pending."""
        with self._lock:
            self._state.restore_from_state(dict(state))
            self._stats.aggregator.restore(state.get("stats", {}), at=self._at())

    def save_run_config(self, configs: Mapping[str, Any]) -> None:
        """Add to configs.json, and record it."""
        self.tracking.save_run_config(configs)

    save_initial_config = save_run_config

    def summary(self) -> dict[str, MetricSummary]:
        """Return last, min, max and step of the points of each metric, over all attempts."""
        with self._lock:
            self._ingest()
            return {name: MetricSummary(**seen) for name, seen in self._stats.summary.items()}

    def health(self) -> dict[str, Any]:
        """Return the state of each sink, drops by reason, late events, failed saves, and the process of the hub."""
        return {
            "pid": os.getpid(),
            "sinks": [asdict(health) for health in self._sinks.health()],
            "dropped": dict(self._state.drops.by_reason),
            "late": self._stats.aggregator.num_late,
            "save_failures": self._num_save_failures,
        }

    def shutdown(self, status: RunStatus = "FINISHED") -> None:
        """Log what is left, close the sinks and record how the run ended; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._ticker.stop()
        try:
            state = self._last_pass(status)
            self._report_failure()
        except BaseException:
            self._sinks.close("FAILED", CLOSE_TIMEOUT_S)
            self.files.close("FAILED", self._stats.summary)
            raise
        try:
            self._sinks.close(status, CLOSE_TIMEOUT_S)
        finally:
            self.files.close(status, self._stats.summary, state)

    def _last_pass(self, status: RunStatus) -> dict[str, Any]:
        """Log what is left and return the state of the hub after it."""
        goes_on = status == "KILLED" and self.files.has_checkpoint
        with self._lock:
            at = self._ingest()
            if goes_on:  # another attempt closes the open windows, with the events that are still to come
                self._stats.advance(at=at)
            else:
                self._stats.flush(at=at)
            return self._present_state()


def _plain_step(step: Any) -> int:
    return step if isinstance(step, int) and abs(step) < 1 << 62 else 0
