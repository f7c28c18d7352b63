"""Load generators: many synthetic explorers that share the event loop of one process.

Each class runs as a Ray actor. The load is open-loop: explorers send on schedule, without waiting for earlier replies,
and latencies are measured from the scheduled time, so they include the backlog of a slow receiver.
"""

import asyncio
import itertools
import os
import time
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from scale.messages import WORLDS, batch_of
from trieye.replay.remote.courier import NumberedBatch, Outbox
from trieye.replay.remote.messages import Ack
from trieye.replay.remote.replay_server import ReplayServer
from trieye.training.exploring.explorer import Assignment, FragmentResult

MAX_INFLIGHT = 4
"""In-flight batches of a writer; the default of `Writer`."""

MOST_BYTES, MOST_CALLS = 64 << 20, 1000
"""In-flight limits of one process: its explorers share the memory of one machine, unlike real ones."""

START_S = 0.3
"""Delay before a simulation, until its start time has reached all senders."""

DRAIN_S = 20.0
"""Timeout for the replies to the last messages."""


@dataclass(slots=True)
class Tally:
    """Counts of messages in a time window.

    Attributes:
        start: Start of the window, in seconds of `time.monotonic`.
        seconds: Length of the window.
        offered: Scheduled messages.
        offered_units: Events in the scheduled messages, if messages differ in size.
        accepted: Acknowledged messages.
        accepted_units: Events in the acknowledged messages.
        latencies: Latencies of the acknowledged messages, in seconds.
        refused: Messages that the receiver refused.
    """

    start: float
    seconds: float
    offered: int = 0
    offered_units: float = 0.0
    accepted: int = 0
    accepted_units: float = 0.0
    latencies: list[float] = field(default_factory=list)
    refused: int = 0

    @property
    def end(self) -> float:
        """End of the window, in seconds of `time.monotonic`."""
        return self.start + self.seconds

    def record(self, due: float, now: float, units: float = 1.0) -> None:
        """Count an acknowledgement."""
        if self.start <= now < self.end:
            self.accepted += 1
            self.accepted_units += units
            self.latencies.append(now - due)


class InFlightLimit:
    """Limits the in-flight messages of a process; blocked writers resume in FIFO order."""

    def __init__(self, num_free: int) -> None:
        self.num_free = num_free
        self.blocked: deque[SyntheticWriter] = deque()

    def release(self) -> None:
        """Release one slot, and resume blocked writers while slots are free."""
        self.num_free += 1
        while self.num_free and self.blocked:
            self.blocked.popleft().resume()


class SyntheticWriter:
    """Writer of a synthetic explorer: sends numbered batches with the same rows, up to four of them in flight.

    Args:
        sender: Actor that owns the writer.
        tally: Counts the batches.
        limit: In-flight limit of the process.
        is_closed_loop: Replace each acknowledged batch with a new one.
    """

    def __init__(self, sender: "ReplaySender", tally: Tally, limit: InFlightLimit, *, is_closed_loop: bool) -> None:
        self._sender, self._tally, self._limit, self._is_closed_loop = sender, tally, limit, is_closed_loop
        self._outbox = Outbox(max_inflight=MAX_INFLIGHT, keep_bytes=0)
        self._due_times: deque[float] = deque()
        self._loop = asyncio.get_running_loop()
        self._is_blocked = self._is_over = False
        self.client = uuid.uuid4().hex

    def put(self, due: float) -> None:
        """Send a batch that was scheduled for `due`."""
        self._outbox.put(self._sender.block)
        self._due_times.append(due)
        self._send()

    def resume(self) -> None:
        """Send batches that the in-flight limit delayed."""
        self._is_blocked = False
        self._send()

    def _send(self) -> None:
        while not (self._is_blocked or self._is_over):
            if not self._limit.num_free:
                self._is_blocked = True
                self._limit.blocked.append(self)
                return
            parcel = self._outbox.next()
            if parcel is None:
                return
            self._limit.num_free -= 1
            call = self._sender.channel.begin(
                ReplayServer.add_batch, self.client, parcel.first, self._outbox.oldest, parcel.rows
            )
            call.add_done_callback(partial(self._schedule_reply, parcel))

    def _schedule_reply(self, parcel: NumberedBatch, call: "Future[Ack]") -> None:
        self._loop.call_soon_threadsafe(self._handle_reply, parcel, call, time.monotonic())

    def _handle_reply(self, parcel: NumberedBatch, call: "Future[Ack]", now: float) -> None:
        ack = call.result()
        num_before = self._outbox.num_pending
        self._outbox.answered(parcel, ack)
        num_accepted = num_before - self._outbox.num_pending
        self._tally.refused += ack.end < parcel.end
        for _ in range(num_accepted):
            self._tally.record(self._due_times.popleft(), now)
        self._is_over = now >= self._tally.end  # pending batches stay unsent
        if self._outbox.is_held_up:
            self._outbox.go_back(ack)
        if self._is_closed_loop and not self._is_over:
            for _ in range(num_accepted):
                self.put(now)
        self._limit.release()
        self._send()

    @property
    def is_idle(self) -> bool:
        """Whether no batch is in flight."""
        return not self._outbox.num_inflight


