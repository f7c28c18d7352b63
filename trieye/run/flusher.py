"""Flusher: takes logged values from the threads that log, and sends them in batches until the hub has accepted them."""

import atexit
import os
import threading
import time
import uuid
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from trieye.config import RuntimeConfig
from trieye.exceptions import JournalError, ProcessingError, RunClosedError, SequenceGapError
from trieye.hub.hub import Channel
from trieye.process.progress import say
from trieye.process.waiting import Backoff
from trieye.process.worker import Worker
from trieye.stats.batch import EventBatch, EventRow, salvage
from trieye.stats.operations import LogHistogram, LogImage, LogTable, LogText, LogVideo, Medium, Operation

MAX_BATCH_EVENTS = 10_000

MAX_PENDING_MEDIA = 1000
MAX_PENDING_MEDIA_BYTES = 64 << 20

_NUMBER_BYTES = 32
"""What a float in a list takes: itself, and the list's pointer to it."""

IDLE_S = 30.0
"""How long a flusher that nobody uses any more goes on: the tasks of a worker that follow each other share one."""

MAX_LATEST_NAMES = 10_000
"""Names whose last value is remembered; no terminal shows more."""

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 2.0


class Delivery:
    """One sender: it numbers what it sends, and repeats a call with the same content and number until the hub answers.

    All methods but `give_up` belong to one thread, which no signal interrupts; so nothing is lost or sent twice. What a
    hub has acknowledged is in its journal: one call is under way at a time, and nothing is kept after its answer. Rows
    of a replay buffer need more (`trieye.replay.remote.delivery`): an actor may lose them until its next snapshot.

    Args:
        channel: The way to the hub.

    Attributes:
        client: Name of the sender, different from every other one's.
        trouble: Why the hub does not take what is being sent; None while it does.
    """

    def __init__(self, channel: Channel) -> None:
        self.client = uuid.uuid4().hex
        self.trouble: Exception | None = None
        self._channel = channel
        self._seq = 0
        self._num_keys = 0
        self._given_up = threading.Event()

    def log(self, batch: EventBatch) -> None:
        """Hand over events, as the batch that follows the one before.

        Raises:
            TrieyeError: The hub will never take it, or nobody waits for that any more.
        """
        self._seq += 1
        while True:
            try:
                self._until_accepted(lambda: self._channel.log(batch, client=self.client, seq=self._seq))
            except SequenceGapError as gap:
                self._renumber(gap)
            else:
                return

    def count_dropped(self, reason: str, count: int) -> None:
        """Report events that are not sent; raises as `log` does."""
        key = self._next_key()
        self._until_accepted(lambda: self._channel.count_dropped(reason, count, key=key))

    def log_operation(self, operation: Operation) -> None:
        """Hand over a histogram, a picture or a text; raises as `log` does."""
        key = self._next_key()
        self._until_accepted(lambda: self._channel.log_operation(operation, key=key))

    def give_up(self) -> None:
        """Begin no further call."""
        self._given_up.set()

    def _next_key(self) -> str:
        self._num_keys += 1
        return f"{self.client}:{self._num_keys}"

    def _renumber(self, gap: SequenceGapError) -> None:
        # one batch is under way at a time, so none was skipped: a journal that was damaged has forgotten some
        if gap.expected == self._seq:
            raise gap
        say(
            f"run {self._channel.run_name!r}: the hub has forgotten values that it had accepted, because its journal "
            f"was damaged (batches {gap.expected} to {self._seq - 1} of this process); those that follow are logged"
        )
        self._seq = gap.expected

    def _until_accepted(self, call: Callable[[], None]) -> None:
        began, backoff = time.monotonic(), Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while self._given_up.is_set() or not self._try(call):
            if self._given_up.wait(backoff.failed()):
                raise RunClosedError(f"run {self._channel.run_name!r} is closed")
        if self.trouble is not None:
            self.trouble = None
            say(f"run {self._channel.run_name!r} takes values again, after {time.monotonic() - began:.1f} s")

    def _try(self, call: Callable[[], None]) -> bool:
        try:
            call()
        except SequenceGapError:
            raise
        except (ConnectionError, JournalError) as error:
            if self.trouble is None:
                say(
                    f"run {self._channel.run_name!r} takes no values now ({error}); "
                    "they are kept, and sent again until it does"
                )
            self.trouble = error
            return False
        return True


