"""EventProcessor: applies journal entries: queues events, fills and closes windows, appends points; deterministic."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import chain
from operator import attrgetter
from typing import Any, Literal

import msgspec
import numpy as np

from trieye.config import StatsConfig
from trieye.history.history import History
from trieye.hub.marks import AttemptMark, FlushMarker, LedgerState, packed, position_of
from trieye.hub.supersession import Continuation, Supersession
from trieye.journal.event_payloads import Drop, decode_events, from_bytes
from trieye.journal.journal import JournalEntry
from trieye.journal.ranges import Range, first_difference, merged, of_indices
from trieye.stats.aggregator import Aggregator, summarize
from trieye.stats.batch import EventBatch
from trieye.stats.operations import Item, Medium
from trieye.stats.point import Point
from trieye.stats.windows import AttemptTimes

Kind = Literal["events", "rows", "drops", "operation", "pass", "points", "stepless"]
"""Kinds of journal entries: `events` of a client's batch, `rows` of trieye 0.1.5 events, `pass` for a flush marker."""


class PendingEvents:
    """Queue of accepted events that are not in a window yet; not thread-safe, except for its length."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []
        self._batches: list[EventBatch] = []
        self._num_pending = 0

    def __len__(self) -> int:
        return self._num_pending

    def add_batch(self, batch: EventBatch) -> None:
        """Add a batch of events."""
        self._seal()
        self._batches.append(batch)
        self._num_pending += len(batch)

    def add_rows(self, batch: EventBatch) -> None:
        """Add the events of a batch row by row: `take` merges adjacent rows into one batch."""
        names = map(batch.names.__getitem__, batch.codes.tolist())
        contexts = map(batch.contexts.get, range(len(batch)))
        rows = zip(names, batch.values.tolist(), batch.steps.tolist(), batch.times.tolist(), contexts, strict=True)
        self._rows += rows
        self._num_pending += len(batch)

    def take(self) -> list[EventBatch]:
        """Remove all events and return them in arrival order."""
        self._seal()
        batches, self._batches, self._num_pending = self._batches, [], 0
        return batches

    def _seal(self) -> None:
        if self._rows:
            rows, self._rows = self._rows, []
            self._batches.append(EventBatch.from_rows(rows))


class EventProcessor:
    """Applies new or replayed journal entries; uses neither files nor clocks.

    Args:
        config: The metrics.
        history: Receives points and operations.

    Attributes:
        queue: Events that are not in a window yet.
        stats: Windows of the metrics.
        num_accepted: Events accepted, over all attempts.
        num_processed: Events moved into windows.
        has_news: Whether a flush may find complete windows.
        next_index: Index of the next item. If it is below the end of the history, an earlier hub applied the replayed
            entry before it died, and the history has the item already.
        supersession: Decides which older points the attempt supersedes; None: it supersedes no points.
    """

    def __init__(self, config: StatsConfig, history: History) -> None:
        self.queue = PendingEvents()
        self.supersession: Supersession | None = None
        self._changed_from: int | None = None
        self.num_accepted = self.num_processed = 0
        self.has_news = False
        self.next_index = history.end
        self._history = history
        self.begin(config)

    def begin(self, config: StatsConfig, mark: AttemptMark | None = None) -> None:
        """Start with empty windows for an attempt."""
        self._config, self.stats = config, _windows(config, mark)

    def adopt(self, config: StatsConfig, mark: AttemptMark) -> None:
        """Transfer the windows to the metrics config of another attempt."""
        self._history.dead = mark.dead
        state = self.stats.to_state()
        self.begin(config, mark)
        self.stats.restore(state)

    def load(self, state: LedgerState) -> None:
        """Continue from a state, and discard the queued events."""
        self.queue.take()
        self.num_accepted, self.num_processed = state.num_accepted, state.num_processed
        self.stats.restore(state.aggregator)
        self.continue_from(state.continuation)
        self.has_news = True
        for kind, payload in state.pending:  # events and media, which need no time
            self._apply(kind, payload, 0.0)

    def state(self, num_accepted: int) -> LedgerState:
        """Return the state after the last flush, for encoding.

        Args:
            num_accepted: Events accepted before that flush; later events are in later entries.
        """
        return LedgerState(self.stats.to_state(packed), [], num_accepted, self.num_processed, self.continuation)

    @property
    def continuation(self) -> Continuation | None:
        """Decisions about older points so far; None: the attempt supersedes no points."""
        return None if self.supersession is None else self.supersession.state

    def continue_from(self, continuation: Continuation | None) -> None:
        """Let new points supersede older ones, with earlier decisions; None: they supersede no points."""
        self.supersession = None if continuation is None else Supersession(continuation, self._history)

    def supersede_before(self, index: int) -> None:
        """Let points from an index on supersede the points before it."""
        self.continue_from(Continuation(index) if self._history.end else None)

    def take_change(self) -> int | None:
        """Return the lowest index superseded since the last call, or None."""
        changed_from, self._changed_from = self._changed_from, None
        return changed_from

    def _supersede(self, points: Sequence[Point]) -> None:
        """Supersede older points before a reader sees the new ones."""
        if self.supersession is None:
            return
        if new_ranges := self.supersession.of([p for p in points if self.stats.axis_of(p.metric) != "wall_time"]):
            old_ranges = self._history.superseded_ranges
            self._history.set_superseded(merged([*old_ranges, *new_ranges]))
            first_index = first_difference(old_ranges, self._history.superseded_ranges)
            if first_index is not None:
                self._changed_from = first_index if self._changed_from is None else min(first_index, self._changed_from)

    def if_closed(self, at: float) -> tuple[list[Point], list[Range]]:
        """Return the points of the windows, which stay open, and the indices that these points would supersede."""
        points = self.stats.if_closed(at=at)
        if self.continuation is None:
            return points, []
        supersession = Supersession(deepcopy(self.continuation), self._history)
        return points, supersession.of([p for p in points if self.stats.axis_of(p.metric) != "wall_time"])

    def logged_after_save(self, state: Mapping[str, Any], step: int | None, end: int) -> list[Range]:
        """Return the visible points of the step of a checkpoint that its attempt logged after the save.

        The program will not log them again, unless it repeats the step; its new points then supersede them. The points
        of windows that are open in the checkpoint are not among them, because the rewind restores their events.

        Args:
            state: State of the checkpoint.
            step: Its step; None: unknown.
            end: Index after the last item of earlier attempts.
        """
        position, ranges = position_of(state), self._history.superseded_ranges
        index = position.get("index", end)
        earlier_ranges = [(first, last) for first, last in position.get("superseded", ranges)]
        first_changed = first_difference(earlier_ranges, ranges)
        if not step or step < 0 or (first_changed is not None and first_changed < index):
            return []  # the run has left the branch of the checkpoint
        windows = state.get("stats", {}).get("windows", {})
        open_names = {name for name, of in windows.items() if of.get("open") or of.get("late") or of.get("carried")}
        series = self._history.series(index).items()
        of_step = [
            points for name, points in series if name not in open_names and self.stats.axis_of(name) == "global_step"
        ]
        indices = [points.indices[(points.steps == step) & (points.indices < end)] for points in of_step]
        return of_indices(np.concatenate(indices)) if indices else []

    def rewound(
        self,
        state: Mapping[str, Any],
        entries: list[tuple[str, bytes]],
        mark: AttemptMark,
        *,
        at: float,
        retained: Sequence[Range],
    ) -> LedgerState:
        """Return the state of the run after a rewind.

        Args:
            state: State of a checkpoint.
            entries: Kind and payload of the entries that survive the rewind.
            mark: The current attempt.
            at: Journal time of the rewind in seconds.
            retained: Visible points after the checkpoint that the rewind does not supersede.
        """
        stats = _windows(self._config, mark)
        stats.restore(state.get("stats", {}), shift_s=at - float(position_of(state).get("at", at)))
        for item in chain.from_iterable(map(self._history.items, retained)):
            if isinstance(item, Point):
                summarize(stats.summary, item)
        num_pending = sum(len(decode_events(payload)[0]) for kind, payload in entries if kind != "operation")
        num_before = self.num_accepted - num_pending
        continuation = Continuation(retained[-1][1], since=retained[0][0]) if retained else None
        return LedgerState(stats.to_state(), entries, num_before, num_before, continuation)

    def apply(self, entry: JournalEntry) -> None:
        """Apply a journal entry."""
        self._apply(entry.kind, entry.payload, entry.at)

    def _apply(self, kind: str, payload: bytes, at: float) -> None:
        match kind:
            case "pass":
                self.apply_flush(FlushMarker.from_bytes(payload), at, self.queue.take())
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
        """Queue the events of an entry, and count dropped events."""
        for reason, name, count in drops:
            self.stats.drops.add(reason, name, count)
        if len(batch):
            self.num_accepted += len(batch)
            (self.queue.add_rows if kind == "rows" else self.queue.add_batch)(batch)
        self.has_news = True

    def apply_flush(self, marker: FlushMarker, at: float, batches: Sequence[EventBatch]) -> None:
        """Move events into windows, and close the windows that a flush marker completes.

        Args:
            marker: The flush marker.
            at: Journal time in seconds.
            batches: The queue at the time when the marker was stored; by now, later events may be queued.
        """
        self.skip_to(marker.index)
        is_restart = self.supersession is not None and self.supersession.state.since is None
        if self.supersession is not None and is_restart and (steps := self.supersession.first_steps(batches)):
            older = self.stats.begin_again(steps, at=at)
            self.write(older)
            self.supersession.note_older({point.metric for point in older}, self.next_index)
        for batch in batches:
            self.num_processed += len(batch)
            self.stats.ingest(batch, at=at)
        if marker.ingest_only:
            self.has_news = True
            return
        self.has_news = marker.step is not None  # steps beyond it may have completed further windows
        close = self.stats.flush if marker.force else self.stats.advance
        points = close(at=at, step=marker.step)
        self._supersede(points)
        self.write(sorted(points, key=attrgetter("step")))  # readable order for the console sink

    def skip_to(self, index: int) -> None:
        """Raise the index of the next item to at least this index; the entries of the skipped items are lost."""
        self._history.skip_to(index)
        self.next_index = max(self.next_index, index)

    def write(self, items: Sequence[Item]) -> None:
        """Append points or operations to the history, unless it has them already."""
        num_stored = max(self._history.end - self.next_index, 0)
        self.next_index += len(items)
        self._history.append(items[num_stored:])


def survives_rewind(entry: JournalEntry) -> bool:
    """Return whether a rewind must apply an entry of its attempt again, after the state of the checkpoint.

    Parameters, tags and files need no second application, because a rewind does not undo them. `stepless` entries have
    no effect after it: the points of a rewound attempt supersede none at step 0.
    """
    is_medium = entry.kind == "operation" and isinstance(from_bytes(entry.payload), Medium)
    return is_medium or entry.kind in {"events", "rows", "drops"}


def _windows(config: StatsConfig, mark: AttemptMark | None) -> Aggregator:
    """Return empty windows of an attempt."""
    times = None if mark is None else AttemptTimes(mark.started - mark.at, mark.started, mark.elapsed)
    return Aggregator(config.metrics, undeclared=config.undeclared or "auto", times=times)
