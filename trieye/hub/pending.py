"""PendingEvents: accepted events that are in no window yet."""

import threading
from collections.abc import Sequence
from typing import Any

from trieye.stats.aggregator import Aggregator
from trieye.stats.batch import EventBatch, EventRow
from trieye.stats.point import Point


class PendingEvents:
    """The queue of an event processor; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all fields below
        self._rows: list[EventRow | tuple[Any, ...]] = []
        self._batches: list[EventBatch] = []
        self._num_pending = 0

    def __len__(self) -> int:
        return self._num_pending

    def add_batch(self, batch: EventBatch) -> None:
        """Add a batch of events."""
        with self._lock:
            self._seal()
            self._batches.append(batch)
            self._num_pending += len(batch)

    def add_rows(self, batch: EventBatch) -> None:
        """Add the events of a batch one by one: `take` joins them with those around them."""
        names = map(batch.names.__getitem__, batch.codes.tolist())
        contexts = map(batch.contexts.get, range(len(batch)))
        rows = zip(names, batch.values.tolist(), batch.steps.tolist(), batch.times.tolist(), contexts, strict=True)
        with self._lock:
            self._rows += rows
            self._num_pending += len(batch)

    def take(self) -> list[EventBatch]:
        """Remove all events and return them in the order of their arrival."""
        with self._lock:
            self._seal()
            taken, self._batches, self._num_pending = self._batches, [], 0
        return taken

    def _seal(self) -> None:
        if self._rows:
            rows, self._rows = self._rows, []
            self._batches.append(self._batch_of(rows))

    def _batch_of(self, rows: Sequence[EventRow | tuple[Any, ...]]) -> EventBatch:
        return EventBatch.from_rows(rows)

    def note_pass(self, points: Sequence[Point], stats: Aggregator, *, at: float, step: int | None) -> None:
        """Called after each pass; does nothing here.

        Args:
            points: The points of the windows that it closed.
            stats: The windows after it.
            at: Journal time in seconds.
            step: The step that was said to be complete, if any.
        """
