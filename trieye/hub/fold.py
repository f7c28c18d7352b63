"""Fold: what the records of the journal add up to: queued events, windows, points; the same whenever it is replayed."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from trieye.config import StatsConfig
from trieye.history.history import History
from trieye.hub.marks import AttemptMark, LedgerState, Pass, place_of
from trieye.hub.pending import ActorState
from trieye.hub.processor import StatsProcessor
from trieye.journal.event_payloads import Drop, decode_events
from trieye.journal.journal import Record
from trieye.stats.batch import EventBatch
from trieye.stats.operations import Item, Medium, from_bytes
from trieye.stats.point import Point

logger = logging.getLogger(__name__)

EVENTS, ROWS, DROPS, OPERATION, PASS, POINTS = "events", "rows", "drops", "operation", "pass", "points"
"""Kinds of records: a batch of a client, events of the drop-in API, what was dropped, and so on."""


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
        next_index: Index of the next item; what is before the end of the history is there already, as it is when
            records are replayed that gave it before the death of a hub.
    """

    def __init__(self, config: StatsConfig, history: History, queue: ActorState) -> None:
        self.queue = queue
        self.num_accepted = self.num_processed = 0
        self.has_news = False
        self.next_index = history.end
        self._history = history
        self.stats = self.processor(config)

    def processor(self, config: StatsConfig, mark: AttemptMark | None = None) -> StatsProcessor:
        """Return empty windows of an attempt."""
        made = StatsProcessor(config, sinks=self)
        if mark is not None:
            made.aggregator.started = mark.started - mark.at
            made.aggregator.attempt_started = mark.started
            made.aggregator.elapsed_before = mark.elapsed
        return made

    def adopt(self, config: StatsConfig, mark: AttemptMark) -> None:
        """Go on with the metrics as they are configured in another attempt."""
        self._history.dead = mark.dead
        before = self.stats.aggregator.to_state()
        self.stats = self.processor(config, mark)
        self.stats.aggregator.restore(before)

    def load(self, state: LedgerState) -> None:
        """Go on from a state; what is queued now is forgotten."""
        self.queue.take()
        self.num_accepted, self.num_processed = state.num_accepted, state.num_processed
        self.stats.aggregator.restore(state.aggregator)
        self.has_news = True
        for kind, payload in state.pending:
            self._take(kind, payload)

    def state(self) -> LedgerState:
        """Return the state; nothing may be queued."""
        return LedgerState(
            aggregator=self.stats.aggregator.to_state(),
            pending=[],
            num_accepted=self.num_accepted,
            num_processed=self.num_processed,
        )

    def rewound(
        self, state: Mapping[str, Any], own: list[tuple[str, bytes]], mark: AttemptMark, *, at: float
    ) -> LedgerState:
        """Return what to go on from at a rewind.

        Args:
            state: State of a checkpoint.
            own: Kind and payload of records that count again.
            mark: The present attempt.
            at: Journal time in seconds of the rewind.
        """
        stats = self.processor(self.stats.config, mark)
        stats.aggregator.restore(state.get("stats", {}), shift_s=at - float(place_of(state).get("at", at)))
        num_own = sum(len(decode_events(payload)[0]) for kind, payload in own if kind != OPERATION)
        num_before = self.num_accepted - num_own
        return LedgerState(stats.aggregator.to_state(), own, num_accepted=num_before, num_processed=num_before)

    def apply(self, record: Record) -> list[Point]:
        """Apply a record and return the points of the windows that it closed."""
        if record.kind == PASS:
            return self._pass(Pass.from_bytes(record.payload), record.at)
        self._take(record.kind, record.payload)
        return []

    def _take(self, kind: str, payload: bytes) -> None:
        match kind:
            case "events" | "rows" | "drops":
                self.add(kind, *decode_events(payload))
            case "operation":
                self.write([from_bytes(payload)])
            case "points":
                self.write([_point(*row) for row in msgspec.msgpack.decode(payload)])

    def add(self, kind: str, batch: EventBatch, drops: Sequence[Drop]) -> None:
        """Queue the events of a record, and count what was dropped."""
        for reason, name, count in drops:
            self.stats.aggregator.drops.add(reason, name, count)
        if len(batch):
            self.num_accepted += len(batch)
            (self.queue.add_rows if kind == ROWS else self.queue.add_batch)(batch)
        self.has_news = True

    def _pass(self, asked: Pass, at: float) -> list[Point]:
        self.skip_to(asked.index)
        for batch in self.queue.take():
            self._ingest(batch, at)
        if asked.ingest_only:
            self.has_news = True
            return []
        self.has_news = asked.step is not None  # beyond that step, later ones may have completed windows, too
        close = self.stats.flush if asked.force else self.stats.advance
        points = close(at=at, step=asked.step)
        self.queue.note_pass(points, at=at, step=asked.step, latest=self.stats.aggregator.latest())
        return points

    def _ingest(self, batch: EventBatch, at: float) -> None:
        self.num_processed += len(batch)
        try:
            self.stats.ingest([batch], at=at)
        except Exception:  # a border to user data: what it raises must not cost other batches; it is counted
            logger.exception("a batch of %d events could not be put into windows", len(batch))
            self.stats.aggregator.drops.add("invalid", ", ".join(batch.names[:3]), len(batch))

    def skip_to(self, index: int) -> None:
        """Give the next item this index or a higher one; what gave the items before it is lost."""
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
    is_medium = record.kind == OPERATION and isinstance(from_bytes(record.payload), Medium)
    return is_medium or record.kind in {EVENTS, ROWS, DROPS}


def points_payload(points: Sequence[Point]) -> bytes:
    """Return the payload of a record of points."""
    return msgspec.msgpack.encode([[p.metric, p.value, p.step, p.wall_time, p.log_to, p.count] for p in points])


def _point(metric: str, value: float, step: int, wall_time: float, log_to: list[str], count: int) -> Point:
    return Point(metric, value, step, wall_time, tuple(log_to), count)
