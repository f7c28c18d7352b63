"""Flusher: a background thread that sends logged values to the hub in batches, and retries until they are accepted."""

import atexit
import os
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import msgspec
import numpy as np

from trieye.config import RuntimeConfig
from trieye.exceptions import JournalError, ProcessingError, RunClosedError, SequenceGapError
from trieye.hub.hub import EventChannel
from trieye.hub.ledger import Ledger
from trieye.hub.logic import HubLogic
from trieye.journal.event_payloads import batch_of
from trieye.process.progress import say
from trieye.process.waiting import Backoff
from trieye.process.worker import RoundWorker
from trieye.stats.batch import EventBatch
from trieye.stats.operations import Medium

MAX_BATCH_EVENTS = 10_000

MAX_PENDING_MEDIA = 1000
MAX_PENDING_MEDIA_BYTES = 64 << 20

_NUMBER_BYTES = 32
"""Memory of a float in a list, including the list's pointer."""

IDLE_S = 30.0
"""Lifetime of an unused flusher: consecutive tasks in one worker process share it."""

MAX_LATEST_NAMES = 10_000
"""Maximum number of names whose last value is stored; no terminal shows more."""

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 2.0


class EventSender:
    """Sends numbered calls to the hub, and repeats each with the same content and number until the hub acknowledges it.

    All methods except `abandon` belong to one thread, which signals do not interrupt, so no value is lost or doubled.
    One call is in flight at a time, and its content is dropped after the acknowledgement: it is in the journal then.
    Replay rows need more (`trieye.replay.remote.courier`): an actor may lose acknowledged rows until a snapshot.

    Args:
        channel: The channel to the hub.

    Attributes:
        client: Unique name of this sender.
        trouble: Why the hub does not accept the current call; None while it does.
    """

    def __init__(self, channel: EventChannel) -> None:
        self.client = uuid.uuid4().hex
        self.trouble: Exception | None = None
        self._channel = channel
        self._seq = 0
        self._num_keys = 0
        self._is_abandoned = threading.Event()

    def log(self, batch: EventBatch) -> None:
        """Send events as the next batch.

        Raises:
            TrieyeError: The hub will never accept the batch, or the sender was abandoned.
        """
        self._seq += 1
        while True:
            try:
                self._until_accepted(
                    partial(self._channel.send, Ledger.log_columns, batch, client=self.client, seq=self._seq)
                )
            except SequenceGapError as gap:
                self._renumber(gap)
            else:
                return

    def send(self, request: Callable[..., object], *content: object) -> None:
        """Send a call of a request with a unique key, such as `HubLogic.log_operation`; raises as `log` does."""
        self._num_keys += 1
        self._until_accepted(partial(self._channel.send, request, *content, key=f"{self.client}:{self._num_keys}"))

    def abandon(self) -> None:
        """Start no further call."""
        self._is_abandoned.set()

    def _renumber(self, gap: SequenceGapError) -> None:
        # one batch is in flight at a time, so none was skipped: a damaged journal lost some accepted batches
        if gap.expected == self._seq:
            raise gap
        say(
            f"run {self._channel.run_name!r}: the hub lost accepted values because its journal was damaged (batches "
            f"{gap.expected} to {self._seq - 1} of this process); later values are logged"
        )
        self._seq = gap.expected

    def _until_accepted(self, call: Callable[[], None]) -> None:
        began, backoff = time.monotonic(), None
        while self._is_abandoned.is_set() or not self._try(call):
            backoff = backoff or Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
            if self._is_abandoned.wait(backoff.failed()):
                raise RunClosedError(f"run {self._channel.run_name!r} is closed")
        if self.trouble is not None:
            self.trouble = None
            say(f"run {self._channel.run_name!r}: the hub accepts values again, after {time.monotonic() - began:.1f} s")

    def _try(self, call: Callable[[], None]) -> bool:
        try:
            call()
        except SequenceGapError:
            raise
        except (ConnectionError, JournalError) as error:
            if self.trouble is None:
                say(
                    f"run {self._channel.run_name!r}: the hub does not accept values ({error}); "
                    "they stay queued, and sending is retried"
                )
            self.trouble = error
            return False
        return True


