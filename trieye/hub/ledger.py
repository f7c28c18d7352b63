"""Ledger: takes records into the journal of a run and applies them to its fold; after a restart it applies them again.

A record of events only queues them. A record of a pass puts all that is queued into windows and closes some; so the
journal alone says which events met in which window, and which point came when. A living hub appends a record and then
applies it; a restarted one begins with the newest snapshot and applies the records after it.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeVar

import msgspec

from trieye.config import StatsConfig
from trieye.exceptions import RunClosedError
from trieye.history.history import History
from trieye.hub.fold import Fold, Kind, counts_again, points_payload
from trieye.hub.marks import AttemptMark, LedgerState, Pass, place_of
from trieye.hub.pending import PendingEvents
from trieye.hub.requests import request
from trieye.hub.supersession import Choice
from trieye.journal.event_payloads import Drop, admit, batch_of, encode_events, to_bytes
from trieye.journal.journal import Journal, Record, Snapshot
from trieye.journal.ranges import first_difference, merged
from trieye.stats.aggregator import Aggregator
from trieye.stats.batch import EventBatch, EventRow
from trieye.stats.operations import Operation
from trieye.stats.point import Point

Seen = TypeVar("Seen")

MAX_UNDECIDED_BYTES = 32 << 20
"""Events of this attempt that are kept until it is known whether it begins with a checkpoint."""

MAX_PENDING_EVENTS = 50_000
"""More than this are put into their windows at once, so that memory stays bounded however slow the timer is."""

RECORD_BYTES = 64  # besides its payload
SNAPSHOT_AFTER_BYTES = 8 << 20
SNAPSHOT_AFTER_S = 10.0
SNAPSHOT_AFTER_POINTS = 20_000


class _Settled(NamedTuple):
    """A position of the journal at which every event that was accepted before is in its window.

    Attributes:
        pos: The position.
        num_accepted: Events accepted up to there, over all attempts.
        num_bytes: Bytes of the records up to there that no snapshot stands for.
    """

    pos: int
    num_accepted: int
    num_bytes: int


class Ledger:
    """The one place where events are accepted and points are made; knows no sink, no thread, no clock but those given.

    Safe to use from several threads. Events are accepted also while a pass is applied or a snapshot is taken: in the
    journal they come after that, and all that they do is to queue.

    Args:
        config: The metrics.
        journal: The durable log of the run.
        history: Where points and operations go.
        queue: Events that are in no window yet.
        undeclared: What to do with events that no metric reads; None: what the config says.
        clock: Monotonic clock in seconds.
        wall_clock: Unix time in seconds.
    """

    def __init__(
        self,
        config: StatsConfig,
        journal: Journal,
        history: History,
        queue: PendingEvents,
        *,
        undeclared: Any = None,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        # a part of the config, so that a replay does with them what the attempt did
        self._config = config if undeclared is None else config.model_copy(update={"undeclared": undeclared})
        self._journal, self._history, self._queue = journal, history, queue
        self._fold = Fold(self._config, history, queue)
        self._clock, self._wall_clock = clock, wall_clock
        # guards the windows of the fold, the end of the history, `_mark` and `_snapshot_at`; held from before a record
        # is stored until it is applied, unless the record only queues events; taken before `_lock`
        self._folding = threading.RLock()
        # guards the queue and the other fields below: a thread queues its events before another one appends a record.
        # A thread that holds one of the two may take the locks of queue, drops, journal and the history's tail
        self._lock = threading.RLock()
        self._zero = clock()
        self._mark: AttemptMark
        self._applied = self._unsaved_bytes = self._undecided_bytes = 0
        self._settled = _Settled(0, 0, 0)
        self._snapshot_at = 0.0
        self._is_finished = False

    def open(self, *, attempt: int, created: float, run_id: str = "") -> bool:
        """Apply the records up to the end of the journal, and begin an attempt unless this very attempt goes on.

        Args:
            attempt: Number of the attempt.
            created: Unix time in seconds at which the run began.
            run_id: Identity of the run.

        Returns:
            Whether the attempt goes on after the death of its hub.
        """
        with self._folding, self._lock:
            earlier = AttemptMark.from_bytes(held) if (held := self._journal.meta("attempt")) else None
            self._replay(earlier)
            self._zero = self._clock() - self._journal.last_at
            if earlier is not None and earlier.is_of(run_id, attempt):
                self._mark = earlier
                self._fold.adopt(self._config, earlier)
                if self._history.next_index > self._history.end:
                    self.snapshot()
                return True
            self._begin(attempt, created, earlier, run_id)
            return False

    def _replay(self, earlier: AttemptMark | None) -> None:
        if earlier is not None:  # with the metrics as they were: the records were made for them
            self._fold.begin(earlier.stats_config() or self._config, earlier)
        snapshot = self._journal.snapshot()
        if snapshot is not None:
            self._fold.next_index = snapshot.index
            self._history.skip_to(snapshot.index)
            self._fold.load(LedgerState.from_bytes(snapshot.payload))
            self._applied = snapshot.pos
        elif passes := [Pass.from_bytes(r.payload) for r in self._journal.records(0) if r.kind == "pass"]:
            self._fold.next_index = passes[0].index if passes[0].index >= 0 else self._history.end
        self._catch_up()
        self._fold.skip_to(self._history.end)  # what came after it was lost
        self._fold.take_change()  # no sink is open yet, and each compares the branch

    def _catch_up(self) -> None:
        for record in self._journal.records(self._applied):
            self._note(record.pos, len(record.payload))
            self._fold.apply(record)

    def _note(self, pos: int, num_bytes: int) -> None:
        self._applied = pos
        self._unsaved_bytes += num_bytes + RECORD_BYTES
        self._undecided_bytes += num_bytes + RECORD_BYTES

    def _begin(self, attempt: int, created: float, earlier: AttemptMark | None, run_id: str) -> None:
        if len(self._queue) or self._fold.has_news:
            self._append_pass(Pass())  # complete windows belong to the attempt before
        self._mark = AttemptMark.begin(
            attempt,
            run_id=run_id,
            pos=self._applied,
            index=self._history.next_index,
            at=self._at(),
            now=self._wall_clock(),
            created=created,
            earlier=earlier,
            config=self._config,
        )
        self._fold.adopt(self._config, self._mark)
        self._fold.continue_behind(self._mark.index)
        self._settle()
        self._save_snapshot(self._fold.state(self._settled.num_accepted), discontinuous=True)

    @request("ingest")
    def log_columns(self, batch: EventBatch, *, client: str = "", seq: int | None = None) -> bool:
        """Accept a batch of a client; an accepted batch survives the death of every process.

        Args:
            batch: The events.
            client: Name of the sender; empty: nobody sends the batch again.
            seq: Number of the batch, one more than that of the client's last one; None: `client` is used once.

        Returns:
            False if the ledger had accepted the batch before.

        Raises:
            JournalFullError, RunClosedError, SequenceGapError: The ledger did not accept the batch.
        """
        return self._accept("events", batch, (), client=client, seq=seq)

    def accept_rows(self, rows: Sequence[EventRow], drops: Sequence[Drop] = (), *, key: str = "") -> bool:
        """Accept events of the drop-in API; see `log_columns`.

        Args:
            rows: The events; the ledger counts those that no batch can hold, and accepts the others.
            drops: Events that the caller dropped.
            key: The same text when the caller repeats the call, and for no other call; empty: the caller does not.
        """
        batch, refused = batch_of(rows)
        return self._accept("rows", batch, [*drops, *refused], client=key, seq=None)

    def _accept(self, kind: Kind, batch: EventBatch, drops: Sequence[Drop], *, client: str, seq: int | None) -> bool:
        if len(self._queue) > MAX_PENDING_EVENTS:
            self.ingest()  # if that fails nothing was accepted
        batch, refused = admit(batch, self._fold.stats.context_keys)
        dropped = [*drops, *refused]
        with self._folding if dropped else nullcontext():  # a pass that is being applied counts those of before
            return self._append(kind, encode_events(batch, dropped), client, seq, while_open=True)

    def count_dropped(self, drops: Sequence[Drop], *, key: str = "") -> None:
        """Count events that were dropped elsewhere; see `accept_rows`."""
        self._accept("drops", EventBatch.from_rows([]), drops, client=key, seq=None)

    def record(self, operation: Operation, *, key: str = "") -> None:
        """Put an operation into the history, once for each key."""
        with self._folding:
            self._append("operation", to_bytes(operation), key, while_open=True)

    def note_stepless(self, metric: str) -> None:
        """Note that a metric is logged without a step: its points at step 0 supersede nothing in this attempt."""
        with self._folding:
            self._append("stepless", metric.encode("utf-8", "surrogatepass"), while_open=True)

    def add_points(self, points: Sequence[Point]) -> None:
        """Put points into the history that no event stands for."""
        with self._folding:
            self._append("points", points_payload(points))

    def advance(self, *, step: int | None = None, force: bool = False) -> None:
        """Put the accepted events into windows, and close the windows that are complete.

        Args:
            step: The step that is complete; None: the one before each metric's highest.
            force: Close open windows, too.

        Raises:
            JournalFullError: Nothing was done.
        """
        with self._folding:
            if step is not None or force or len(self._queue) or self._fold.has_news or self._fold.stats.waits_for_time:
                self._append_pass(Pass(step=step, force=force))

    def finish(self, *, force: bool) -> None:
        """Make the last pass, which closes open windows if `force` says so, and accept nothing more."""
        with self._folding:
            with self._lock:
                self._is_finished = True
            self.advance(force=force)

    def ingest(self) -> None:
        """Put the accepted events into windows and close none, so that memory stays bounded."""
        with self._folding:
            self._append_pass(Pass(ingest_only=True))

    def _append_pass(self, asked: Pass) -> None:
        with self._lock:
            at, payload = self._at(), msgspec.structs.replace(asked, index=self._history.end).to_bytes()
            pos = self._journal.append("pass", payload, at=at)
            if pos is None or pos - self._applied > 1:
                self._catch_up()
                batches = None
            else:
                self._note(pos, len(payload))
                batches = self._queue.take()
            self._settle()
        if batches is not None:
            self._fold.make_pass(asked, at, batches)

    def _settle(self) -> None:
        """Take note of a position at which nothing is queued."""
        self._settled = _Settled(self._applied, self._fold.num_accepted, self._unsaved_bytes)

    def _append(
        self, kind: Kind, payload: bytes, client: str = "", seq: int | None = None, *, while_open: bool = False
    ) -> bool:
        """Store a record and apply it; return False if the journal has taken it before.

        The caller holds `_folding`, unless the record only queues events.

        Raises:
            RunClosedError: The last pass was made, and the record is for a run that is open.
        """
        with self._lock:
            if while_open and self._is_finished:
                raise RunClosedError("the run is closed; start it again to log more")
            at = self._at()
            pos = self._journal.append(kind, payload, at=at, client=client, seq=seq)
            num_new = self._journal.last_pos - self._applied
            if pos is not None and num_new == 1:
                self._note(pos, len(payload))
                self._fold.apply(Record(pos, kind, at, client, seq or 0, payload))
                return True
        if num_new:  # a call before failed, and its record is there
            with self._folding, self._lock:
                self._catch_up()
        return pos is not None

    def compact(self) -> bool:
        """Take a snapshot if one is due, and free the records that it stands for; return whether it was due.

        Raises:
            JournalFullError: Nothing was freed.
        """
        with self._folding:
            due = (
                self._unsaved_bytes > SNAPSHOT_AFTER_BYTES
                or self._at() - self._snapshot_at > SNAPSHOT_AFTER_S
                or self._history.num_pending > SNAPSHOT_AFTER_POINTS
            )
            if not due or not (self._unsaved_bytes or self._history.num_pending):
                return False
            if self._undecided_bytes > MAX_UNDECIDED_BYTES:
                self._mark = msgspec.structs.replace(self._mark, decided=True)
            self.snapshot()
            return True

    def snapshot(self) -> None:
        """Take a snapshot now; raises JournalFullError if there is no room for it."""
        with self._folding:
            with self._lock:
                if is_settled := not len(self._queue):
                    self._settle()
            if not is_settled:
                self.ingest()
            self._save_snapshot(self._fold.state(self._settled.num_accepted))

    def _save_snapshot(
        self,
        state: LedgerState,
        *,
        index: int = 0,
        superseded: Sequence[tuple[int, int]] | None = None,
        discontinuous: bool = False,
    ) -> None:
        """Store a state, that of the position at which nothing was queued last; events may be accepted meanwhile."""
        at, end = self._at(), self._history.end
        snapshot = Snapshot(self._settled.pos, max(index, self._history.next_index), at, state.to_bytes())
        self._journal.commit(
            snapshot,
            chunks=self._history.pending(),
            keep_after=snapshot.pos if self._mark.decided else self._mark.pos,
            superseded=self._history.pending_superseded if superseded is None else superseded,
            meta={"attempt": self._mark.to_bytes()},
            discontinuous=discontinuous,
        )
        self._history.committed(end)
        self._fold.skip_to(snapshot.index)
        with self._lock:
            self._unsaved_bytes -= self._settled.num_bytes
            self._settled = self._settled._replace(num_bytes=0)
            self._undecided_bytes = 0 if self._mark.decided else self._undecided_bytes
        self._snapshot_at = at

    def to_state(
        self, complete_step: int | None = None, *, pack: Callable[[Mapping[str, Any]], Any] = dict
    ) -> dict[str, Any]:
        """Return what a checkpoint keeps, as plain data.

        Args:
            complete_step: Close windows up to this step first: they are logged now, and not again by another attempt.
            pack: See `Aggregator.to_state`.
        """
        with self._folding:
            if complete_step is not None:
                self._append_pass(Pass(step=complete_step))
            self._append_pass(Pass(ingest_only=True))  # says where the next item is, too
            place = self._mark.place(index=self._history.end, at=self._at(), superseded=self._history.superseded_ranges)
            return {"journal": place, "stats": self._fold.stats.to_state(pack)}

    def note_final(self, checkpoint: str) -> None:
        """Remember that nothing follows a checkpoint but the windows that the end of the run closed."""
        self._journal.set_meta("final", msgspec.msgpack.encode([checkpoint, self._history.end]))

    def is_final(self, checkpoint: str) -> bool:
        """Tell whether the run ended with that checkpoint, and nothing came since."""
        held = self._journal.meta("final")
        return held is not None and msgspec.msgpack.decode(held) == [checkpoint, self._mark.index]

    def keep(self) -> None:
        """Go on from where the last attempt ended: this one begins with its very last state."""
        with self._folding:
            self._mark = msgspec.structs.replace(self._mark, decided=True, resumed=True)
            self._fold.continue_from(None)
            self.snapshot()

    def rewind(self, state: Mapping[str, Any], *, key: str = "") -> int | None:
        """Go on from a state of `to_state`; what came after it is superseded, except the events of this attempt.

        An attempt that went back before, or that saved the state itself, has no events besides those in the state.

        Args:
            state: The state; empty, or that of another run, for the very beginning of this one.
            key: The same text when the caller repeats the call, and for no other call; empty: the caller does not.

        Returns:
            The first index whose item the rewind shows or hides; None if there is no such item.

        Raises:
            JournalFullError: Nothing was changed.
        """
        with self._folding, self._lock:
            state = self._mark.own(state)
            if (not state and (self._mark.resumed or not self._mark.pos)) or (key and key == self._mark.key):
                return None
            own, first, end = self._own_branch(state)
            index = place_of(state).get("index", first if state else 0)
            ranges, dead = self._history.superseded_ranges, (*self._mark.dead, (first, max(first, index)))
            before_it = map(tuple, place_of(state).get("superseded", ranges))
            superseded = merged([*before_it, (min(index, first), end), *dead])
            rewound = self._fold.rewound(state, own, self._mark, at=self._mark.at if own else self._at())
            self._settle()
            before, changes = self._mark, {"decided": True, "resumed": True, "key": key, "dead": tuple(merged(dead))}
            self._mark = msgspec.structs.replace(before, **changes)
            try:  # a journal that lost its end: no index before the checkpoint's may go to another item
                self._save_snapshot(rewound, index=index, superseded=superseded, discontinuous=True)
            except BaseException:
                self._mark = before
                raise
            self._fold.begin(self._config, self._mark)
            self._fold.load(rewound)
            self._history.dead = self._mark.dead
            self._history.set_superseded(superseded)
            return first_difference(ranges, superseded)

    def open_again(self, choose: Choice, *, resumed_at: int | None = None) -> int | None:
        """Begin another opening, with other points superseded; open windows are closed first.

        Args:
            choose: Returns the superseded ranges.
            resumed_at: The step at which a program resumes that restores its own state.

        Returns:
            The lowest index that is shown or superseded from now on; None if nothing changes.
        """
        with self._folding, self._lock:
            self._append_pass(Pass(force=True))
            before, stats, continuation = self._mark, self._fold.stats.to_state(), self._fold.continuation
            ranges, superseded = self._history.superseded_ranges, choose(self._history, before.all_openings)
            self._mark = before.opened_again(self._history.end, self._wall_clock())
            try:
                if resumed_at is not None:
                    self._mark = msgspec.structs.replace(self._mark, decided=True, resumed=True)
                    self._fold.stats.go_back(resumed_at)
                self._fold.continue_behind(self._history.end)
                state = self._fold.state(self._settled.num_accepted)
                self._save_snapshot(state, superseded=superseded, discontinuous=True)
            except BaseException:
                self._mark = before
                self._fold.stats.restore(stats)
                self._fold.continue_from(continuation)
                raise
            self._history.set_superseded(superseded)
            return first_difference(ranges, superseded)

    def take_change(self) -> int | None:
        """Return the lowest index superseded by new points since the last call, or None."""
        with self._folding:
            return self._fold.take_change()

    def is_under_way(self, state: Mapping[str, Any]) -> bool:
        """Tell whether this attempt went on from a state before, or made this one itself."""
        with self._folding:
            return self._mark.resumed or place_of(self._mark.own(state)).get("attempt") == self._mark.number

    def _own_branch(self, state: Mapping[str, Any]) -> tuple[list[tuple[str, bytes]], int, int]:
        """Return the records of this attempt that count again, and first index and end of the branch that dies.

        The branch begins at the index of the state if that is lower.
        """
        end = self._history.end
        if self._mark.resumed or place_of(state).get("attempt") == self._mark.number:
            return [], end, end
        if self._mark.decided:  # too many to be kept: what they gave so far stays
            self._append_pass(Pass(force=True))
            return [], self._mark.index, self._mark.index
        self._catch_up()
        records = self._journal.records(self._mark.pos)
        return [(r.kind, r.payload) for r in records if counts_again(r)], self._mark.index, self._history.end

    @property
    def stats(self) -> Aggregator:
        """Windows and summary of the run, for code that holds the lock (see `read`) and changes nothing."""
        return self._fold.stats

    def read(self, what: Callable[[Aggregator], Seen]) -> Seen:
        """Call a function with windows and summary, which do not change meanwhile."""
        with self._folding:
            return what(self._fold.stats)

    @property
    def counts(self) -> dict[str, int]:
        """Events `accepted` and `processed`, over all attempts; those that are `queued`; `late` ones."""
        with self._folding, self._lock:
            return {
                "accepted": self._fold.num_accepted,
                "processed": self._fold.num_processed,
                "queued": len(self._queue),
                "late": self._fold.stats.num_late,
            }

    def _at(self) -> float:
        return self._clock() - self._zero