class ReplaySender:
    """Actor with the writers of many explorers.

    Args:
        channel: Channel to the replay.
        world: Name of the world of the rows.
        rows: Rows of a batch.
    """

    def __init__(self, channel: Any, world: str, rows: int) -> None:
        self.channel, self.block = channel, WORLDS[world].block(rows)

    def pid(self) -> int:
        """Return the process id."""
        return _pid()

    async def run(self, num: int, per_s: float, start: float, seconds: float) -> Tally:
        """Send batches for some time.

        Args:
            num: Number of explorers.
            per_s: Batches per second of each explorer; infinite: closed loop with the maximum number in flight.
            start: Start time, in seconds of `time.monotonic`.
            seconds: Duration.
        """
        tally = Tally(start, seconds)
        limit = InFlightLimit(max(min(MOST_BYTES // self.block.size_bytes, MOST_CALLS), 1))
        is_closed_loop = per_s == float("inf")
        writers = [SyntheticWriter(self, tally, limit, is_closed_loop=is_closed_loop) for _ in range(num)]
        if is_closed_loop:
            await asyncio.sleep(max(start - time.monotonic(), 0))
            for writer in writers * MAX_INFLIGHT:
                writer.put(time.monotonic())
            await asyncio.sleep(max(tally.end - time.monotonic(), 0))
        else:
            await _on_schedule(lambda number, due: writers[number % num].put(due), num * per_s, tally)
        await _until(lambda: all(writer.is_idle for writer in writers))
        for writer in writers:
            self.channel.begin(ReplayServer.leave, writer.client)
        return tally


class HubSender:
    """Actor with the flushers of many explorers; after a pause, a flusher sends the events since its last batch.

    Args:
        channel: Channel of a `RunClient` to the hub.
    """

    def __init__(self, channel: Any) -> None:
        self._actor = channel._actor  # noqa: SLF001 - the channel's own calls block until the reply

    def pid(self) -> int:
        """Return the process id."""
        return _pid()

    async def run(
        self, num: int, events: float, interval_s: float, start: float, seconds: float, warm_up_s: float = 0.0
    ) -> Tally:
        """Send batches of events for some time.

        Args:
            num: Number of explorers.
            events: Events per second of each explorer; without pauses, events per batch.
            interval_s: Pause after a batch; 0 disables pauses.
            start: Start of the measurement, in seconds of `time.monotonic`.
            seconds: Duration of the measurement.
            warm_up_s: Duration of sending before the measurement.
        """
        tally, first = Tally(start, seconds), start - warm_up_s
        clients = [self._log(tally, events, interval_s, first + interval_s * number / num) for number in range(num)]
        await asyncio.gather(*clients)
        tally.offered_units = num * events * seconds if interval_s else tally.accepted_units
        tally.offered = round(num * seconds / interval_s) if interval_s else tally.accepted
        return tally

    async def _log(self, tally: Tally, events: float, interval_s: float, due: float) -> None:
        client, num_sent, number = uuid.uuid4().hex, 0, 0
        since = due - interval_s
        while due < tally.end:
            await asyncio.sleep(max(due - time.monotonic(), 0))
            now = time.monotonic()
            size = min(int(events * (now - since)) - num_sent, 10_000) if interval_s else int(events)
            if size:
                number += 1
                num_sent += size
                method = self._actor.log_columns.options(max_task_retries=0)
                reply = method.remote(batch_of(size, time.time()), client=client, seq=number)
                tally.record(due, await _reply_time(reply), size)
            due = time.monotonic() + interval_s


class SyntheticExplorers:
    """Actor with many explorers that receive assignments, and return each fragment result after a fixed time.

    Args:
        world: Name of the world of the rows in fragment results; None: results without rows, as with a replay.
        rows: Rows of a fragment.
        period_s: Duration of a fragment.
    """

    def __init__(self, world: str | None, rows: int, period_s: float) -> None:
        self._payload = None if world is None else WORLDS[world].payload()
        self._rows, self._period_s = rows, period_s
        self._free_at: dict[int, float] = {}

    def pid(self) -> int:
        """Return the process id."""
        return _pid()

    async def do(self, index: int, method: str, *values: Any) -> Any:
        """Handle a call to one of the explorers; only `rollout` has an effect."""
        return await self._rollout(index, *values) if method == "rollout" else None

    async def _rollout(self, index: int, grant: Assignment) -> FragmentResult:
        now = time.monotonic()
        done = max(self._free_at.get(index, now), now) + self._period_s
        self._free_at[index] = done
        if self._period_s:
            await asyncio.sleep(done - now)
        version = grant.published.version
        return FragmentResult(
            explorer=index, number=grant.number, version_min=version, version_max=version, env_steps=self._rows,
            ended={"episode/return": [1.0], "episode/length": [200.0]}, moments=[], payload=self._payload,
            interrupted=0, seconds=done,  # the scheduled end of the fragment, where the latency starts
        )  # fmt: skip


async def _on_schedule(send: Callable[[int, float], None], per_s: float, tally: Tally) -> None:
    """Send at regular times during the window; catch up if the process falls behind."""
    for number in itertools.count():
        due = tally.start + number / per_s
        if due >= tally.end:
            break
        wait_s = due - time.monotonic()
        if wait_s > 0 or not number % 16:  # yields to the event loop, which handles replies
            await asyncio.sleep(max(wait_s, 0))
        if time.monotonic() >= tally.end:
            break
        send(number, due)
    tally.offered = round(tally.seconds * per_s)
    await asyncio.sleep(max(tally.end - time.monotonic(), 0))


async def _until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DRAIN_S
    while not is_true() and time.monotonic() < deadline:  # noqa: ASYNC110 - a few iterations, after the window
        await asyncio.sleep(0.01)


async def _reply_time(reply: Any) -> float:
    """Return the arrival time of a reply, excluding delays of the event loop."""
    times: list[float] = []
    call = reply.future()
    call.add_done_callback(lambda _: times.append(time.monotonic()))
    await asyncio.wrap_future(call)
    return times[0]


def _pid() -> int:
    return os.getpid()
