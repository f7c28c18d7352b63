"""Courier: the thread that brings the batches of a writer to the server."""

import atexit
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue

from trieye.exceptions import ReplayClosedError
from trieye.process.progress import say
from trieye.process.waiting import Backoff
from trieye.process.worker import Worker
from trieye.replay.remote.channel import Channel
from trieye.replay.remote.delivery import Ack, Outbox, Parcel
from trieye.replay.remote.messages import Block
from trieye.replay.remote.server import ReplayServer

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
HEARTBEAT_S = 1.0
"""How often a writer with nothing to send asks whether the server still has what it sent."""

ANSWER_TIMEOUT_S = 10.0
LIMITER_WAIT_S = 1.0


class Courier:
    """Sends blocks in the order in which they were handed over, until each of them is taken.

    Args:
        channel: The way to the server.
        table: Name of the table.
        client: Name of the writer.
        max_inflight: Batches that may wait for their acknowledgement.
        keep_bytes: Memory for acknowledged batches that no snapshot holds.
        flush_s: How often the writer is asked for a block that is not full.
        collect: Makes the writer hand over what it has; its object is not kept alive.

    Attributes:
        trouble: Why the server does not take what was sent, in words.
    """

    def __init__(
        self,
        channel: Channel[ReplayServer],
        table: str,
        client: str,
        *,
        max_inflight: int,
        keep_bytes: int,
        flush_s: float,
        collect: Callable[[], None],
    ) -> None:
        self.trouble = ""
        self._channel, self._table, self._client = channel, table, client
        self._outbox = Outbox(max_inflight=max_inflight, keep_bytes=keep_bytes)  # only this thread changes it
        self._flush_s, self._collect = flush_s, weakref.WeakMethod(collect)
        self._filled: SimpleQueue[Block] = SimpleQueue()
        # of blocks: the first is changed by threads that hold the writer's lock, the second by this thread; one more
        # than are under way is being filled
        self._num_out, self._num_back, self._max_out = 0, 0, max_inflight + 1
        self._answers: SimpleQueue[tuple[Parcel, Future[Ack]]] = SimpleQueue()
        self._told_gone = 0
        self._backoff, self._not_before = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S), 0.0
        self._last_word = time.monotonic()
        self._next_collect = self._last_word + flush_s
        self._worker = Worker("trieye-writer", self._work, self._pause_s, self._end)
        self._worker.start()
        # Ray ends a process that calls it during the exit
        atexit.register(self._halt)

    # called by the threads that add rows

    @property
    def taken(self) -> int:
        """Rows that the server has."""
        return self._outbox.taken

    def new_block(self, make: Callable[[], Block]) -> Block | None:
        """Return an empty block to fill; None if there is no room for one now. The caller holds the writer's lock.

        Args:
            make: Makes one, where none can be used again.

        Raises:
            TrieyeError: Nothing is sent any more.
        """
        self._raise_failure()
        if not self._has_room():
            return None
        try:
            block = self._outbox.spare.popleft()
            block.reuse()
        except IndexError:
            block = make()
        self._num_out += 1
        return block

    def await_room(self, timeout_s: float) -> bool:
        """Return whether there is room for one more block within some time; raises what `new_block` raises."""
        has_room = self._worker.wait_for(self._has_room, timeout_s)
        self._raise_failure()
        return has_room

    def send(self, block: Block) -> None:
        """Hand over a block, which takes the room of one until it is taken by the server."""
        self._filled.put(block)
        self._worker.wake()

    def await_taken(self, end: int, timeout_s: float) -> bool:
        """Return whether so many rows are taken within some time; raises what `new_block` raises."""
        is_taken = self._worker.wait_for(lambda: self._outbox.taken >= end, timeout_s)
        if not is_taken:
            self._raise_failure()
        return is_taken

    def stop(self) -> None:
        """Send nothing more, end the thread, and let the server forget the writer."""
        self._halt()
        self._channel.begin(ReplayServer.leave, self._table, self._client)

    def _halt(self) -> None:
        self._worker.stop(ReplayClosedError(f"the writer of table {self._table!r} is closed"))
        self._worker.join()

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
        if self._worker.failure is not None:
            raise self._worker.failure

    def _has_room(self) -> bool:
        return self._num_out - self._num_back < self._max_out

    # called by the thread that sends

    def _work(self) -> bool:
        self._receive()
        self._fetch()
        self._deliver()
        return not self._outbox.num_waiting

    def _end(self, error: Exception | None) -> None:
        if error is not None and (self._outbox.num_waiting or not self._filled.empty()):
            say(f"table {self._table!r} of {self._channel.name!r} takes no rows of this writer any more: {error}")
        atexit.unregister(self._halt)

    def _pause_s(self) -> float:
        now = time.monotonic()
        until = min(self._next_collect, now + HEARTBEAT_S)
        if self._outbox.is_held_up:
            until = min(until, self._not_before)
        return max(until - now, 0.001)

    def _fetch(self) -> None:
        """Put what was handed over into the outbox, and ask for more when it is due."""
        collect = self._collect()
        if collect is None:  # nobody holds the writer any more
            if not self._outbox.num_waiting and self._filled.empty():
                self._worker.stop(ReplayClosedError("nobody holds the writer any more"))
        elif time.monotonic() >= self._next_collect or self._worker.is_waited_for:
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
        self._worker.wake()

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
        self._num_back += num_batches
        self._worker.tell()
        if self._outbox.num_gone > self._told_gone:
            self._told_gone = self._outbox.num_gone
            say(
                f"table {self._table!r} of {self._channel.name!r} has lost {self._told_gone} rows of this writer since "
                "its process died: they were in no snapshot, and not kept here any more; raise keep_bytes, or lower "
                "snapshot_every_s"
            )