class Flusher:
    """A thread that sends the values in `pending` to the hub, in order, at every flush interval.

    Only this thread talks to the hub. Logging threads just append and wait, so Ctrl-C or a signal interrupting a
    logging thread neither loses nor duplicates a value.

    Args:
        channel: The channel to the hub.
        runtime: Flush interval, queue limits, and whether to block or drop beyond them.

    Attributes:
        pending: Queue of `EventRow`s or equal tuples; logging a value costs one `append`.
        latest: Last value of each name, for the progress bar.
    """

    def __init__(self, channel: EventChannel, runtime: RuntimeConfig) -> None:
        self.pending: deque[tuple[Any, ...]] = deque()
        self.latest: dict[str, float] = {}
        self._runtime = runtime
        self._channel, self._run_name = channel, channel.run_name
        self._sender = EventSender(channel)
        self._media: deque[tuple[int, Medium]] = deque()  # with their sizes in bytes
        self._num_accepted = self._num_sending = 0
        # guards `_num_dropped`: logging threads increment it, the worker resets it; no lock is acquired inside it
        self._num_dropped, self._dropped_lock = 0, threading.Lock()
        self._is_closing = self._has_reported_full = False
        # guards the two fields below; acquired inside the module's lock, and no lock is acquired inside it
        self._attached_lock = threading.Lock()
        self._end_callbacks: list[weakref.WeakMethod[Callable[[], None]]] = []
        self._state: Literal["open", "ended", "idle"] = "open"
        self._last_used = time.monotonic()
        self._worker = RoundWorker("trieye-flush", self._send, lambda: runtime.flush_interval_s, self._end)
        self._worker.start()

    # called by logging threads

    def attach(self, on_end: Callable[[], None]) -> bool:
        """Register a bound method, by weak reference, to call when the flusher ends; call it now if it has ended.

        Returns:
            False, without a call, if the flusher ended because it was idle; `flusher_of` then returns a new one.
        """
        with self._attached_lock:
            state = self._state
            if state == "open":
                self._end_callbacks = [*self._living(), weakref.WeakMethod(on_end)]
        if state == "ended":
            on_end()
        return state != "idle"

    def detach(self, on_end: Callable[[], None]) -> None:
        """Undo `attach`, for an object that no longer uses the flusher."""
        with self._attached_lock:
            self._end_callbacks = [reference for reference in self._living() if reference() != on_end]

    def detach_all(self) -> None:
        """Accept no more values, and call all attached methods."""
        with self._attached_lock:
            self._state = "ended"
            callbacks, self._end_callbacks = self._end_callbacks, []
        for reference in callbacks:
            if (on_end := reference()) is not None:
                on_end()

    def _living(self) -> list[weakref.WeakMethod[Callable[[], None]]]:
        return [reference for reference in self._end_callbacks if reference() is not None]

    def make_room(self) -> bool:
        """Return whether the queue has room for another event, after waiting unless `runtime.overflow` is `drop`.

        Raises:
            ProcessingError: The hub will never accept more values.
        """
        return self._make_room(lambda: len(self.pending) < self._runtime.max_pending_events)

    def submit(self, medium: Medium) -> None:
        """Queue a histogram, image or other medium; a full queue blocks or drops it, as for events.

        Raises:
            ProcessingError: The hub will never accept more values.
        """

        def has_room() -> bool:
            sizes = [size for size, _ in self._media.copy()]
            return len(sizes) < MAX_PENDING_MEDIA and sum(sizes) < MAX_PENDING_MEDIA_BYTES

        if has_room() or self._make_room(has_room):
            self._media.append((_size_bytes(medium), medium))

    def _make_room(self, has_room: Callable[[], bool]) -> bool:
        if self._runtime.overflow == "drop":
            with self._dropped_lock:
                self._num_dropped += 1
            return False
        if not self._has_reported_full:
            self._has_reported_full = True
            reason = self._sender.trouble or "values are logged faster than it accepts them"
            say(f"run {self._run_name!r}: too many values are queued for the hub ({reason}); logging calls block")
        if not has_room():
            self._worker.wait_for(has_room)
            self._raise_failure()
        return True

    def flush(self) -> None:
        """Wait until the hub has accepted all values appended before the call.

        Raises:
            ProcessingError: The hub accepts no values; they stay queued, unless it will never accept any.
        """
        is_over, num_before = self._worker.next_round(), self._num_accepted
        while not self._worker.wait_for(is_over, self._runtime.ack_timeout_s):
            self._raise_failure()
            if self._num_accepted == num_before:  # a slow hub is not a failure
                self._raise_overdue()
            num_before = self._num_accepted
        self._raise_failure()

    def _raise_overdue(self) -> None:
        reason = self._sender.trouble or "it does not answer"
        effect = "are not logged" if self._is_closing else "stay queued, and sending is retried"
        raise ProcessingError(
            f"run {self._run_name!r}: the hub accepted no values for {self._runtime.ack_timeout_s:g} s: {reason}; "
            f"{self.num_waiting} values {effect}"
        ) from self._sender.trouble

    def _raise_failure(self) -> None:
        failure = self._worker.failure
        if failure is not None:
            raise ProcessingError(
                f"run {self._run_name!r}: the hub accepts no further values, and {self.num_waiting} are not logged: "
                f"{failure}"
            ) from failure

    @property
    def num_waiting(self) -> int:
        """Number of values that the hub has not acknowledged."""
        return len(self.pending) + len(self._media) + self._num_sending

    def close(self) -> None:
        """Send pending values and stop the thread; a second call does nothing.

        Raises:
            ProcessingError: The hub did not accept the values; sending is not retried.
        """
        self.detach_all()
        if self._is_closing:
            return
        self._is_closing = True
        try:
            self.flush()
        except (KeyboardInterrupt, SystemExit):
            say(f"run {self._run_name!r}: {self.num_waiting} values are not logged")
            raise
        finally:
            self._stop()
            self._worker.join()

    def close_at_exit(self) -> None:
        """Send pending values if the process can still do so, and report the number of values that were not sent."""
        if self._channel.works_at_exit:
            try:
                self.close()
            except ProcessingError as error:
                say(str(error))
            return
        self.detach_all()
        self._stop()
        if self.num_waiting:
            say(
                f"run {self._run_name!r}: {self.num_waiting} values of this process were not sent before it ended; "
                "flush or close its client earlier (in an actor: in its method __ray_shutdown__)"
            )

    def _stop(self) -> None:
        _unregister(self._channel.key)
        # in this order: an abandoned call is a failure for a worker that was not stopped
        self._worker.stop(RunClosedError(f"run {self._run_name!r} is closed"))
        self._sender.abandon()

    # called by the sending thread

    def _end(self, error: Exception | None) -> None:
        if error is not None:
            say(f"run {self._run_name!r}: the hub accepts no further values: {error}")

    def _send(self) -> bool:
        """Send the values that are queued at the start of the call."""
        num_left = len(self.pending)
        while num_left:
            size = min(num_left, MAX_BATCH_EVENTS)
            self._num_sending = size
            self._send_rows([self.pending.popleft() for _ in range(size)])
            num_left -= size
            self._note_accepted()
        for _ in range(len(self._media)):
            self._sender.send(HubLogic.log_operation, self._media[0][1])
            self._media.popleft()
            self._note_accepted()
        self._report_dropped()
        self._end_if_idle()
        return True

    def _end_if_idle(self) -> None:
        now = time.monotonic()
        with _lock, self._attached_lock:
            self._end_callbacks = self._living()
            is_used = self._end_callbacks or self.pending or self._media or self._state != "open"
            self._last_used = now if is_used else self._last_used
            if is_used or now - self._last_used < IDLE_S:
                return
            self._state = "idle"
            if _flushers.get(self._channel.key) is self:
                del _flushers[self._channel.key]
        atexit.unregister(self.close_at_exit)
        self._worker.stop(RunClosedError(f"run {self._run_name!r}: the flusher of this process was idle and ended"))

    def _send_rows(self, rows: Sequence[tuple[Any, ...]]) -> None:
        batch, drops = batch_of(rows)
        if drops:
            self._sender.send(Ledger.count_dropped, drops)
        self._store_latest(batch)
        self._sender.log(batch)

    def _store_latest(self, batch: EventBatch) -> None:
        last_values = np.zeros(len(batch.names))
        last_values[batch.codes] = batch.values  # NumPy assigns in order: the last value of each name remains
        for name, value in zip(batch.names, last_values.tolist(), strict=True):
            if name in self.latest or len(self.latest) < MAX_LATEST_NAMES:
                self.latest[name] = value

    def _note_accepted(self) -> None:
        self._num_sending = 0
        self._num_accepted += 1
        self._worker.tell()

    def _report_dropped(self) -> None:
        with self._dropped_lock:
            num_dropped, self._num_dropped = self._num_dropped, 0
        if num_dropped:
            self._sender.send(Ledger.count_dropped, [("overflow", "*", num_dropped)])


