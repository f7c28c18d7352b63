"""Courier: the thread that brings the batches of a writer to the server."""

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue

from trieye.exceptions import ReplayClosedError
from trieye.process.progress import say
from trieye.process.waiting import Backoff
from trieye.replay.remote.channel import Channel
from trieye.replay.remote.delivery import Ack, Outbox, Parcel
from trieye.replay.remote.messages import Block
from trieye.replay.remote.server import ReplayServer

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
HEARTBEAT_S = 1.0
"""How often a writer with nothing to send asks whether the server still has what it sent."""

ANSWER_TIMEOUT_S = 10.0
LIMITER_WAIT_S = 1.0
LONGEST_FAREWELL_S = 1.0

_Nothing = SimpleQueue[None]


class Courier:
    """Sends blocks in the order in which they were handed over, until each of them is taken.

    Whoever waits for the thread does so on a `SimpleQueue`, which Ctrl-C cannot leave locked.

    Args:
        channel: The way to the server.
        table: Name of the table.
        client: Name of the writer.
        outbox: Decides what is sent next; it belongs to this thread.
        flush_s: How often the writer is asked for a block that is not full.
        collect: Makes the writer hand over what it has; its object is not kept alive.
        num_blocks: Blocks that may be on their way, the one that is being filled included.

    Attributes:
        trouble: Why the server does not take what was sent, in words.
    """

    def __init__(
        self,
        channel: Channel[ReplayServer],
        table: str,
        client: str,
        outbox: Outbox,
        *,
        flush_s: float,
        collect: Callable[[], None],
        num_blocks: int,
    ) -> None:
        self.trouble = ""
        self._channel, self._table, self._client, self._outbox = channel, table, client, outbox
        self._flush_s, self._collect = flush_s, weakref.WeakMethod(collect)
        self._filled: SimpleQueue[Block] = SimpleQueue()
        self._room: _Nothing = SimpleQueue()
        self._give(num_blocks)
        self._answers: SimpleQueue[tuple[Parcel, Future[Ack]]] = SimpleQueue()
        self._questions: SimpleQueue[_Nothing] = SimpleQueue()
        self._alarm: _Nothing = SimpleQueue()
        self._failure: Exception | None = None
        self._is_ended, self._told_gone = False, 0
        self._backoff, self._not_before = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S), 0.0
        self._last_word = time.monotonic()
        self._next_collect = self._last_word + flush_s
        self._thread = threading.Thread(target=self._work, name="trieye-writer", daemon=True)
        self._thread.start()
        # Ray ends a process that calls it during the exit
        atexit.register(self._halt)

    # called by the threads that add rows

    @property
    def taken(self) -> int:
        """Rows that the server has."""
        return self._outbox.taken

    def take_room(self) -> bool:
        """Take the right to fill one more block; return False if there is none now.

        Raises:
            TrieyeError: Nothing is sent any more.
        """
        self._raise_failure()
        try:
            self._room.get_nowait()
        except Empty:
            return False
        return True

    def give_room(self) -> None:
        """Give the right back."""
        self._give(1)

    def await_room(self, timeout_s: float) -> bool:
        """Return whether there is room for one more block within some time; raises what `take_room` raises."""
        try:
            self._room.get(timeout=timeout_s)
        except Empty:
            self._raise_failure()
            return False
        self._give(1)
        self._raise_failure()
        return True

    def spare_block(self) -> Block | None:
        """Return an empty block whose memory was in use before, if there is one."""
        try:
            block = self._outbox.spare.popleft()
        except IndexError:
            return None
        block.reuse()
        return block

    def send(self, block: Block) -> None:
        """Hand over a block, which takes the room of one until it is taken by the server."""
        self._filled.put(block)
        self._alarm.put(None)

    def await_taken(self, end: int, timeout_s: float) -> bool:
        """Return whether so many rows are taken within some time; raises what `take_room` raises."""
        deadline = time.monotonic() + timeout_s
        while self._outbox.taken < end:
            self._raise_failure()
            answer: _Nothing = SimpleQueue()
            self._questions.put(answer)
            self._alarm.put(None)
            self._raise_failure()  # the thread may have answered for the last time
            try:
                answer.get(timeout=max(deadline - time.monotonic(), 0.0))
            except Empty:
                return False
        return True

    def stop(self) -> None:
        """Send nothing more, end the thread, and let the server forget the writer."""
        self._halt()
        self._channel.begin(ReplayServer.leave, self._table, self._client)

    def _halt(self) -> None:
        self._failure = self._failure or ReplayClosedError(f"the writer of table {self._table!r} is closed")
        self._is_ended = True
        self._alarm.put(None)
        self._thread.join(LONGEST_FAREWELL_S)  # it may be in a call that is never answered

    def stats(self) -> dict[str, float]:
        """Return counts as plain numbers."""
        outbox = self._outbox
        return {
            "taken": outbox.taken,
            "waiting_rows": outbox.num_waiting,
            "resent_batches": outbox.num_resent,
            "lost_rows": outbox.num_gone,
            "kept_bytes": outbox.kept_bytes,
        }

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _give(self, count: int) -> None:
        for _ in range(count):
            self._room.put(None)

    # called by the thread that sends

    def _work(self) -> None:
        try:
            while not self._is_ended:
                self._sleep()
                self._receive()
                self._fetch()
                self._deliver()
                if not self._outbox.num_waiting:
                    self._tell_all()
        except Exception as error:  # noqa: BLE001 - a remote call: kept for those that add, who raise it at their next call
            if self._failure is None and (self._outbox.num_waiting or not self._filled.empty()):
                say(f"table {self._table!r} of {self._channel.name!r} takes no rows of this writer any more: {error}")
            self._failure = self._failure or error
        atexit.unregister(self._halt)
        self._give(1)  # who waits for room gets it, and then the failure
        self._tell_all()

    def _sleep(self) -> None:
        """Wait until something happens, at most until something is due."""
        now = time.monotonic()
        until = min(self._next_collect, now + HEARTBEAT_S)
        if self._outbox.is_held_up:
            until = min(until, self._not_before)
        try:
            self._alarm.get(timeout=max(until - now, 0.001))
            while True:
                self._alarm.get_nowait()
        except Empty:
            pass

    def _fetch(self) -> None:
        """Put what was handed over into the outbox, and ask for more when it is due."""
        collect = self._collect()
        if collect is None:  # nobody holds the writer any more
            self._is_ended = not self._outbox.num_waiting and self._filled.empty()
        elif time.monotonic() >= self._next_collect or not self._questions.empty():
            collect()
            self._next_collect = time.monotonic() + self._flush_s
        while not self._filled.empty():
            self._outbox.put(self._filled.get())

    def _receive(self) -> None:
        while not self._answers.empty():
            parcel, call = self._answers.get()
            try:
                ack = call.result()
            except ConnectionError as error:
                self._outbox.failed()
                self._wait_longer(str(error))
                continue
            self._last_word = time.monotonic()
            self.trouble = ack.refused
            self._backoff.worked()
            self._note_taken(self._outbox.answered(parcel, ack))

    def _deliver(self) -> None:
        now = time.monotonic()
        outbox = self._outbox
        is_idle = not outbox.num_waiting and outbox.kept_bytes and now - self._last_word > HEARTBEAT_S
        if (outbox.is_held_up or is_idle) and now >= self._not_before:
            self._catch_up()
        while (parcel := outbox.next()) is not None:
            call = self._channel.begin(
                ReplayServer.add_batch, self._table, self._client, parcel.first, outbox.oldest, parcel.rows
            )
            call.add_done_callback(partial(self._hear, parcel))

    def _hear(self, parcel: Parcel, call: "Future[Ack]") -> None:
        self._answers.put((parcel, call))
        self._alarm.put(None)

    def _catch_up(self) -> None:
        """Ask how far the server is, and go on from there."""
        wait_s = LIMITER_WAIT_S if self._outbox.is_held_up else 0.0
        count = self._outbox.next_size
        try:
            call = self._channel.begin(ReplayServer.await_insert, self._table, self._client, count, wait_s)
            ack = call.result(ANSWER_TIMEOUT_S)
        except ConnectionError as error:
            self._wait_longer(str(error))
            return
        except TimeoutError:
            self._wait_longer("it does not answer")
            return
        self._last_word = time.monotonic()
        self.trouble = ack.refused
        if self._outbox.is_held_up or ack.end < self._outbox.taken:
            self._note_taken(self._outbox.go_back(ack))

    def _wait_longer(self, trouble: str) -> None:
        self.trouble = trouble
        self._not_before = time.monotonic() + self._backoff.failed()

    def _note_taken(self, num_batches: int) -> None:
        self._give(num_batches)
        self._tell_all()
        if self._outbox.num_gone > self._told_gone:
            self._told_gone = self._outbox.num_gone
            say(
                f"table {self._table!r} of {self._channel.name!r} has lost {self._told_gone} rows of this writer since "
                "its process died: they were in no snapshot, and not kept here any more; raise keep_bytes, or lower "
                "snapshot_every_s"
            )

    def _tell_all(self) -> None:
        while not self._questions.empty():
            self._questions.get().put(None)
