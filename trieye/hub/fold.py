"""Fold: what applied records add up to: queued events, windows, points; the same whenever they are applied again."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal

import msgspec

from trieye.config import StatsConfig
from trieye.history.history import History
from trieye.hub.marks import AttemptMark, LedgerState, Pass, packed, place_of
from trieye.hub.pending import PendingEvents
from trieye.hub.supersession import Continuation, Supersession
from trieye.journal.event_payloads import Drop, decode_events, from_bytes
from trieye.journal.journal import Record
from trieye.journal.ranges import first_difference, merged
from trieye.stats.aggregator import Aggregator
from trieye.stats.batch import EventBatch
from trieye.stats.operations import Item, Medium
from trieye.stats.point import Point

Kind = Literal["events", "rows", "drops", "operation", "pass", "points", "stepless"]
"""Kinds of records: a batch of a client, single events of trieye 0.1.5, counts of dropped events, and so on."""


class Fold:
    """Applies records, live or replayed; knows no file and no clock.

    Args:
        config: The metrics.
        history: Where points and operations go.
        queue: Events that are in no window yet.

    Attributes:
        stats: Windows of the metrics.
        num_accepted: Events accepted, over all attempts.
        num_processed: Events put into windows.
        has_news: Whether a pass may find windows that are complete.
        next_index: Index of the next item. The history holds an item before its end already: a hub that died had
            applied the record that this one replays.
        supersession: Which older points the attempt supersedes; None: it supersedes none.
    """

    def __init__(self, config: StatsConfig, history: History, queue: PendingEvents) -> None:
        self.queue = queue
        self.supersession: Supersession | None = None
        self._changed_from: int | None = None
        self.num_accepted = self.num_processed = 0
        self.has_news = False
        self.next_index = history.end
        self._history = history
        self.begin(config)

    def begin(self, config: StatsConfig, mark: AttemptMark | None = None) -> None:
        """Begin with the empty windows of an attempt."""
        self._config, self.stats = config, _windows(config, mark)

    def adopt(self, config: StatsConfig, mark: AttemptMark) -> None:
        """Go on with the metrics as they are configured in another attempt."""
        self._history.dead = mark.dead
        before = self.stats.to_state()
        self.begin(config, mark)
        self.stats.restore(before)

    def load(self, state: LedgerState) -> None:
        """Continue from a state, and forget the events that are queued now."""
        self.queue.take()
        self.num_accepted, self.num_processed = state.num_accepted, state.num_processed
        self.stats.restore(state.aggregator)
        self.continue_from(state.continuation)
        self.has_news = True
        for kind, payload in state.pending:
            self._take(kind, payload)

    def state(self, num_accepted: int) -> LedgerState:
        """Return the state after the last pass, to be encoded.

        Args:
            num_accepted: Events that were accepted before it; those that came since are in later records.
        """
        return LedgerState(
            aggregator=self.stats.to_state(packed),
            pending=[],
            num_accepted=num_accepted,
            num_processed=self.num_processed,
            continuation=self.continuation,
        )

    @property
    def continuation(self) -> Continuation | None:
        """The decisions about older points so far; None: nothing supersedes them."""
        return None if self.supersession is None else self.supersession.state

    def continue_from(self, continuation: Continuation | None) -> None:
        """Supersede older points from now on; None: never."""
        self.supersession = None if continuation is None else Supersession(continuation, self._history)

    def continue_behind(self, index: int) -> None:
        """Let points from an index on supersede those before it."""
        self.continue_from(Continuation(index) if self._history.end else None)

    def take_change(self) -> int | None:
        """Return the lowest index superseded since the last call, or None."""
        changed, self._changed_from = self._changed_from, None
        return changed

    def _supersede(self, points: Sequence[Point]) -> None:
        """Supersede older points before a reader sees the new ones."""
        if self.supersession is None:
            return
        if superseded := self.supersession.of([p for p in points if not self.stats.is_over_time(p.metric)]):
            before = self._history.superseded_ranges
            self._history.set_superseded(merged([*before, *superseded]))
            first = first_difference(before, self._history.superseded_ranges)
            if first is not None:
                self._changed_from = first if self._changed_from is None else min(first, self._changed_from)

    def rewound(
        self, state: Mapping[str, Any], own: list[tuple[str, bytes]], mark: AttemptMark, *, at: float
    ) -> LedgerState:
        """Return the state from which the run goes on after a rewind.

        Args:
            state: State of a checkpoint.
            own: Kind and payload of records that count again.
            mark: The present attempt.
            at: Journal time in seconds of the rewind.
        """
        stats = _windows(self._config, mark)
        stats.restore(state.get("stats", {}), shift_s=at - float(place_of(state).get("at", at)))
        num_own = sum(len(decode_events(payload)[0]) for kind, payload in own if kind != "operation")
        num_before = self.num_accepted - num_own
        return LedgerState(stats.to_state(), own, num_accepted=num_before, num_processed=num_before)

    def apply(self, record: Record) -> None:
        """Apply a record."""
        if record.kind == "pass":
            self.make_pass(Pass.from_bytes(record.payload), record.at, self.queue.take())
        else:
            self._take(record.kind, record.payload)

    def _take(self, kind: str, payload: bytes) -> None:
        match kind:
            case "events" | "rows" | "drops":
                self.add(kind, *decode_events(payload))
            case "operation":
                self.write([from_bytes(payload)])
            case "points":
                points = [Point.from_row(row) for row in msgspec.msgpack.decode(payload)]
                self._supersede(points)
                self.write(points)
            case "stepless":
                if self.supersession is not None:
                    self.supersession.state.stepless.add(payload.decode())

    def add(self, kind: str, batch: EventBatch, drops: Sequence[Drop]) -> None:
        """Queue the events of a record, and count what was dropped."""
        for reason, name, count in drops:
            self.stats.drops.add(reason, name, count)
        if len(batch):
            self.num_accepted += len(batch)
            (self.queue.add_rows if kind == "rows" else self.queue.add_batch)(batch)
        self.has_news = True

    def make_pass(self, asked: Pass, at: float, batches: Sequence[EventBatch]) -> None:
        """Put events into windows, and close some.

        Args:
            asked: What is to be closed.
            at: Journal time in seconds.
            batches: What was queued when the record of the pass was stored; others may be queued by now.
        """
        self.skip_to(asked.index)
        if self.supersession is not None and (steps := self.supersession.first_steps(batches)):
            older = self.stats.begin_again(steps, at=at)
            self.write(older)
            self.supersession.note_older({point.metric for point in older}, self.next_index)
        for batch in batches:
            self.num_processed += len(batch)
            self.stats.ingest(batch, at=at)
        if asked.ingest_only:
            self.has_news = True
            return
        self.has_news = asked.step is not None  # beyond that step, later ones may have completed windows, too
        close = self.stats.flush if asked.force else self.stats.advance
        points = close(at=at, step=asked.step)
        self._supersede(points)
        self.write(sorted(points, key=attrgetter("step")))  # as people read them on a terminal

    def skip_to(self, index: int) -> None:
        """Give the next item this index or a higher one; the records of the items between are lost."""
        self._history.skip_to(index)
        self.next_index = max(self.next_index, index)

    def write(self, points: Sequence[Item]) -> None:
        """Put points or operations into the history, unless they are there already."""
        num_known = max(self._history.end - self.next_index, 0)
        self.next_index += len(points)
        self._history.append(points[num_known:])


def counts_again(record: Record) -> bool:
    """Tell whether a rewind takes a record of its attempt over to the branch that goes on.

    Parameters, tags and files are not taken back in the first place.
    """
    is_medium = record.kind == "operation" and isinstance(from_bytes(record.payload), Medium)
    return is_medium or record.kind in {"events", "rows", "drops", "stepless"}


def points_payload(points: Sequence[Point]) -> bytes:
    """Return the payload of a record of points."""
    return msgspec.msgpack.encode([point.to_row() for point in points])


def _windows(config: StatsConfig, mark: AttemptMark | None) -> Aggregator:
    """Return empty windows of an attempt."""
    made = Aggregator(config.metrics, undeclared=config.undeclared or "auto")
    if mark is not None:
        made.started = mark.started - mark.at
        made.attempt_started = mark.started
        made.elapsed_before = mark.elapsed
    return made
