"""Flusher: takes logged values from the training thread and brings them to the hub in batches."""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from trieye.config import RuntimeConfig
from trieye.exceptions import ProcessingError
from trieye.runtime.base import Hub
from trieye.stats.batch import EventBatch, EventRow, salvage

logger = logging.getLogger(__name__)

MAX_BATCH_EVENTS = 10_000
RETRY_S = 0.5
GIVE_UP_S = 60.0


class Flusher:
    """A thread that sends what was appended to `pending`, in order, every flush interval.

    Args:
        hub: Where the events go.
        runtime: Interval, bound and what to do beyond it.

    Attributes:
        pending: `EventRow`s or equal tuples; `append` on it is the whole cost of logging.
        latest: Last value of each name, for the progress bar.
    """

    def __init__(self, hub: Hub, runtime: RuntimeConfig) -> None:
        self.pending: deque[tuple[Any, ...]] = deque()
        self.latest: dict[str, float] = {}
        self._hub = hub
        self._runtime = runtime
        self._send_lock = threading.Lock()
        self._stop = threading.Event()
        self._pause = threading.Event()
        self._count_lock = threading.Lock()
        self._num_dropped = 0
        self._in_flight: list[tuple[Any, ...]] = []
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._send_until_stopped, name="trieye-flush", daemon=True)
        self._thread.start()

    def make_room(self) -> bool:
        """Return whether there is room for another event; waits for it if the config says so.

        Raises:
            ProcessingError: The hub is gone.
        """
        if self._runtime.overflow == "drop":
            with self._count_lock:
                self._num_dropped += 1
            return False
        while len(self.pending) >= self._runtime.max_pending_events:
            self.flush()
        return True

    def flush(self) -> None:
        """Return when everything appended before is accepted by the hub.

        Raises:
            ProcessingError: The hub did not take it.
        """
        if self._failure is None:
            try:
                self._send()
            except Exception as error:  # noqa: BLE001 - a remote call: whatever it raises, the hub is gone
                self._failure = error
        if self._failure is not None:
            left = len(self._in_flight) + len(self.pending)
            raise ProcessingError(
                f"the hub takes no metrics any more, and {left} values are not logged: {self._failure}"
            ) from self._failure

    def close(self) -> None:
        """Send what is left and end the thread.

        Raises:
            ProcessingError: The hub did not take it.
        """
        self._stop.set()
        self._thread.join()
        self.flush()

    def _send_until_stopped(self) -> None:
        while not self._stop.wait(self._runtime.flush_interval_s):
            try:
                self._send()
            except Exception as error:  # a remote call: kept for the training thread, which raises it at the next flush
                logger.exception("the hub takes no metrics any more")
                self._failure = error
                return

    def _send(self) -> None:
        with self._send_lock:
            while self._in_flight or self.pending:
                if not self._in_flight:
                    size = min(len(self.pending), MAX_BATCH_EVENTS)
                    self._in_flight = [self.pending.popleft() for _ in range(size)]
                self._deliver(self._batch(self._in_flight))
                self._in_flight = []  # only now: an interrupt before this line costs nothing
            self._report_dropped()

    def _report_dropped(self) -> None:
        with self._count_lock:
            dropped, self._num_dropped = self._num_dropped, 0
        if dropped:
            self._hub.count_dropped("overflow", dropped)

    def _batch(self, rows: Sequence[tuple[Any, ...]]) -> EventBatch:
        try:
            batch = EventBatch.from_rows(rows)
        except (OverflowError, TypeError, ValueError):
            good, bad = salvage([EventRow(*row) for row in rows])
            for reason, count in Counter(reason for reason, _ in bad).items():
                self._hub.count_dropped(reason, count)
            batch = EventBatch.from_rows(good)
        for code, value in zip(batch.codes.tolist(), batch.values.tolist(), strict=True):
            self.latest[batch.names[code]] = value
        return batch

    def _deliver(self, batch: EventBatch) -> None:
        give_up, warned = time.monotonic() + GIVE_UP_S, False
        while True:
            try:
                self._hub.log(batch)
            except ConnectionError as error:  # an actor that restarts is back in seconds
                if time.monotonic() > give_up:
                    raise
                if not warned:
                    logger.warning("the hub does not answer (%s); trying again for %.0f s", error, GIVE_UP_S)
                warned = True
                self._pause.wait(RETRY_S)
            else:
                return