def _size_bytes(medium: Medium) -> int:
    fields = msgspec.structs.astuple(medium)
    num_bytes = sum(len(field) for field in fields if isinstance(field, bytes | str))
    return num_bytes + _NUMBER_BYTES * sum(len(field) for field in fields if isinstance(field, list))


_flushers: dict[str, Flusher] = {}
_lock = threading.Lock()  # guards `_flushers`; `_attached_lock` of a flusher is acquired inside it


def flusher_of(channel: EventChannel, runtime: RuntimeConfig) -> Flusher:
    """Return this process's flusher for a hub; created at first use, and closed when the process ends.

    Args:
        channel: The channel to the hub.
        runtime: See `Flusher`.
    """
    with _lock:
        if channel.key not in _flushers:
            flusher = _flushers[channel.key] = Flusher(channel, runtime)
            atexit.register(flusher.close_at_exit)
        return _flushers[channel.key]


def _unregister(key: str) -> None:
    with _lock:
        flusher = _flushers.pop(key, None)
    if flusher is not None:
        atexit.unregister(flusher.close_at_exit)


def _reset_in_child() -> None:
    # a forked child lacks the threads of its parent, and must not send values on its behalf
    global _lock
    _lock = threading.Lock()
    for flusher in _flushers.values():
        flusher._attached_lock = threading.Lock()  # noqa: SLF001 - its own module; a thread of the parent may hold it
        flusher.detach_all()
        atexit.unregister(flusher.close_at_exit)
    _flushers.clear()


os.register_at_fork(after_in_child=_reset_in_child)
