"""HubLogic: all functions of a hub in a plain object without Ray: logging, windows, sinks, saving and resuming."""

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
from trieye.exceptions import CheckpointError, JournalError, JournalFullError, ProcessingError, RunClosedError, noted
from trieye.files.run_record import MetricSummary, RunRecord, RunStatus
from trieye.hub.directory import HubFiles
from trieye.hub.ledger import Ledger
from trieye.hub.marks import pack_state, packed
from trieye.hub.requests import owners, request
from trieye.hub.saved_states import RestoredCheckpoint, SavedCheckpoint
from trieye.hub.status import HubStatus
from trieye.hub.supersession import after_restore, with_opening
from trieye.hub.tracking import Tracking, close_timeout_s, texts_of
from trieye.journal.ranges import Range
from trieye.process.progress import say
from trieye.process.worker import Ticker
from trieye.sinks.base import Sink
from trieye.sinks.fan_out import FanOut, make_sinks
from trieye.snapshot.encode import EncodedState
from trieye.stats.aggregator import summarize
from trieye.stats.operations import Operation
from trieye.stats.point import Point

logger = logging.getLogger(__name__)

SYNC_TIMEOUT_S = 3.0
"""Maximum wait of `force_process_and_log` for the sinks."""


class HubLogic:
    """Collects events, closes windows, feeds the sinks, saves and restores; `LocalHub` and `HubActor` wrap it.

    Logging and saving share only the ledger's lock, which is held for arithmetic and small writes, so that no log call
    waits for a save.

    Args:
        config: The config of the run.
        files: The files of the run; None derives them from the config.
        sinks: Sinks in addition to the config's.
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
        self.config, self.files = config, files or HubFiles(config)
        self._clock, self._wall_clock, self._own_sinks = clock, wall_clock, sinks
        self._is_closed, self._has_reported_superseding = False, False

    def open(
        self, *, owns_run: bool = True, is_restart: bool = False, extra_config: Mapping[str, Any] | None = None
    ) -> Self:
        """Begin an attempt: open files, ledger and sinks, and start the timer; sinks import libraries in threads.

        Events that an earlier hub accepted but did not log are logged now.

        Args:
            owns_run: Take the run's lock and count a new attempt; False if the driver has done so.
            is_restart: This hub replaces one of the same attempt that died.
            extra_config: Content of configs.json besides the config of trieye.
        """
        record = self.files.open(owns_run=owns_run, is_restart=is_restart)
        try:
            self._start(record, extra_config or {})
        except BaseException as error:
            with noted(error, "closing the files and sinks"), ExitStack() as cleanup:
                cleanup.callback(self.files.close, "FAILED", record.summary)
                if hasattr(self, "_sinks"):
                    self._sinks.close("FAILED", SYNC_TIMEOUT_S)
            raise
        return self

    def _start(self, record: RunRecord, extra_config: Mapping[str, Any]) -> None:
        stats, journal, history = self.config.stats, self.files.journal, self.files.history
        clocks = {"clock": self._clock, "wall_clock": self._wall_clock}
        # stored with the config, so that a replay treats undeclared events as the attempt did
        undeclared_policy = stats.undeclared or ("warn" if stats.metrics else "auto")
        self._ledger = Ledger(stats.model_copy(update={"undeclared": undeclared_policy}), journal, history, **clocks)
        self._ledger.open(attempt=record.attempt, created=record.created, run_id=record.run_id)
        if not self._ledger.stats.summary:  # of an earlier version, or the journal was lost
            self._ledger.stats.remember(record.summary)
        self._sinks = FanOut(self._make_sinks(), self.files.run_info(), history)
        self.tracking = Tracking(self._record, self._sinks, self.files, self._check_open, self.config)
        self.tracking.begin(extra_config, key=f"begin:{record.run_id}:{record.attempt}")
        if journal.num_lost:
            # the key prevents a second count after a kill before `forget_repair`
            key = f"repair:{zlib.crc32(str(journal.damage).encode())}"
            self._ledger.count_dropped([("journal_damage", "*", journal.num_lost)], key=key)
        journal.forget_repair()
        self.status = HubStatus(self._ledger, self._sinks, self.files, every_s=stats.hub_metrics_interval_s, **clocks)
        self.parts = owners(self, self._ledger, self.tracking, self.status)
        self._ticker = Ticker("trieye-ticker", self.tick, stats.processing_interval_seconds)

    def _make_sinks(self) -> list[Sink]:
        return make_sinks(self.config.sinks, on_run_id=self.files.note_mlflow_run_id, own_sinks=self._own_sinks)

    @request("ingest")
    def log_operation(self, operation: Operation, *, key: str = "") -> None:
        """Record a histogram, an image or another medium; see `Ledger.record`."""
        self._check_open()
        self._record(operation, key=key)

    def _record(self, operation: Operation, *, key: str = "") -> None:
        self._ledger.record(operation, key=key)
        self._show()

    def _check_open(self) -> None:
        if self._is_closed:
            raise RunClosedError(f"run {self.config.run_name!r} is closed; start it again to log more")

    def tick(self) -> None:
        """Close the windows that later steps have completed; called by the timer every processing interval."""
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
            ProcessingError: A processing pass failed since the last call.
            JournalFullError: The journal cannot grow at present.
        """
        if complete_step is None:
            self._ledger.ingest()
        else:
            self._pass(step=complete_step)
        self._raise_failed_tick()

    def _raise_failed_tick(self) -> None:
        if (failure := self._ticker.take_failure()) is not None:
            raise ProcessingError(
                f"run {self.config.run_name!r}: the hub could not process logged values: {failure!r}; accepted values "
                "are stored in the journal, and the log has the traceback"
            ) from failure

    def _pass(self, *, step: int | None, force: bool = False) -> None:
        if not self._is_closed:
            self._ledger.advance(step=None if step is None else plain_step(step), force=force)
            self._show()

    @request("save")
    def save_checkpoint(
        self, step: int, state: EncodedState, metadata: Mapping[str, Any], hub_state: bytes
    ) -> SavedCheckpoint:
        """Write a checkpoint and return its directory once it is safe on disk.

        Args:
            step: The completed step.
            state: State to save.
            metadata: Plain data for the manifest.
            hub_state: Result of `packed_state` at the completed step.

        Raises:
            CheckpointError: The checkpoint could not be written; counted in `persistence/save_failures`.
        """
        is_tracked = not metadata.get("is_crash")
        path = self._saved(
            step, lambda: self.files.states.save(step, state, metadata, hub_state), is_tracked=is_tracked
        )
        return SavedCheckpoint(str(path), damaged_parts(path) if state.parts else ())

    @request("save")
    def rate_checkpoint(self, step: int, objective: float | None) -> None:
        """Record the objective of a checkpoint that was saved before its evaluation; None: it was never measured.

        Raises:
            CheckpointError: The checkpoint does not exist, or the objective cannot be written.
        """
        self._check_open()
        self.files.states.rate(step, objective)

    def _saved(self, step: Any, write: Callable[[], Path], *, is_tracked: bool = True) -> Path:
        self._check_open()
        # the status of a run that is killed now is no older than its checkpoint; no status prevents a checkpoint
        with suppress(JournalError):
            self.status.publish()
        try:
            with self.status.doing(f"saving step {step}"):
                path = write()
        except Exception as error:  # users' objects may raise anything; counted here, and raised to the caller
            self.status.note_failed_save(plain_step(step))
            text = "saving step %s failed; the program gets this error, too: %s"
            logger.error(text, step, error)  # noqa: TRY400 - raised to the caller below
            raise CheckpointError(f"saving step {step} of run {self.config.run_name!r} failed: {error}") from error
        with suppress(JournalFullError):  # the checkpoint is safe; only the trackers miss it
            if is_tracked:
                self.tracking.note_checkpoint(path)
        return path

    @request("ingest", is_slow=True)
    def resume(self, checkpoint: RestoredCheckpoint | None, *, key: str = "") -> None:
        """Resume from a checkpoint that the driver has restored, with its open windows.

        The hub supersedes every point logged after the checkpoint. Without a checkpoint the run starts from scratch,
        and the hub supersedes every point of earlier attempts.

        Args:
            checkpoint: The checkpoint, without its state; None if the run has none. If it belongs to another run, the
                points that this run logged before its step are retained.
            key: See `Ledger.accept_rows`.
        """
        self._check_open()
        if checkpoint is not None:
            self.files.states.quarantine(checkpoint.damaged)
        self._continue_from(checkpoint, key)

    def _continue_from(self, checkpoint: RestoredCheckpoint | None, key: str) -> None:
        self.files.note_restored(checkpoint)
        step = None if checkpoint is None else checkpoint.origin["step"]
        if checkpoint is not None and self._ledger.is_final(checkpoint.identity):
            self._ledger.keep(step)
        else:
            self._rewind({} if checkpoint is None else checkpoint.hub_state, key, step)
        if checkpoint is not None and checkpoint.fork is not None:
            self.tracking.set_tags(texts_of(checkpoint.fork.tags()))

    @request("ingest")
    def packed_state(self, complete_step: int) -> bytes:
        """Return the state of the hub for a checkpoint; as bytes, thousands of metrics reach the driver quickly.

        Args:
            complete_step: Close windows up to this step first, so that no later attempt logs their points again.
        """
        self._check_open()
        state = self._ledger.to_state(complete_step, pack=packed)
        self._show()
        return pack_state(state)

    def _rewind(self, state: Mapping[str, Any], key: str, step: int | None = None) -> None:
        """Supersede everything that was logged after a state; an empty state means the start of the run."""
        self._check_open()
        self._show(self._ledger.rewind(state, step=step, key=key))

    def _show(self, changed_from: int | None = None) -> None:
        """Wake the sinks for new items, or rewind them to the first item that was superseded or restored."""
        superseded_from = self._ledger.take_change()
        if superseded_from is not None and not self._has_reported_superseding:
            self._has_reported_superseding = True
            name = self.config.run_name
            say(
                f"run {name!r}: earlier points of the same steps are superseded; `trieye attempts {name}` lists them "
                "and can restore them"
            )
        first_changed = min((index for index in (changed_from, superseded_from) if index is not None), default=None)
        if first_changed is None:
            self._sinks.wake()
        else:
            self._sinks.rewind(first_changed)

    @request("ingest", is_slow=True)
    def supersede(self, step: int | None) -> bool:
        """Supersede points from a step on, for a program that restores its state itself (see `Run.supersede`)."""
        if (step or 0) <= 0 and not self.current_summary() and not self.files.history.series(with_media=True):
            return False  # the run begins, so the list of attempts shows no resume
        first_changed = self._ledger.open_again(partial(after_restore, step=step), resumed_at=step)
        self._show(first_changed)
        return first_changed is not None

    @request("ingest", is_slow=True)
    def restore_opening(self, number: int) -> None:
        """Restore the superseded points of an opening; they replace all other points from their first step on."""
        self._show(self._ledger.open_again(partial(with_opening, opening_number=number)))

    @request("ingest", is_slow=True)
    def summary(self) -> dict[str, MetricSummary]:
        """Return last, min, max and step of the points of each metric, over all attempts, except superseded points."""
        summary = self._ledger.read(lambda stats: {name: MetricSummary(**of) for name, of in stats.summary.items()})
        history = self.files.history
        if not history.superseded_ranges:
            return summary
        visible = history.summary()
        # the history lacks metrics of attempts that lost their journal
        hidden = history.series(superseded=True) if summary.keys() - visible.keys() else {}
        return {name: visible.get(name, of) for name, of in summary.items() if name in visible or name not in hidden}

    @request("ingest", is_slow=True)
    def current_summary(self) -> dict[str, MetricSummary]:
        """Return `summary` as if all windows closed now; they stay open."""
        self._check_open()
        self._ledger.ingest()
        self._raise_failed_tick()
        return self._ledger.read(lambda _: self._summary_with(*self._ledger.if_closed()))

    def _summary_with(self, points: Sequence[Point], superseded_ranges: Sequence[Range]) -> dict[str, MetricSummary]:
        """Return `summary` with further points, which supersede others."""
        summary = self.summary()
        if superseded_ranges:
            metrics = {point.metric for point in points}
            other_summaries = {name: of for name, of in summary.items() if name not in metrics}
            summary = self.files.history.summary(superseded_ranges) | other_summaries
        for point in points:
            summarize(summary, point)
        return summary

    @request("ingest", is_slow=True)
    def final_summary(self) -> dict[str, MetricSummary]:
        """Close the open windows and return `summary`, which then covers all accepted events."""
        self._check_open()
        self._pass(step=None, force=True)
        return self.summary()

    def shutdown(
        self, status: RunStatus = "FINISHED", *, patient: bool = False, required_sinks: Sequence[str] = ()
    ) -> None:
        """Log the remaining events, close the sinks and record how the run ended; a second call does nothing.

        Args:
            status: How the run ended.
            patient: Wait for sinks and mirror while they make progress; otherwise only a few seconds, since clients of
                the drop-in API wait no longer.
            required_sinks: Sinks that must receive everything.

        Raises:
            ProcessingError: A processing pass failed, or a required sink did not receive everything; the run is
                recorded as failed.
        """
        if self._is_closed:
            return
        with self.status.doing("closing the hub"):
            self._ticker.stop()
            try:
                self._finish(status)
                self._is_closed = True
                self._raise_failed_tick()
            except BaseException as error:
                self._is_closed = True
                with noted(error, "closing the run"):
                    self._close("FAILED", patient=patient)
                raise
            self._close(status, patient=patient, required_sinks=required_sinks)

    def _finish(self, status: RunStatus) -> None:
        """Log the remaining events; after a preemption, open windows stay open for the events of the next attempt."""
        self._ledger.finish(force=not (status == "KILLED" and self.files.states.has_checkpoint))
        if status == "FINISHED" and (final_checkpoint := self.files.states.final(self._ledger.stats.highest_step)):
            self._ledger.note_final(final_checkpoint)
        self.status.publish()
        self._ledger.snapshot()
        self._show()

    def _close(self, status: RunStatus, *, patient: bool, required_sinks: Sequence[str] = ()) -> None:
        try:
            self._sinks.close(status, close_timeout_s(status), patient=patient)
            self.tracking.release()
            if status == "FINISHED":
                self.files.history.roll(force=True)
            self.status.check_sinks(required_sinks, is_end=True)
        except ProcessingError:
            status = "FAILED"
            raise
        finally:
            self.files.close(status, self.summary(), patient=patient)


def plain_step(step: Any) -> int:
    """Return a step as a Python int; 0 for other types and huge steps, which other code refuses with a message."""
    plain = int(step) if isinstance(step, int | np.integer) else 0
    return plain if abs(plain) < 1 << 62 else 0
