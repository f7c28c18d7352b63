"""HubLogic: everything the hub does, as a plain object without Ray."""

import logging
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from trieye.checkpoints.directory import damaged_parts
from trieye.config import TrieyeConfig
from trieye.exceptions import CheckpointError, JournalFullError, RunClosedError, noted
from trieye.files.run_record import MetricSummary, RunRecord, RunStatus
from trieye.hub.directory import HubFiles
from trieye.hub.ledger import Ledger
from trieye.hub.marks import pack_state, packed
from trieye.hub.pending import PendingEvents
from trieye.hub.requests import owners, request
from trieye.hub.saved_states import Restored, Saved
from trieye.hub.status import HubStatus
from trieye.hub.supersession import after_restore, with_opening
from trieye.hub.ticker import Ticker
from trieye.hub.tracking import Tracking, close_timeout_s
from trieye.process.progress import say
from trieye.sinks.base import Sink
from trieye.sinks.fan_out import FanOut, make_sinks
from trieye.snapshot.encode import EncodedState
from trieye.stats.operations import Operation

logger = logging.getLogger(__name__)

SYNC_TIMEOUT_S = 3.0
"""How long `force_process_and_log` waits for the sinks."""


class HubLogic:
    """Collect events, close windows, feed the sinks, save and restore; used by the Ray actor and by the thread alike.

    Logging and saving share the ledger's lock only, which a thread holds for arithmetic and small writes, so that no
    log call waits for a save.

    Args:
        config: The config of the run.
        files: Its files; those of the config if None.
        sinks: Sinks besides those of the config.
        clock: Monotonic clock in seconds.
        wall_clock: Unix time in seconds.

    Raises:
        ConfigurationError: A name is not safe, or the root directory cannot be used.
        RunLockedError: Another process writes to the run.
    """

    def __init__(
        self,
        config: TrieyeConfig,
        *,
        files: HubFiles | None = None,
        sinks: Sequence[Sink] = (),
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.config, self.files, self._pending = config, files or HubFiles(config), PendingEvents()
        self._clock, self._wall_clock, self._own_sinks = clock, wall_clock, sinks
        self._closed, self._has_told = False, False

    def open(
        self, *, owns_run: bool = True, is_restart: bool = False, extra_config: Mapping[str, Any] | None = None
    ) -> Self:
        """Begin an attempt: directories, identity, journal, sinks and the timer; heavy imports happen in their threads.

        The hub logs now what an earlier hub accepted and did not log.

        Args:
            owns_run: Take the run's lock and count a new attempt here; False if the driver did.
            is_restart: A hub of this very attempt died.
            extra_config: What configs.json holds besides the config of trieye.
        """
        record = self.files.open(owns_run=owns_run, is_restart=is_restart)
        try:
            self._start(record, extra_config or {})
        except BaseException as error:
            with noted(error, "closing what was open"), ExitStack() as rest:
                rest.callback(self.files.close, "FAILED", record.summary)
                if hasattr(self, "_sinks"):
                    self._sinks.close("FAILED", SYNC_TIMEOUT_S)
            raise
        return self

    def _start(self, record: RunRecord, extra_config: Mapping[str, Any]) -> None:
        stats, journal, history = self.config.stats, self.files.journal, self.files.history
        clocks = {"clock": self._clock, "wall_clock": self._wall_clock}
        undeclared = stats.undeclared or ("warn" if stats.metrics else "auto")
        self._ledger = Ledger(stats, journal, history, self._pending, undeclared=undeclared, **clocks)
        self._ledger.open(attempt=record.attempt, created=record.created, run_id=record.run_id)
        if not self._ledger.stats.summary:  # a run of an earlier version, or one whose journal was lost
            self._ledger.stats.remember(record.summary)
        self._sinks = FanOut(self._make_sinks(), self.files.run_info(), history)
        self.tracking = Tracking(self._record, self._sinks, self.files, self._check_open, self.config)
        self.tracking.begin(extra_config, key=f"begin:{record.run_id}:{record.attempt}")
        if journal.num_lost:
            key = f"repair:{zlib.crc32(str(journal.damage).encode())}"  # a kill before it is forgotten: counted once
            self._ledger.count_dropped([("journal_damage", "*", journal.num_lost)], key=key)
        journal.forget_repair()
        self.status = HubStatus(self._ledger, self._sinks, self.files, every_s=stats.hub_metrics_interval_s, **clocks)
        self.parts = owners(self, self._ledger, self.tracking, self.status)
        self._ticker = Ticker(self.tick, stats.processing_interval_seconds, run_name=self.config.run_name)

    def _make_sinks(self) -> list[Sink]:
        return make_sinks(self.config.sinks, on_run_id=self.files.note_mlflow_run_id, own=self._own_sinks)

    @request("ingest")
    def count_dropped(self, reason: str, count: int, *, key: str = "") -> None:
        """Count events that a client had to drop; see `log_event`."""
        self._check_open()
        self._ledger.count_dropped([(reason, "*", count)], key=key)

    @request("ingest")
    def log_operation(self, operation: Operation, *, key: str = "") -> None:
        """Record a histogram, a picture or another medium; see `log_event`."""
        self._check_open()
        self._record(operation, key=key)

    def _record(self, operation: Operation, *, key: str = "") -> None:
        self._ledger.record(operation, key=key)
        self._show()

    def _check_open(self) -> None:
        if self._closed:
            raise RunClosedError(f"run {self.config.run_name!r} is closed; start it again to log more")

    def tick(self) -> None:
        """Close the windows that later steps have completed; the timer calls it every processing interval."""
        try:
            self._pass(step=None)
            self._ledger.compact()
            self.files.history.roll()
            self.tracking.release()
            self.status.update()
        except JournalFullError as error:
            self.status.note_full(error)
        else:
            self.status.note_full(None)

    @request("ingest")
    def flush(self, complete_step: int | None = None) -> None:
        """Put every accepted event into its window.

        Args:
            complete_step: Close windows up to this step.

        Raises:
            ProcessingError: A pass failed since the last call.
            JournalFullError: There is no room now.
        """
        if complete_step is None:
            self._ledger.ingest()
        else:
            self._pass(step=complete_step)
        self._ticker.report()

    def _pass(self, *, step: int | None, force: bool = False) -> None:
        if not self._closed:
            self._ledger.advance(step=None if step is None else plain_step(step), force=force)
            self._show()

    @request("save")
    def save_checkpoint(self, step: int, state: EncodedState, metadata: Mapping[str, Any], hub_state: bytes) -> Saved:
        """Write a checkpoint and return its place when it is safe on disk.

        Args:
            step: The step that is complete.
            state: What to save.
            metadata: Plain data for the manifest.
            hub_state: What `packed_state` returned when the step was complete.

        Raises:
            CheckpointError: It could not be written; counted in `persistence/save_failures`.
        """
        is_tracked = not metadata.get("is_crash")
        path = self._saved(
            step, lambda: self.files.states.save(step, state, metadata, hub_state), is_tracked=is_tracked
        )
        return Saved(str(path), damaged_parts(path) if state.parts else ())

    @request("save")
    def rate_checkpoint(self, step: int, objective: float | None) -> None:
        """Note the objective of a checkpoint that was saved before it was known; None: it was not measured after all.

        Raises:
            CheckpointError: There is no such checkpoint, or it cannot be noted.
        """
        self._check_open()
        self.files.states.rate(step, objective)

    def _saved(self, step: Any, write: Callable[[], Path], *, is_tracked: bool = True) -> Path:
        self._check_open()
        try:
            with self.status.doing(f"saving step {step}"):
                path = write()
        except Exception as error:  # a user's objects: whatever they raise, the caller and the curves get to know
            self.status.note_failed_save(plain_step(step))
            logger.error("saving step %s failed: %s", step, error)  # noqa: TRY400 - raised to the caller below
            raise CheckpointError(f"saving step {step} of run {self.config.run_name!r} failed: {error}") from error
        with suppress(JournalFullError):  # it is safe, although the trackers do not know it
            if is_tracked:
                self.tracking.note_checkpoint(path)
        return path

    @request("ingest", is_slow=True)
    def resume(self, restored: Restored | None, *, key: str = "") -> None:
        """Continue from a checkpoint that the driver has restored; open windows continue as they were.

        The hub supersedes every point logged after the checkpoint. Without a checkpoint the run starts from scratch,
        and the hub supersedes every point of earlier attempts.

        Args:
            restored: The checkpoint, without its state; None if the run has none. If it belongs to another run, the
                points that this run logged before its step are kept.
            key: See `log_event`.
        """
        self._check_open()
        if restored is not None:
            self.files.states.quarantine(restored.damaged)
        self._go_on_from(restored, key)

    def _go_on_from(self, restored: Restored | None, key: str) -> None:
        self.files.note_restored(restored)
        if restored is not None and self._ledger.is_final(restored.identity):
            self._ledger.keep()
        else:
            self._rewind({} if restored is None else restored.hub_state, key)
        if restored is not None and restored.fork is not None:
            self.tracking.set_tags(restored.fork.tags())

    @request("ingest")
    def packed_state(self, complete_step: int) -> bytes:
        """Return what a checkpoint keeps of the hub, as bytes: thousands of metrics reach the driver at once.

        Args:
            complete_step: Close windows up to this step first: they are logged now, and not again by another attempt.
        """
        self._check_open()
        state = self._ledger.to_state(complete_step, pack=packed)
        self._show()
        return pack_state(state)

    def _rewind(self, state: Mapping[str, Any], key: str) -> None:
        """Supersede everything that was logged since a state; an empty one is that of a run that begins."""
        self._check_open()
        self._show(self._ledger.rewind(state, key=key))

    def _show(self, changed_from: int | None = None) -> None:
        """Let the sinks show what is new, and no longer what was superseded from an index on."""
        superseded = self._ledger.take_change()
        if superseded is not None and not self._has_told:
            self._has_told = True
            name = self.config.run_name
            say(
                f"run {name!r}: earlier points of the same steps are superseded; `trieye attempts {name}` restores them"
            )
        changed = min((index for index in (changed_from, superseded) if index is not None), default=None)
        if changed is None:
            self._sinks.wake()
        else:
            self._sinks.rewind(changed)

    @request("ingest", is_slow=True)
    def supersede(self, step: int | None) -> bool:
        """Continue as the run is, in a program that keeps its own state; see `Run.supersede`."""
        self._check_open()
        changed = self._ledger.open_again(partial(after_restore, step=step), resumed_at=step)
        self._show(changed)
        return changed is not None

    @request("ingest")
    def note_stepless(self, metric: str) -> None:
        """Note that a program logs a metric without a step: its points at step 0 supersede nothing."""
        self._check_open()
        self._ledger.note_stepless(metric)

    @request("ingest", is_slow=True)
    def restore_opening(self, number: int) -> None:
        """Show the superseded points of an attempt again, in place of all others from their first step on."""
        self._show(self._ledger.open_again(partial(with_opening, number=number)))

    @request("ingest")
    def summary(self) -> dict[str, MetricSummary]:
        """Return last, min, max and step of the points of each metric, over all attempts."""
        return self._ledger.read(lambda stats: {name: MetricSummary(**seen) for name, seen in stats.summary.items()})

    @request("ingest", is_slow=True)
    def final_summary(self) -> dict[str, MetricSummary]:
        """Close the open windows and return `summary`, which then covers all accepted events."""
        self._check_open()
        self._pass(step=None, force=True)
        return self.summary()

    @request()
    def health(self) -> dict[str, Any]:
        """Return how the sinks, the journal and the process are, counts of events, drops and failed saves."""
        return self.status.health()

    def shutdown(self, status: RunStatus = "FINISHED", *, patient: bool = False) -> None:
        """Log what is left, close the sinks and record how the run ended; a second call does nothing.

        Args:
            status: How it ended.
            patient: Wait for sinks and mirror as long as they go on; clients of the drop-in API wait for some seconds.
        """
        if self._closed:
            return
        with self.status.doing("closing the hub"):
            self._ticker.stop()
            try:
                self._last_pass(status)
                self._closed = True
                self._ticker.report()
            except BaseException as error:
                self._closed = True
                with noted(error, "closing the run"):
                    self._close("FAILED", patient=patient)
                raise
            self._close(status, patient=patient)

    def _last_pass(self, status: RunStatus) -> None:
        """Log what is left; after a preemption the next attempt closes the open windows, which get its events, too."""
        self._ledger.finish(force=not (status == "KILLED" and self.files.states.has_checkpoint))
        if status == "FINISHED" and (final := self.files.states.final(self._ledger.stats.highest_step)):
            self._ledger.note_final(final)
        self.status.publish()
        self._ledger.snapshot()
        self._show()

    def _close(self, status: RunStatus, *, patient: bool) -> None:
        try:
            self._sinks.close(status, close_timeout_s(status), patient=patient)
            self.tracking.release()
            if status == "FINISHED":
                self.files.history.roll(force=True)
        finally:
            self.files.close(status, self.summary(), patient=patient)


def plain_step(step: Any) -> int:
    """Return a step as an int of Python; 0 for anything else, which is refused elsewhere with a message."""
    plain = int(step) if isinstance(step, int | np.integer) else 0
    return plain if abs(plain) < 1 << 62 else 0
