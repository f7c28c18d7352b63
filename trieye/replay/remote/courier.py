"""BatchSender: the thread that sends a writer's batches; Outbox: which batch it sends next, exactly once."""

import atexit
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

from trieye.exceptions import ReplayClosedError
from trieye.process.progress import say
from trieye.process.waiting import Backoff
from trieye.process.worker import RoundWorker
from trieye.replay.remote.channel import ReplayChannel
from trieye.replay.remote.messages import Ack, Block, RowBatch
from trieye.replay.remote.replay_server import ReplayServer

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
HEARTBEAT_S = 1.0
"""Interval between an idle writer's checks that the server still has its rows."""

ANSWER_TIMEOUT_S = 10.0
LIMITER_WAIT_S = 1.0


@dataclass(slots=True)
class NumberedBatch:
    """A numbered batch, unchanged in every attempt to send it.

    Attributes:
        first: Number of its first row, counted over the lifetime of the writer.
        block: The memory of its rows.
        rows: The rows.
    """

    first: int
    block: Block
    rows: RowBatch

    @property
    def end(self) -> int:
        """Number of the row after its last one."""
        return self.first + len(self.rows)


class Outbox:
    """Chooses the next batch to send, without threads or a clock.

    Up to `max_inflight` batches are in flight. If one is not added, sending stops until all batches in flight are
    answered, then restarts from the server's position. Acknowledged batches are retained until a snapshot contains
    them; the oldest are discarded when they exceed `keep_bytes`.

    Attributes:
        end: Number of rows queued so far.
        num_acknowledged: Number of those rows that the server has.
        num_resent: Acknowledged batches that were sent again because the server died.
        num_gone: Rows that the server lost and that were no longer retained here.
        kept_bytes: Memory of the acknowledged batches that are retained.
        num_inflight: Batches in flight.
        spare: Unused blocks, for new rows.
    """

    def __init__(self, *, max_inflight: int, keep_bytes: int) -> None:
        self.end = self.num_acknowledged = self.num_resent = self.num_gone = self.kept_bytes = self.num_inflight = 0
        self._max_inflight, self._keep_bytes = max_inflight, keep_bytes
        self.spare: deque[Block] = deque(maxlen=max_inflight + 1)
        self._retained: deque[NumberedBatch] = deque()
        self._pending: deque[NumberedBatch] = deque()  # unacknowledged; the first `_num_sent` were sent
        self._num_sent = 0
        self._is_back = False

    @property
    def oldest(self) -> int:
        """Number of the oldest row that can still be sent."""
        return next((batches[0].first for batches in (self._retained, self._pending) if batches), self.end)

    @property
    def num_pending(self) -> int:
        """Number of unacknowledged batches."""
        return len(self._pending)

    @property
    def num_waiting(self) -> int:
        """Number of unacknowledged rows."""
        return self.end - self.num_acknowledged

    @property
    def is_held_up(self) -> bool:
        """Whether a batch was not added and every batch in flight has been answered; `go_back` must follow."""
        return self._is_back and not self.num_inflight

    def put(self, block: Block) -> None:
        """Queue a batch, which must not change afterwards."""
        self._pending.append(NumberedBatch(self.end, block, block.rows()))
        self.end += block.count

    def next(self) -> NumberedBatch | None:
        """Return the next batch to send and mark it as in flight; None if nothing can be sent now."""
        if self._is_back or self.num_inflight >= self._max_inflight or self._num_sent == len(self._pending):
            return None
        self._num_sent += 1
        self.num_inflight += 1
        return self._pending[self._num_sent - 1]

    def answered(self, batch: NumberedBatch, ack: Ack) -> None:
        """Process an answer."""
        self.num_inflight -= 1
        if ack.end < batch.end:
            self._is_back = True
        else:
            self._process(ack)

    def failed(self) -> None:
        """Record that a batch got no answer; the server may have it."""
        self.num_inflight -= 1
        self._is_back = True

    def go_back(self, ack: Ack) -> None:
        """Continue after the rows that the server has. Call it only if no batch is in flight."""
        self._is_back, self._num_sent = False, 0
        while self._retained and self._retained[-1].end > ack.end:
            self.kept_bytes -= self._retained[-1].block.size_bytes
            self._pending.appendleft(self._retained.pop())
            self.num_resent += 1
        # stop waiting for rows that the server lost and that are no longer retained
        self.num_acknowledged = max(ack.end, self.oldest)
        self.num_gone = max(self.num_gone, ack.lost + self.num_acknowledged - ack.end)
        self._process(ack)

    def _process(self, ack: Ack) -> None:
        self.num_gone = max(self.num_gone, ack.lost)
        while self._pending and self._pending[0].end <= ack.end:
            batch = self._pending.popleft()
            self._num_sent = max(self._num_sent - 1, 0)
            self.kept_bytes += batch.block.size_bytes
            self._retained.append(batch)
        self.num_acknowledged = max(self.num_acknowledged, ack.end)
        while self._retained and (self._retained[0].end <= ack.saved or self.kept_bytes > self._keep_bytes):
            block = self._retained.popleft().block
            self.kept_bytes -= block.size_bytes
            self.spare.append(block)


