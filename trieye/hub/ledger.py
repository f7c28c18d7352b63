"""Ledger: appends entries to a run's journal, applies them to its event processor, and replays them after a restart.

An entry of events only queues them. A flush marker moves all queued events into windows and closes some windows; so the
journal alone determines which events share a window, and the order of all points. A running hub appends an entry and
then applies it; a restarted hub loads the newest snapshot and applies the entries after it.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import msgspec

from trieye.config import StatsConfig
from trieye.exceptions import RunClosedError
from trieye.history.history import History
from trieye.hub.fold import EventProcessor, Kind, survives_rewind
from trieye.hub.marks import AttemptMark, FlushedPosition, FlushMarker, LedgerState, position_of
from trieye.hub.requests import request
from trieye.hub.supersession import Choice
from trieye.journal.event_payloads import Drop, admit, batch_of, encode_events, to_bytes
from trieye.journal.journal import Journal, JournalEntry, Snapshot
from trieye.journal.ranges import Range, first_difference, merged, uncovered
from trieye.stats.aggregator import MAX_STEP, Aggregator
from trieye.stats.batch import EventBatch, EventRow
from trieye.stats.operations import Operation
from trieye.stats.point import Point

T = TypeVar("T")

MAX_UNDECIDED_BYTES = 32 << 20
"""Maximum size of the events that an attempt retains for a rewind while it may still resume from a checkpoint."""

MAX_PENDING_EVENTS = 50_000
"""A longer queue is moved into windows at once, so that memory stays bounded even if the timer is slow."""

ENTRY_BYTES = 64  # size of an entry without its payload
SNAPSHOT_AFTER_BYTES = 8 << 20
SNAPSHOT_AFTER_S = 10.0
SNAPSHOT_AFTER_POINTS = 20_000


class Ledger:
    """Accepts all events of a run and produces its points; starts no threads, and reads only the clocks passed in.

    Safe to use from several threads. Events are also accepted while a flush marker is applied or a snapshot is taken:
    they follow it in the journal and are only queued.

    Args:
        config: The metrics.
        journal: The durable log of the run.
        history: Receives points and operations.
        clock: Monotonic clock in seconds.
        wall_clock: Unix time in seconds.
    """

    def __init__(
        self,
        config: StatsConfig,
        journal: Journal,
        history: History,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._config, self._journal, self._history = config, journal, history
        self._processor = EventProcessor(config, history)
        self._queue = self._processor.queue
        self._clock, self._wall_clock = clock, wall_clock
        # guards the windows, the end of the history, `_mark` and `_snapshot_at`; held from before an entry is stored
        # until it is applied, unless the entry only queues events; acquired before `_lock`
        self._processing = threading.RLock()
        # guards the queue and the other fields below: a thread queues its events before another one appends an entry.
        # A holder of either lock may acquire the locks of the drops, the journal and the history's tail
        self._lock = threading.RLock()
        self._zero, self._snapshot_at = clock(), 0.0
        self._mark: AttemptMark
        self._applied_pos = self._unsaved_bytes = self._undecided_bytes = 0
        self._flushed_position, self._is_finished = FlushedPosition(0, 0, 0), False

    def open(self, *, attempt: int, created: float, run_id: str = "") -> bool:
        """Replay the journal, and begin a new attempt unless its last attempt is this one.

        Args:
            attempt: Number of the attempt.
            created: Start of the run, Unix time in seconds.
            run_id: Identity of the run.

        Returns:
            Whether the attempt continues after the death of its hub.
        """
        with self._processing, self._lock:
            last_mark = AttemptMark.from_bytes(payload) if (payload := self._journal.meta("attempt")) else None
            self._replay(last_mark)
            self._zero = self._clock() - self._journal.last_at
            if last_mark is not None and (last_mark.run_id, last_mark.number) == (run_id, attempt):
                self._mark = last_mark
                self._processor.adopt(self._config, last_mark)
                if self._history.next_index > self._history.end:
                    self.snapshot()
                return True
            self._begin(attempt, created, last_mark, run_id)
            return False

    def _replay(self, last_mark: AttemptMark | None) -> None:
        if last_mark is not None:  # with the earlier metrics config, for which the entries were written
            self._processor.begin(last_mark.stats_config() or self._config, last_mark)
        snapshot = self._journal.snapshot()
        if snapshot is not None:
            self._processor.next_index = snapshot.index
            self._history.skip_to(snapshot.index)
            self._processor.load(LedgerState.from_bytes(snapshot.payload))
            self._applied_pos = snapshot.pos
        elif markers := [FlushMarker.from_bytes(e.payload) for e in self._journal.records(0) if e.kind == "pass"]:
            self._processor.next_index = markers[0].index if markers[0].index >= 0 else self._history.end
        self._catch_up()
        self._processor.skip_to(self._history.end)  # if the history is ahead, the journal has lost entries
        self._processor.take_change()  # no sink is open yet, and each one compares its branch when it opens

    def _catch_up(self) -> None:
        for entry in self._journal.records(self._applied_pos):
            self._note_applied(entry.pos, len(entry.payload))
            self._processor.apply(entry)

    def _note_applied(self, pos: int, num_bytes: int) -> None:
        self._applied_pos = pos
        self._unsaved_bytes += num_bytes + ENTRY_BYTES
        self._undecided_bytes += num_bytes + ENTRY_BYTES

    def _begin(self, attempt: int, created_at: float, last_mark: AttemptMark | None, run_id: str) -> None:
        if len(self._queue) or self._processor.has_news:
            self._append_flush(FlushMarker())  # complete windows belong to the previous attempt
        started_at = self._wall_clock()
        first_mark = AttemptMark(
            number=attempt,
            pos=self._applied_pos,
            index=self._history.next_index,
            at=self._at(),
            started=started_at,
            elapsed=max(started_at - created_at, 0.0),
            config=self._config.model_dump_json(),
            run_id=run_id,
        )
        mark = first_mark if last_mark is None else first_mark.after(last_mark)
        self._processor.adopt(self._config, mark)
        self._processor.supersede_before(mark.index)
        self._note_flushed()
        self._save_snapshot(self._processor.state(self._flushed_position.num_accepted), mark=mark)

    @request("ingest")
    def log_columns(self, batch: EventBatch, *, client: str = "", seq: int | None = None) -> bool:
        """Accept a batch of a client; an accepted batch survives the death of every process.

        Args:
            batch: The events.
            client: Name of the sender; empty: the batch is never sent again.
            seq: Consecutive number of the client's batch; None: `client` is a unique key of this batch.

        Returns:
            False if the ledger had already accepted the batch.

        Raises:
            JournalFullError, RunClosedError, SequenceGapError: The ledger did not accept the batch.
        """
        return self._accept("events", batch, (), client=client, seq=seq)

    def accept_rows(self, rows: Sequence[EventRow], drops: Sequence[Drop] = (), *, key: str = "") -> bool:
        """Accept events of the drop-in API; see `log_columns`.

        Args:
            rows: The events; the ledger counts events that no batch can hold as dropped, and accepts the others.
            drops: Counts of events that the caller dropped.
            key: Unique key of the call, which identifies repetitions; empty: the call is never repeated.
        """
        batch, refused_drops = batch_of(rows)
        return self._accept("rows", batch, [*drops, *refused_drops], client=key, seq=None)

    def _accept(self, kind: Kind, batch: EventBatch, drops: Sequence[Drop], *, client: str, seq: int | None) -> bool:
        if len(self._queue) > MAX_PENDING_EVENTS:
            self.ingest()  # if it fails, the batch is not accepted
        batch, refused_drops = admit(batch, self._processor.stats.context_keys)
        all_drops = [*drops, *refused_drops]
        with self._processing if all_drops else nullcontext():  # a flush in progress first counts earlier drops
            payload = encode_events(batch, all_drops)
            return self._append(kind, payload, client, seq, events=(batch, all_drops), while_open=True)

    @request("ingest")
    def count_dropped(self, drops: Sequence[Drop], *, key: str = "") -> None:
        """Count events that were dropped before they reached the ledger; see `accept_rows`."""
        self._accept("drops", EventBatch.from_rows([]), drops, client=key, seq=None)

    def record(self, operation: Operation, *, key: str = "") -> None:
        """Append an operation to the history, once per key."""
        with self._processing:
            self._append("operation", to_bytes(operation), key, while_open=True)

    @request("ingest")
    def note_stepless(self, metric: str) -> None:
        """Note that this attempt logs a metric without a step, so that its points at step 0 supersede no others."""
        with self._processing:
            self._append("stepless", metric.encode("utf-8", "backslashreplace"), while_open=True)

    def add_points(self, points: Sequence[Point]) -> None:
        """Append points to the history that do not summarise events."""
        with self._processing:
            self._append("points", msgspec.msgpack.encode([point.to_row() for point in points]))

    def advance(self, *, step: int | None = None, force: bool = False) -> None:
        """Move the accepted events into windows, and close complete windows.

        Args:
            step: The highest completed step; None: the step before each metric's highest step.
            force: Close incomplete windows, too.

        Raises:
            JournalFullError: The journal is full; nothing has changed.
        """
        with self._processing:
            has_work = len(self._queue) or self._processor.has_news or self._processor.stats.waits_for_time
            if step is not None or force or has_work:
                self._append_flush(FlushMarker(step=step, force=force))

    def finish(self, *, force: bool) -> None:
        """Stop accepting events, and flush for the last time; `force` closes incomplete windows, too."""
        with self._processing:
            with self._lock:
                self._is_finished = True
            self.advance(step=None if force else MAX_STEP, force=force)  # the last step is complete, too

    def ingest(self) -> None:
        """Move the accepted events into windows without closing any, so that memory stays bounded."""
        with self._processing:
            self._append_flush(FlushMarker(ingest_only=True))

    def _append_flush(self, marker: FlushMarker) -> None:
        with self._lock:
            time_s, payload = self._at(), msgspec.structs.replace(marker, index=self._history.end).to_bytes()
            pos = self._journal.append("pass", payload, at=time_s)
            if pos is None or pos - self._applied_pos > 1:
                self._catch_up()
                batches = None
            else:
                self._note_applied(pos, len(payload))
                batches = self._queue.take()
            self._note_flushed()
        if batches is not None:
            self._processor.apply_flush(marker, time_s, batches)

    def _note_flushed(self) -> None:
        """Note the current position; the queue is empty."""
        self._flushed_position = FlushedPosition(self._applied_pos, self._processor.num_accepted, self._unsaved_bytes)

    def _append(
        self,
        kind: Kind,
        payload: bytes,
        client: str = "",
        seq: int | None = None,
        *,
        events: tuple[EventBatch, Sequence[Drop]] | None = None,
        while_open: bool = False,
    ) -> bool:
        """Store an entry and apply it; return False if the journal already has it.

        The caller holds `_processing`, unless the entry only queues events; `events` is then its decoded payload.

        Raises:
            RunClosedError: `finish` was called, and `while_open` is set.
        """
        with self._lock:
            if while_open and self._is_finished:
                raise RunClosedError("the run is closed; start it again to log more")
            time_s = self._at()
            pos = self._journal.append(kind, payload, at=time_s, client=client, seq=seq)
            num_new = self._journal.last_pos - self._applied_pos
            if pos is not None and num_new == 1:
                self._note_applied(pos, len(payload))
                if events is None:
                    self._processor.apply(JournalEntry(pos, kind, time_s, client, seq or 0, payload))
                else:
                    self._processor.add(kind, *events)
                return True
        if num_new:  # an earlier call failed after its entry was stored
            with self._processing, self._lock:
                self._catch_up()
        return pos is not None

    def compact(self) -> bool:
        """Take a snapshot if one is due, and delete the entries that it covers; return whether one was due.

        Raises:
            JournalFullError: The journal is full; no entry was deleted.
        """
        with self._processing:
            is_old = self._at() - self._snapshot_at > SNAPSHOT_AFTER_S
            is_large = self._unsaved_bytes > SNAPSHOT_AFTER_BYTES or self._history.num_pending > SNAPSHOT_AFTER_POINTS
            if not (is_old or is_large) or not (self._unsaved_bytes or self._history.num_pending):
                return False
            if self._undecided_bytes > MAX_UNDECIDED_BYTES:
                self._mark = msgspec.structs.replace(self._mark, decided=True)
            self.snapshot()
            return True

    def snapshot(self) -> None:
        """Take a snapshot now; raises JournalFullError if the journal is full."""
        with self._processing:
            with self._lock:
                if is_flushed := not len(self._queue):
                    self._note_flushed()
            if not is_flushed:
                self.ingest()
            self._save_snapshot(self._processor.state(self._flushed_position.num_accepted))

    def _save_snapshot(
        self,
        state: LedgerState,
        *,
        mark: AttemptMark | None = None,
        index: int = 0,
        superseded_ranges: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        """Store the state at the last position with an empty queue; events may be accepted during the call.

        A new mark begins a state that a replay of earlier entries would not yield; if that fails, the old one remains.
        """
        time_s, end, is_discontinuous = self._at(), self._history.end, mark is not None
        mark = mark or self._mark
        snapshot = Snapshot(self._flushed_position.pos, max(index, self._history.next_index), time_s, state.to_bytes())
        self._journal.commit(
            snapshot,
            chunks=self._history.pending(),
            keep_after=snapshot.pos if mark.decided else mark.pos,
            superseded=self._history.pending_superseded if superseded_ranges is None else superseded_ranges,
            meta={"attempt": mark.to_bytes()},
            discontinuous=is_discontinuous,
        )
        self._mark = mark
        self._history.committed(end)
        self._processor.skip_to(snapshot.index)
        with self._lock:
            self._unsaved_bytes -= self._flushed_position.num_bytes
            self._flushed_position = self._flushed_position._replace(num_bytes=0)
            self._undecided_bytes = 0 if mark.decided else self._undecided_bytes
        self._snapshot_at = time_s

    def to_state(
        self, complete_step: int | None = None, *, pack: Callable[[Mapping[str, Any]], Any] = dict
    ) -> dict[str, Any]:
        """Return the state for a checkpoint, as plain data.

        Args:
            complete_step: Close windows up to this step first, so that no later attempt logs their points again.
            pack: See `Aggregator.to_state`.
        """
        with self._processing:
            if complete_step is not None:
                self._append_flush(FlushMarker(step=complete_step))
            self._append_flush(FlushMarker(ingest_only=True))  # also stores the index of the next item
            position = self._mark.position(self._history.end, self._at(), self._history.superseded_ranges)
            return {"journal": position, "stats": self._processor.stats.to_state(pack)}

    def note_final(self, checkpoint: str) -> None:
        """Record that only points of windows closed by the end of the run follow a checkpoint."""
        self._journal.set_meta("final", msgspec.msgpack.encode([checkpoint, self._history.end]))

    def is_final(self, checkpoint: str) -> bool:
        """Return whether the run ended with this checkpoint, and no item was added since."""
        payload = self._journal.meta("final")
        return payload is not None and msgspec.msgpack.decode(payload) == [checkpoint, self._mark.index]

    def keep(self, step: int | None) -> None:
        """Resume from the final state of the last attempt, saved at `step`, so that nothing is superseded."""
        with self._processing:
            self._mark = self._mark.at_step(step).determined()
            self._processor.continue_from(None)
            self.snapshot()

    def rewind(self, state: Mapping[str, Any], *, step: int | None = None, key: str = "") -> int | None:
        """Resume from a state of `to_state`; supersede later items except those of its step and of this attempt.

        If this attempt has resumed before, or saved the state itself, its events after the state are superseded, too.

        Args:
            state: The state; an empty state, or the state of another run, means the start of this run.
            step: Step of the state; None: unknown.
            key: Unique key of the call, which identifies repetitions; empty: the call is never repeated.

        Returns:
            The first index whose item the rewind shows or hides; None if there is no such item.

        Raises:
            JournalFullError: The journal is full; nothing has changed.
        """
        with self._processing, self._lock:
            state = self._mark.own_state(state)
            if (not state and (self._mark.resumed or not self._mark.pos)) or (key and key == self._mark.key):
                self._mark = self._mark.at_step(step)  # a fork; the next snapshot stores it
                return None
            entries, first_index, end = self._own_branch(state, step)
            index = position_of(state).get("index", first_index if state else 0)
            ranges, dead = self._history.superseded_ranges, (*self._mark.dead, (first_index, max(first_index, index)))
            earlier_ranges = map(tuple, position_of(state).get("superseded", ranges))
            retained = self._processor.logged_after_save(state, step, first_index if entries else end)
            superseded_ranges = merged([*earlier_ranges, *uncovered(min(index, first_index), end, retained), *dead])
            time_s = self._mark.at if entries else self._at()
            new_state = self._processor.rewound(state, entries, self._mark, at=time_s, retained=retained)
            self._note_flushed()
            mark = self._mark.at_step(step).determined(key=key, dead=tuple(merged(dead)))
            # after a loss at the journal's end, no index below the checkpoint's may be reused
            self._save_snapshot(new_state, mark=mark, index=index, superseded_ranges=superseded_ranges)
            self._processor.begin(self._config, self._mark)
            self._processor.load(new_state)
            self._history.dead = self._mark.dead
            self._history.set_superseded(superseded_ranges)
            return first_difference(ranges, superseded_ranges)

    def open_again(self, choose: Choice, *, resumed_at: int | None = None) -> int | None:
        """Close all windows, and begin another opening with other superseded points.

        Args:
            choose: Returns the superseded ranges.
            resumed_at: First step that is logged again, for a program that restores its state itself.

        Returns:
            The lowest index whose item becomes visible or superseded; None if no item does.
        """
        with self._processing, self._lock:
            self._append_flush(FlushMarker(force=True))
            stats, continuation = self._processor.stats.to_state(), self._processor.continuation
            old_ranges, new_ranges = self._history.superseded_ranges, choose(self._history, self._mark.all_openings)
            mark = self._mark.opened_again(self._history.end, self._wall_clock())
            try:
                if resumed_at is not None:
                    mark = mark.at_step(resumed_at - 1 if resumed_at > 0 else None).determined()
                    self._processor.stats.go_back(resumed_at)
                self._processor.supersede_before(self._history.end)
                state = self._processor.state(self._flushed_position.num_accepted)
                self._save_snapshot(state, mark=mark, superseded_ranges=new_ranges)
            except BaseException:
                self._processor.stats.restore(stats)
                self._processor.continue_from(continuation)
                raise
            self._history.set_superseded(new_ranges)
            return first_difference(old_ranges, new_ranges)

    def take_change(self) -> int | None:
        """Return the lowest index superseded by new points since the last call, or None."""
        with self._processing:
            return self._processor.take_change()

    def is_under_way(self, state: Mapping[str, Any]) -> bool:
        """Return whether this attempt has resumed from a state already, or saved this state itself."""
        with self._processing:
            return self._mark.resumed or position_of(self._mark.own_state(state)).get("attempt") == self._mark.number

    def _own_branch(self, state: Mapping[str, Any], step: int | None) -> tuple[list[tuple[str, bytes]], int, int]:
        """Return this attempt's entries that survive a rewind, and first index and end of the superseded branch."""
        is_own = self._mark.resumed or position_of(state).get("attempt") == self._mark.number
        if self._mark.decided and not is_own:  # the journal no longer has the entries: their points stay
            self._append_flush(FlushMarker(force=True))
            return [], self._mark.index, self._mark.index
        self._catch_up()
        entries = () if is_own else self._journal.records(self._mark.pos)
        surviving = [(entry.kind, entry.payload) for entry in entries if survives_rewind(entry)]
        if not surviving:  # only windows of earlier events are open: close them, for `logged_after_save`
            self._append_flush(FlushMarker(step=step, ingest_only=step is None))
        return surviving, self._history.end if is_own else self._mark.index, self._history.end

    @property
    def stats(self) -> Aggregator:
        """Windows and summary of the run; read-only, for callers that hold the lock (see `read`)."""
        return self._processor.stats

    def read(self, reader: Callable[[Aggregator], T]) -> T:
        """Return the result of a function of the windows and the summary, which do not change during the call."""
        with self._processing:
            return reader(self._processor.stats)

    def if_closed(self) -> tuple[list[Point], list[Range]]:
        """Return the points that closing all windows would log now, and the indices that they would supersede."""
        with self._processing:
            return self._processor.if_closed(self._at())

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of events `accepted` and `processed` over all attempts, `queued` now, and `late`."""
        with self._processing, self._lock:
            return {
                "accepted": self._processor.num_accepted,
                "processed": self._processor.num_processed,
                "queued": len(self._queue),
                "late": self._processor.stats.num_late,
            }

    def _at(self) -> float:
        return self._clock() - self._zero