class Flusher:
    """A thread that sends what was appended to `pending`, in order, every flush interval.

    Only that thread talks to the hub. Those that log only append and wait, so Ctrl-C or a signal in one of them
    neither loses nor doubles anything.

    Args:
        channel: Where the values go.
        runtime: Interval, bounds and what to do beyond them.

    Attributes:
        pending: `EventRow`s or equal tuples; `append` on it is the whole cost of logging.
        latest: Last value of each name, for the progress bar.
    """

    def __init__(self, channel: Channel, runtime: RuntimeConfig) -> None:
        self.pending: deque[tuple[Any, ...]] = deque()
        self.latest: dict[str, float] = {}
        self._runtime = runtime
        self._channel, self._run_name = channel, channel.run_name
        self._delivery = Delivery(channel)
        self._media: deque[Medium] = deque()
        self._num_accepted = self._num_sending = 0
        # guards `_num_dropped`, which the threads that log raise and the worker takes; no other lock is taken inside it
        self._num_dropped, self._dropped_lock = 0, threading.Lock()
        self._is_closing = self._told_full = False
        # guards the two fields below, and is taken inside the module's lock; no other lock is taken inside it
        self._attached_lock = threading.Lock()
        self._attached: list[weakref.WeakMethod[Callable[[], None]]] = []
        self._state: Literal["open", "ended", "idle"] = "open"
        self._last_used = time.monotonic()
        self._worker = Worker("trieye-flush", self._send, lambda: runtime.flush_interval_s, self._end)
        self._worker.start()

    # called by the threads that log

    def attach(self, on_end: Callable[[], None]) -> bool:
        """Call a bound method when nothing can be appended any more, at once if that is so; its object may vanish.

        Returns:
            False if the flusher ended because nobody used it; nothing is called then, and `flusher_of` makes another.
        """
        with self._attached_lock:
            state = self._state
            if state == "open":
                self._attached = [*self._living(), weakref.WeakMethod(on_end)]
        if state == "ended":
            on_end()
        return state != "idle"

    def detach(self, on_end: Callable[[], None]) -> None:
        """Do not call a bound method any more; its object does not use the flusher any more."""
        with self._attached_lock:
            self._attached = [held for held in self._living() if held() != on_end]

    def detach_all(self) -> None:
        """Tell all that were attached that nothing can be appended any more."""
        with self._attached_lock:
            self._state = "ended"
            attached, self._attached = self._attached, []
        for held in attached:
            if (on_end := held()) is not None:
                on_end()

    def forget_locks(self) -> None:
        """Let go of locks that a thread of the parent held when this process was forked."""
        self._attached_lock = threading.Lock()

    def _living(self) -> list[weakref.WeakMethod[Callable[[], None]]]:
        return [held for held in self._attached if held() is not None]

    def make_room(self) -> bool:
        """Return whether there is room for another event; waits for it if the config says so.

        Raises:
            ProcessingError: The hub will never take more.
        """
        return self._make_room(lambda: len(self.pending) < self._runtime.max_pending_events)

    def submit(self, medium: Medium) -> None:
        """Send a histogram, a picture or another medium; waits for room if there are many, or drops it, as for events.

        Raises:
            ProcessingError: The hub will never take more.
        """

        def has_room() -> bool:
            sizes = [_size_bytes(waiting) for waiting in self._media.copy()]
            return len(sizes) < MAX_PENDING_MEDIA and sum(sizes) < MAX_PENDING_MEDIA_BYTES

        if has_room() or self._make_room(has_room):
            self._media.append(medium)

    def _make_room(self, has_room: Callable[[], bool]) -> bool:
        if self._runtime.overflow == "drop":
            with self._dropped_lock:
                self._num_dropped += 1
            return False
        self._tell_full()
        if not has_room():
            self._worker.wait_for(has_room)
            self._raise_failure()
        return True

    def _tell_full(self) -> None:
        if not self._told_full:
            self._told_full = True
            reason = self._delivery.trouble or "it is slower than what is logged"
            say(f"run {self._run_name!r}: too many values wait for the hub ({reason}); logging waits, too")

    def flush(self) -> None:
        """Return when everything appended before is accepted by the hub.

        Raises:
            ProcessingError: The hub takes nothing; what is not accepted is kept, and sent as soon as it does, unless
                it never will.
        """
        is_over, before = self._worker.next_round(), self._num_accepted
        while not self._worker.wait_for(is_over, self._runtime.ack_timeout_s):
            self._raise_failure()
            if self._num_accepted == before:  # a hub that is slow is not one that takes nothing
                self._raise_overdue()
            before = self._num_accepted
        self._raise_failure()

    def _raise_overdue(self) -> None:
        reason = self._delivery.trouble or "it does not answer"
        raise ProcessingError(
            f"run {self._run_name!r}: the hub accepted nothing for {self._runtime.ack_timeout_s:g} s, and "
            f"{self.num_waiting} values wait: {reason}"
        ) from self._delivery.trouble

    def _raise_failure(self) -> None:
        failure = self._worker.failure
        if failure is not None:
            raise ProcessingError(
                f"run {self._run_name!r}: the hub takes no values any more, and {self.num_waiting} are not logged: "
                f"{failure}"
            ) from failure

    @property
    def num_waiting(self) -> int:
        """Values that are not known to be accepted."""
        return len(self.pending) + len(self._media) + self._num_sending

    def close(self) -> None:
        """Send what is left and end the thread; a second call does nothing.

        Raises:
            ProcessingError: The hub did not take it; nothing is sent any more.
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
            self._give_up()
            self._worker.join()

    def close_at_exit(self) -> None:
        """Send what is left if the process can still do so, and say what is lost."""
        if self._channel.works_at_exit:
            try:
                self.close()
            except ProcessingError as error:
                say(str(error))
            return
        self.detach_all()
        self._give_up()
        if self.num_waiting:
            say(
                f"run {self._run_name!r}: {self.num_waiting} values of this process were not sent before it ended; "
                "flush or close its client before that (in an actor: in its method __ray_shutdown__)"
            )

    def _give_up(self) -> None:
        _forget(self._channel.key)
        self._worker.stop(RunClosedError(f"run {self._run_name!r} is closed"))  # first: giving up is no failure then
        self._delivery.give_up()

    # called by the thread that sends

    def _end(self, error: Exception | None) -> None:
        if error is not None:
            say(f"run {self._run_name!r}: the hub takes no values any more: {error}")

    def _send(self) -> bool:
        """Send what is there by now."""
        left = len(self.pending)
        while left:
            size = min(left, MAX_BATCH_EVENTS)
            self._num_sending = size
            self._send_rows([self.pending.popleft() for _ in range(size)])
            left -= size
            self._note_accepted()
        for _ in range(len(self._media)):
            self._delivery.log_operation(self._media[0])
            self._media.popleft()
            self._note_accepted()
        self._report_dropped()
        self._end_if_idle()
        return True

    def _end_if_idle(self) -> None:
        now = time.monotonic()
        with _lock, self._attached_lock:
            self._attached = self._living()
            is_used = self._attached or self.pending or self._media or self._state != "open"
            self._last_used = now if is_used else self._last_used
            if is_used or now - self._last_used < IDLE_S:
                return
            self._state = "idle"
            if _flushers.get(self._channel.key) is self:
                del _flushers[self._channel.key]
        atexit.unregister(self.close_at_exit)
        self._worker.stop(RunClosedError(f"run {self._run_name!r}: nobody logs to it in this process any more"))

    def _send_rows(self, rows: Sequence[tuple[Any, ...]]) -> None:
        try:
            batch = EventBatch.from_rows(rows)
        except (OverflowError, TypeError, ValueError):
            good, bad = salvage([EventRow(*row) for row in rows])
            for reason, count in Counter(reason for reason, _ in bad).items():
                self._delivery.count_dropped(reason, count)
            batch = EventBatch.from_rows(good)
        self._remember(batch)
        self._delivery.log(batch)

    def _remember(self, batch: EventBatch) -> None:
        last = np.zeros(len(batch.names))
        last[batch.codes] = batch.values  # of values for the same place, the last one stays
        for name, value in zip(batch.names, last.tolist(), strict=True):
            if name in self.latest or len(self.latest) < MAX_LATEST_NAMES:
                self.latest[name] = value

    def _note_accepted(self) -> None:
        self._num_sending = 0
        self._num_accepted += 1
        self._worker.tell()

    def _report_dropped(self) -> None:
        with self._dropped_lock:
            dropped, self._num_dropped = self._num_dropped, 0
        if dropped:
            self._delivery.count_dropped("overflow", dropped)


def _size_bytes(medium: Medium) -> int:
    match medium:
        case LogImage():
            return len(medium.png)
        case LogText():
            return len(medium.text)
        case LogVideo():
            return len(medium.content)
        case LogTable():
            return len(medium.json)
        case LogHistogram():
            return _NUMBER_BYTES * (len(medium.edges) + len(medium.counts))


_flushers: dict[str, Flusher] = {}
_lock = threading.Lock()  # guards `_flushers`; `_attached_lock` of a flusher is taken inside it


def flusher_of(channel: Channel, runtime: RuntimeConfig) -> Flusher:
    """Return the flusher of this process for a hub; it is made at first use, and closed when the process ends.

    Args:
        channel: The way to the hub.
        runtime: See `Flusher`.
    """
    with _lock:
        if channel.key not in _flushers:
            flusher = _flushers[channel.key] = Flusher(channel, runtime)
            atexit.register(flusher.close_at_exit)
        return _flushers[channel.key]


def _forget(key: str) -> None:
    with _lock:
        flusher = _flushers.pop(key, None)
    if flusher is not None:
        atexit.unregister(flusher.close_at_exit)


def _forget_in_child() -> None:
    # a forked child has neither the threads nor the right to speak for its parent
    global _lock
    _lock = threading.Lock()
    for flusher in _flushers.values():
        flusher.forget_locks()
        flusher.detach_all()
        atexit.unregister(flusher.close_at_exit)
    _flushers.clear()


os.register_at_fork(after_in_child=_forget_in_child)