class BatchSender:
    """Sends blocks in order until the server has acknowledged them.

    Args:
        channel: Connection to the server.
        client: Name of the writer.
        max_inflight: Maximum number of unacknowledged batches.
        keep_bytes: Memory for acknowledged batches that no snapshot contains.
        flush_s: Interval for collecting the writer's incomplete block.
        collect: Bound method that makes the writer send its incomplete block; its object is not kept alive.

    Attributes:
        trouble: Why the server does not accept rows.
    """

    def __init__(
        self,
        channel: ReplayChannel[ReplayServer],
        client: str,
        *,
        max_inflight: int,
        keep_bytes: int,
        flush_s: float,
        collect: Callable[[], None],
    ) -> None:
        self.trouble = ""
        self._channel, self._client = channel, client
        self._outbox = Outbox(max_inflight=max_inflight, keep_bytes=keep_bytes)  # only this thread changes it
        self._flush_s, self._collect = flush_s, weakref.WeakMethod(collect)
        self._filled_blocks: SimpleQueue[Block] = SimpleQueue()
        self._max_inflight = max_inflight
        self._answers: SimpleQueue[tuple[NumberedBatch, Future[Ack]]] = SimpleQueue()
        self._num_gone_reported = 0
        self._backoff, self._not_before = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S), 0.0
        self._last_answer = time.monotonic()
        self._next_collect = self._last_answer + flush_s
        self._worker = RoundWorker("trieye-writer", self._work, self._pause_s, self._end)
        self._worker.start()
        # Ray kills a process that calls it during exit
        atexit.register(self._halt)

    # called by threads that add rows

    @property
    def num_acknowledged(self) -> int:
        """Number of rows that the server has."""
        return self._outbox.num_acknowledged

    def new_block(self, make_block: Callable[[], Block]) -> Block | None:
        """Return an empty block to fill; None if there is no room now. The caller must hold the writer's lock.

        Args:
            make_block: Creates a block if none can be reused.

        Raises:
            TrieyeError: Sending has stopped.
        """
        self._raise_failure()
        if not self._has_room():
            return None
        try:
            block = self._outbox.spare.popleft()
            block.reuse()
        except IndexError:
            block = make_block()
        return block

    def await_room(self, timeout_s: float) -> bool:
        """Return whether there is room for another block within the timeout; raises what `new_block` raises."""
        has_room = self._worker.wait_for(self._has_room, timeout_s)
        self._raise_failure()
        return has_room

    def send(self, block: Block) -> None:
        """Queue a block, which occupies room until the server acknowledges it."""
        self._filled_blocks.put(block)
        self._worker.wake()

    def await_acknowledged(self, end: int, timeout_s: float) -> bool:
        """Return whether `end` rows are acknowledged within the timeout; raises what `new_block` raises."""
        is_acknowledged = self._worker.wait_for(lambda: self._outbox.num_acknowledged >= end, timeout_s)
        if not is_acknowledged:
            self._raise_failure()
        return is_acknowledged

    def stop(self) -> None:
        """Stop sending, join the thread, and let the server unregister the writer."""
        self._halt()
        self._channel.begin(ReplayServer.leave, self._client)

    def _halt(self) -> None:
        self._worker.stop(ReplayClosedError(f"the writer of replay {self._channel.name!r} is closed"))
        self._worker.join()

    def stats(self) -> dict[str, float]:
        """Return counts as plain numbers."""
        outbox = self._outbox
        return {
            "taken": outbox.num_acknowledged,
            "waiting_rows": outbox.num_waiting,
            "resent_batches": outbox.num_resent,
            "lost_rows": outbox.num_gone,
            "kept_bytes": outbox.kept_bytes,
        }

    def _raise_failure(self) -> None:
        if self._worker.failure is not None:
            raise self._worker.failure

    def _has_room(self) -> bool:
        return self._filled_blocks.qsize() + self._outbox.num_pending <= self._max_inflight  # no block is being filled

    # called by the sending thread

    def _work(self) -> bool:
        self._receive()
        self._fetch()
        self._deliver()
        return not self._outbox.num_waiting

    def _end(self, error: Exception | None) -> None:
        if error is not None and (self._outbox.num_waiting or not self._filled_blocks.empty()):
            say(f"replay {self._channel.name!r} accepts no more rows of this writer: {error}")
        atexit.unregister(self._halt)

    def _pause_s(self) -> float:
        now = time.monotonic()
        deadline = min(self._next_collect, now + HEARTBEAT_S)
        if self._outbox.is_held_up:
            deadline = min(deadline, self._not_before)
        return max(deadline - now, 0.001)

    def _fetch(self) -> None:
        """Move queued blocks into the outbox, and collect more when due."""
        collect = self._collect()
        if collect is None:  # the writer was garbage-collected
            if not self._outbox.num_waiting and self._filled_blocks.empty():
                self._worker.stop(ReplayClosedError("the writer was garbage-collected"))
        elif time.monotonic() >= self._next_collect or self._worker.is_waited_for:
            collect()
            self._next_collect = time.monotonic() + self._flush_s
        while not self._filled_blocks.empty():
            self._outbox.put(self._filled_blocks.get())

    def _receive(self) -> None:
        while not self._answers.empty():
            batch, call = self._answers.get()
            try:
                ack = call.result()
            except ConnectionError as error:
                self._outbox.failed()
                self._wait_longer(str(error))
                continue
            self._last_answer = time.monotonic()
            if ack.refused or ack.end >= batch.end:  # a batch after a refused one states no reason
                self.trouble = ack.refused
            if self._backoff.failures:
                self._backoff.worked()
            self._outbox.answered(batch, ack)
            self._report()

    def _deliver(self) -> None:
        now = time.monotonic()
        outbox = self._outbox
        is_idle = not outbox.num_waiting and outbox.kept_bytes and now - self._last_answer > HEARTBEAT_S
        if (outbox.is_held_up or is_idle) and now >= self._not_before:
            self._resynchronize()
        while (batch := outbox.next()) is not None:
            call = self._channel.begin(ReplayServer.add_batch, self._client, batch.first, outbox.oldest, batch.rows)
            call.add_done_callback(partial(self._queue_answer, batch))

    def _queue_answer(self, batch: NumberedBatch, call: "Future[Ack]") -> None:
        self._answers.put((batch, call))
        self._worker.wake()

    def _resynchronize(self) -> None:
        """Query the server's position and continue from there."""
        wait_s = LIMITER_WAIT_S if self._outbox.is_held_up else 0.0
        try:
            call = self._channel.begin(ReplayServer.await_insert, self._client, wait_s)
            ack = call.result(ANSWER_TIMEOUT_S)
        except (ConnectionError, TimeoutError) as error:
            self._wait_longer(str(error) or "it does not answer")
            return
        self._last_answer = time.monotonic()
        self.trouble = ack.refused
        if self._outbox.is_held_up or ack.end < self._outbox.num_acknowledged:
            self._outbox.go_back(ack)
            self._report()

    def _wait_longer(self, trouble: str) -> None:
        self.trouble = trouble
        self._not_before = time.monotonic() + self._backoff.failed()

    def _report(self) -> None:
        """Wake the threads that wait for acknowledgements, and report lost rows."""
        self._worker.tell()
        if self._outbox.num_gone > self._num_gone_reported:
            self._num_gone_reported = self._outbox.num_gone
            say(
                f"replay {self._channel.name!r} lost {self._num_gone_reported} rows of this writer "
                "when its process died: no snapshot contained them, and the writer no longer kept them; raise "
                "keep_bytes or lower snapshot_every_s"
            )
