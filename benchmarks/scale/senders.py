"""Many explorers in one process: what their writers, flushers, boards and reports send, at a rate, from one event loop.

Each class is a Ray actor when the benchmark runs. Explorers send at their own times whether or not earlier messages
were answered, and a latency counts from the moment at which a message was due; so a receiver that is behind shows it.
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

from trieye.replay.remote.delivery import Ack, Outbox, Parcel
from trieye.replay.remote.messages import DEFAULT_TABLE
from trieye.replay.remote.server import ReplayServer
from trieye.training.exploring.explorer import Grant, Report

MAX_INFLIGHT = 4
"""Batches of a writer that wait for their answer, as by default."""

MOST_BYTES, MOST_CALLS = 64 << 20, 1000
"""Under way from one process: a real explorer has its own memory, and these have to share that of one machine."""

START_S = 0.3
"""Until all senders have heard that they are to begin."""

DRAIN_S = 20.0


@dataclass(slots=True)
class Tally:
    """What became of messages in one window of time.

    Attributes:
        begins: When the window does, seconds of `time.monotonic`.
        seconds: How long it is.
        offered: Messages that were due.
        offered_units: Events in them, where they differ in size.
        accepted: Messages that were answered.
        accepted_units: Events in them.
        latencies: Of those that were answered.
        refused: Messages that were not taken.
    """

    begins: float
    seconds: float
    offered: int = 0
    offered_units: float = 0.0
    accepted: int = 0
    accepted_units: float = 0.0
    latencies: list[float] = field(default_factory=list)
    refused: int = 0

    @property
    def ends(self) -> float:
        """When the window ends."""
        return self.begins + self.seconds

    def note(self, due: float, now: float, units: float = 1.0) -> None:
        """Count an answer."""
        if self.begins <= now < self.ends:
            self.accepted += 1
            self.accepted_units += units
            self.latencies.append(now - due)


class Gate:
    """Bounds what is under way from one process; those that find no room are asked again, in turn."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.waiting: deque[SyntheticWriter] = deque()

    def leave(self) -> None:
        """Make room, and let those that wait send until there is none."""
        self.room += 1
        while self.room and self.waiting:
            self.waiting.popleft().resume()


class SyntheticWriter:
    """What the writer of an explorer sends: numbered batches, up to four of them under way, each of them the same rows.

    Args:
        sender: The process it is in.
        tally: Counts its batches.
        gate: Bounds what the process has under way.
        is_closed_loop: Whether a batch that was taken is followed by another one at once.
    """

    def __init__(self, sender: "ReplaySender", tally: Tally, gate: Gate, *, is_closed_loop: bool) -> None:
        self._sender, self._tally, self._gate, self._is_closed_loop = sender, tally, gate, is_closed_loop
        self._outbox = Outbox(max_inflight=MAX_INFLIGHT, keep_bytes=0)
        self._dues: deque[float] = deque()
        self._loop = asyncio.get_running_loop()
        self._is_at_gate = self._is_over = False
        self.client = uuid.uuid4().hex

    def put(self, due: float) -> None:
        """Send a batch that was due at some time."""
        self._outbox.put(self._sender.block)
        self._dues.append(due)
        self._send()

    def resume(self) -> None:
        """Send what the gate had no room for."""
        self._is_at_gate = False
        self._send()

    def _send(self) -> None:
        while not (self._is_at_gate or self._is_over):
            if not self._gate.room:
                self._is_at_gate = True
                self._gate.waiting.append(self)
                return
            parcel = self._outbox.next()
            if parcel is None:
                return
            self._gate.room -= 1
            call = self._sender.channel.begin(
                ReplayServer.add_batch, DEFAULT_TABLE, self.client, parcel.first, self._outbox.oldest, parcel.rows
            )
            call.add_done_callback(partial(self._pass_on, parcel))

    def _pass_on(self, parcel: Parcel, call: "Future[Ack]") -> None:
        self._loop.call_soon_threadsafe(self._hear, parcel, call, time.monotonic())

    def _hear(self, parcel: Parcel, call: "Future[Ack]", now: float) -> None:
        ack = call.result()
        num_taken = self._outbox.answered(parcel, ack)
        self._tally.refused += ack.end < parcel.end
        for _ in range(num_taken):
            self._tally.note(self._dues.popleft(), now)
        self._is_over = now >= self._tally.ends  # what waits is not sent any more
        if self._outbox.is_held_up:
            self._outbox.go_back(ack)
        if self._is_closed_loop and not self._is_over:
            for _ in range(num_taken):
                self.put(now)
        self._gate.leave()
        self._send()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._outbox.num_inflight


