"""PendingEvents: queue of accepted events that are not in a window yet."""

import threading
from typing import Any

from trieye.stats.batch import EventBatch


class PendingEvents:
    """The queue of an event processor; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all fields below
        self._rows: list[tuple[Any, ...]] = []
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
        """Add the events of a batch row by row: `take` merges adjacent rows into one batch."""
        names = map(batch.names.__getitem__, batch.codes.tolist())
        contexts = map(batch.contexts.get, range(len(batch)))
        rows = zip(names, batch.values.tolist(), batch.steps.tolist(), batch.times.tolist(), contexts, strict=True)
        with self._lock:
            self._rows += rows
            self._num_pending += len(batch)

    def take(self) -> list[EventBatch]:
        """Remove all events and return them in arrival order."""
        with self._lock:
            self._seal()
            batches, self._batches, self._num_pending = self._batches, [], 0
        return batches

    def _seal(self) -> None:
        if self._rows:
            rows, self._rows = self._rows, []
            self._batches.append(EventBatch.from_rows(rows))