class ReplaySender:
    """Writers of many explorers.

    Args:
        channel: The way to the replay.
        world: Name of the world that the rows are of.
        rows: Of a batch.
    """

    def __init__(self, channel: Any, world: str, rows: int) -> None:
        self.channel, self.block = channel, WORLDS[world].block(rows)

    def pid(self) -> int:
        """Return the process."""
        return _pid()

    async def run(self, num: int, per_s: float, begins: float, seconds: float) -> Tally:
        """Send for some time.

        Args:
            num: How many explorers.
            per_s: Batches per second of each; infinite: always as many as may be under way.
            begins: When, seconds of `time.monotonic`.
            seconds: How long.
        """
        tally = Tally(begins, seconds)
        gate = Gate(max(min(MOST_BYTES // self.block.size_bytes, MOST_CALLS), 1))
        is_closed_loop = per_s == float("inf")
        writers = [SyntheticWriter(self, tally, gate, is_closed_loop=is_closed_loop) for _ in range(num)]
        if is_closed_loop:
            await asyncio.sleep(max(begins - time.monotonic(), 0))
            for writer in writers * MAX_INFLIGHT:
                writer.put(time.monotonic())
            await asyncio.sleep(max(tally.ends - time.monotonic(), 0))
        else:
            await _at_their_times(lambda at, due: writers[at % num].put(due), num * per_s, tally)
        await _until(lambda: all(writer.is_idle for writer in writers))
        for writer in writers:
            self.channel.begin(ReplayServer.leave, DEFAULT_TABLE, writer.client)
        return tally


class HubSender:
    """Flushers of many explorers: each sends what it logged since its last batch, when a pause after that is over.

    Args:
        channel: The way to the hub, as a `RunClient` has it.
    """

    def __init__(self, channel: Any) -> None:
        self._actor = channel._actor  # noqa: SLF001 - what the channel itself calls, but without waiting for the answer

    def pid(self) -> int:
        """Return the process."""
        return _pid()

    async def run(
        self, num: int, events: float, interval_s: float, begins: float, seconds: float, warm_up_s: float = 0.0
    ) -> Tally:
        """Send for some time.

        Args:
            num: How many explorers.
            events: Per second of each; in each batch, if there is no pause between.
            interval_s: The pause after a batch; 0: none.
            begins: From when on messages count, seconds of `time.monotonic`.
            seconds: How long.
            warm_up_s: So much earlier they begin.
        """
        tally, first = Tally(begins, seconds), begins - warm_up_s
        clients = [self._log(tally, events, interval_s, first + interval_s * at / num) for at in range(num)]
        await asyncio.gather(*clients)
        tally.offered_units = num * events * seconds if interval_s else tally.accepted_units
        tally.offered = round(num * seconds / interval_s) if interval_s else tally.accepted
        return tally

    async def _log(self, tally: Tally, events: float, interval_s: float, due: float) -> None:
        client, num_sent, number = uuid.uuid4().hex, 0, 0
        since = due - interval_s
        while due < tally.ends:
            await asyncio.sleep(max(due - time.monotonic(), 0))
            now = time.monotonic()
            size = min(int(events * (now - since)) - num_sent, 10_000) if interval_s else int(events)
            if size:
                number += 1
                num_sent += size
                method = self._actor.log_columns.options(max_task_retries=0)
                answer = method.remote(batch_of(size, time.time()), client=client, seq=number)
                heard = await _heard(answer)
                tally.note(due, heard, size)
            due = time.monotonic() + interval_s


class Waiters:
    """Explorers that wait for newer weights while they collect.

    Args:
        actor: The synchronizer.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def pid(self) -> int:
        """Return the process."""
        return _pid()

    async def run(self, num: int, begins: float, seconds: float, version: int | None = None) -> Tally:
        """Wait for one version after the other; a latency counts from when a version was published.

        Args:
            num: How many explorers.
            begins: When, seconds of `time.monotonic`.
            seconds: How long.
            version: The newest one; None: ask for what is known already, which is answered at once.
        """
        tally = Tally(begins, seconds)
        await asyncio.gather(*(self._follow(tally, version) for _ in range(num)))
        return tally

    async def _follow(self, tally: Tally, version: int | None) -> None:
        method = self._actor.wait_newer.options(max_task_retries=0)
        while (now := time.monotonic()) < tally.ends:
            found = await method.remote(-1 if version is None else version, min(tally.ends - now, 10.0))
            if found is None:
                continue
            tally.note(now if version is None else found.step / 1e9, time.monotonic())
            version = None if version is None else found.version


class Answerers:
    """Explorers that are told to collect fragments, and report them when their time is over.

    Args:
        world: Name of the world that the rows are of, if reports have rows; None if those go to a replay.
        rows: Of a fragment.
        period_s: How long a fragment takes.
    """

    def __init__(self, world: str | None, rows: int, period_s: float) -> None:
        self._payload = None if world is None else WORLDS[world].payload()
        self._rows, self._period_s = rows, period_s
        self._free_at: dict[int, float] = {}

    def pid(self) -> int:
        """Return the process."""
        return _pid()

    async def do(self, index: int, method: str, *values: Any) -> Any:
        """Do what an explorer does."""
        return await self._rollout(index, *values) if method == "rollout" else None

    async def _rollout(self, index: int, grant: Grant) -> Report:
        now = time.monotonic()
        done = max(self._free_at.get(index, now), now) + self._period_s
        self._free_at[index] = done
        if self._period_s:
            await asyncio.sleep(done - now)
        version = grant.published.version
        return Report(
            explorer=index, number=grant.number, version_min=version, version_max=version, env_steps=self._rows,
            ended={"episode/return": [1.0], "episode/length": [200.0]}, moments=[], payload=self._payload,
            interrupted=0, seconds=done,  # when it was collected: the learner's side says how late it is
        )  # fmt: skip


async def _at_their_times(act: Callable[[int, float], None], per_s: float, tally: Tally) -> None:
    """Act at regular times, and catch up where the process is late; count the times."""
    for number in itertools.count():
        due = tally.begins + number / per_s
        if due >= tally.ends:
            break
        left_s = due - time.monotonic()
        if left_s > 0 or not number % 16:  # answers are heard, too
            await asyncio.sleep(max(left_s, 0))
        if time.monotonic() >= tally.ends:
            break
        act(number, due)
    tally.offered = round(tally.seconds * per_s)
    await asyncio.sleep(max(tally.ends - time.monotonic(), 0))


async def _until(is_true: Callable[[], bool]) -> None:
    until = time.monotonic() + DRAIN_S
    while not is_true() and time.monotonic() < until:  # noqa: ASYNC110 - a few times, after the window
        await asyncio.sleep(0.01)


async def _heard(answer: Any) -> float:
    """Return when an answer came, whenever the event loop looks at it."""
    at: list[float] = []
    call = answer.future()
    call.add_done_callback(lambda _: at.append(time.monotonic()))
    await asyncio.wrap_future(call)
    return at[0]


def _pid() -> int:
    return os.getpid()
