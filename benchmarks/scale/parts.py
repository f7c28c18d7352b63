"""The parts that explorers send to: started, measured with few messages under way, and flooded by many explorers."""

import platform
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import ray
import torch
from scale.messages import NAMES, WORLDS
from scale.model import Kind, Part
from scale.senders import START_S, Answerers, HubSender, ReplaySender, Tally, Waiters

import trieye
from trieye.config.explorer import ExplorerConfig, SyncConfig
from trieye.replay.fragments import FragmentRules
from trieye.replay.remote import RemoteReplay
from trieye.training.exploring.explorer import Report, Task
from trieye.training.exploring.explorers import Explorers
from trieye.training.exploring.in_ray import ObjectStoreTransport, _RayWorker
from trieye.training.exploring.inbox import Fragments, Reports
from trieye.training.exploring.ray_board import RayBoard
from trieye.training.exploring.synchronizer import Published, Synchronizer

NUM_SENDERS = 2
"""Processes that send; more of them only share the same processors."""

WARM_UP_S = 1.0
"""In which clients of the hub come to their rhythm."""

LONGEST_WARM_UP_S = 10.0

FIRST_REPORT_S = 60.0
"""So long may a learner take to tell all explorers what to do, which it does first."""

FEW = 8
"""Explorers with which a cost is measured."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What was measured with few senders that always have messages under way.

    Attributes:
        units: Of a message.
        per_s: Messages that were taken in a second.
        cpu_us: Microseconds of CPU that the receiver used for each, in all its threads.
    """

    units: float
    per_s: float
    cpu_us: float

    @classmethod
    def of(cls, units: float, found: "Outcome") -> "Sample":
        """Return the sample that an outcome is."""
        return cls(units, found.accepted_per_s, found.cpu_us or 0.0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a part made of a load.

    Attributes:
        offered_per_s: Messages that were due.
        accepted_per_s: Messages that were answered.
        p50_ms: Latency of those that were answered, from when they were due.
        p99_ms: The same.
        backlog_growth_per_s: Messages by which the backlog grew in a second.
        receiver_cpu: Processors that the receiver used.
        sender_cpu: Processors that all senders used.
        refused: Messages that were not taken at once.
        units_per_s: Events that were accepted, where messages differ in size.
    """

    offered_per_s: float
    accepted_per_s: float
    p50_ms: float | None
    p99_ms: float | None
    backlog_growth_per_s: float
    receiver_cpu: float
    sender_cpu: float
    refused: int = 0
    units_per_s: float | None = None

    @property
    def cpu_us(self) -> float | None:
        """Microseconds of CPU of the receiver for each message."""
        return 1e6 * self.receiver_cpu / self.accepted_per_s if self.accepted_per_s else None

    @classmethod
    def of(cls, tallies: list[Tally], cpu: "Cpu") -> "Outcome":
        """Return what senders counted, all together."""
        seconds = tallies[0].seconds
        offered, accepted = sum(one.offered for one in tallies), sum(one.accepted for one in tallies)
        latencies = [latency for one in tallies for latency in one.latencies]
        units = sum(one.accepted_units for one in tallies)
        behind = sum(one.offered_units - one.accepted_units for one in tallies) if units != accepted else 0.0
        return cls(
            offered_per_s=offered / seconds,
            accepted_per_s=accepted / seconds,
            p50_ms=1e3 * float(np.percentile(latencies, 50)) if latencies else None,
            p99_ms=1e3 * float(np.percentile(latencies, 99)) if latencies else None,
            backlog_growth_per_s=max(offered - accepted if units == accepted else behind, 0) / seconds,
            receiver_cpu=cpu.receiver,
            sender_cpu=cpu.senders,
            refused=sum(one.refused for one in tallies),
            units_per_s=None if units == accepted else units / seconds,
        )


class Cpu:
    """Seconds of CPU that processes use meanwhile, per second.

    Args:
        receiver: The process that takes messages.
        senders: Those that send them.
    """

    def __init__(self, receiver: int, senders: list[int]) -> None:
        self._receiver, self._senders = psutil.Process(receiver), [psutil.Process(pid) for pid in senders]
        self.receiver = self.senders = 0.0

    @contextmanager
    def during(self, begins: float, seconds: float) -> Iterator[None]:
        """Measure in a window of time; the block ends after it."""
        time.sleep(max(begins - time.monotonic(), 0))
        before, began = self._used(), time.monotonic()
        yield
        time.sleep(max(begins + seconds - time.monotonic(), 0))
        used, elapsed = self._used(), time.monotonic() - began
        self.receiver, self.senders = ((after - first) / elapsed for after, first in zip(used, before, strict=True))

    def _used(self) -> tuple[float, float]:
        return cpu_s(self._receiver), sum(cpu_s(sender) for sender in self._senders)


def cpu_s(process: psutil.Process) -> float:
    """Return the seconds of CPU of a process."""
    return sum(process.cpu_times()[:2])


class Rig(ABC):
    """A part and what sends to it."""

    part: Part

    def __init__(self) -> None:
        self._senders: list[Any] = []

    def _start(self, sender: type, *values: Any) -> None:
        """Start the processes that send, in place of those before."""
        self._stop()
        make: Any = ray.remote(num_cpus=0)(sender)
        self._senders = [make.options(max_concurrency=10_000).remote(*values) for _ in range(NUM_SENDERS)]

    def _stop(self) -> None:
        for sender in self._senders:
            ray.kill(sender)
        self._senders = []

    @abstractmethod
    def receiver(self) -> int:
        """Return the process that receives."""

    def _sent(
        self, num: int, seconds: float, begin: Callable[[Any, int, float], Any], *, warm_up_s: float = 0.0
    ) -> Outcome:
        """Let all senders send, each for its share of the explorers; what comes in the first moments may not count."""
        pids = ray.get([sender.pid.remote() for sender in self._senders])
        begins, cpu = time.monotonic() + START_S + warm_up_s, Cpu(self.receiver(), pids)
        calls = [begin(sender, share, begins) for sender, share in zip(self._senders, shares(num), strict=True)]
        with cpu.during(begins, seconds):
            pass
        return Outcome.of(ray.get(calls), cpu)

    def close(self) -> None:
        """End all of it."""
        self._stop()


def shares(num: int) -> list[int]:
    """Return how many explorers each sender has."""
    return [num // NUM_SENDERS + (number < num % NUM_SENDERS) for number in range(NUM_SENDERS)]


class ReplayRig(Rig):
    """The replay actor, and writers of one kind of explorers."""

    part: Part = "replay"

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self._kind, self._world = kind, WORLDS[kind.name]
        self._replay = RemoteReplay.start({"default": {"capacity": self._world.capacity}})
        self._channel = self._replay._channel  # noqa: SLF001 - what a writer is given

    def receiver(self) -> int:
        """Return the process of the actor."""
        return int(self._replay.stats()["pid"])

    def warm_up(self) -> None:
        """Fill the memory, as the first touch of it takes longer."""
        self.prepare()
        until = time.monotonic() + LONGEST_WARM_UP_S
        while self._replay.stats()["size"] < self._world.capacity and time.monotonic() < until:
            self._flood(FEW, 0.5)

    def calibrate(self, rows: int, seconds: float) -> Sample:
        """Return how many batches of so many rows are taken in a second; their units are bytes."""
        self._start(ReplaySender, self._channel, self._kind.name, rows)
        self._flood(FEW, 0.3)
        found = self._flood(FEW, seconds)
        return Sample.of(rows * self._kind.row_bytes, found)

    def _flood(self, num: int, seconds: float) -> Outcome:
        return self._sent(
            num, seconds, lambda sender, share, begins: sender.run.remote(share, float("inf"), begins, seconds)
        )

    def simulate(self, num: int, seconds: float) -> Outcome:
        """Return what becomes of the fragments of so many explorers."""
        if not self._senders:
            self.prepare()
        per_s = self._kind.fragments_per_s
        return self._sent(num, seconds, lambda sender, share, begins: sender.run.remote(share, per_s, begins, seconds))

    def prepare(self) -> None:
        """Start senders with whole fragments."""
        self._start(ReplaySender, self._channel, self._kind.name, self._kind.fragment_rows)

    def close(self) -> None:
        """End the actor, too."""
        super().close()
        self._replay.close()


class HubRig(Rig):
    """The hub of a run, without sinks, and the clients of explorers that log."""

    part: Part = "hub"

    def __init__(self, kind: Kind, root: Path) -> None:
        super().__init__()
        metrics = [{"name": name, "aggregation": "mean", "log_frequency_steps": 1000} for name in NAMES]
        config = trieye.TrieyeConfig(
            run_name="scaling", persistence={"root_data_dir": str(root)}, sinks={}, stats={"metrics": metrics}
        )
        self._kind = kind
        self._run = trieye.Run(config)
        self._run.__enter__()
        self._start(HubSender, self._run.client()._channel)  # noqa: SLF001 - what a client is sent with

    def receiver(self) -> int:
        """Return the process of the actor."""
        return process_of("HubActor")

    def calibrate(self, events: int, seconds: float) -> Sample:
        """Return how many batches of so many events are accepted in a second."""
        found = self._sent(
            2 * FEW, seconds, lambda sender, share, begins: sender.run.remote(share, events, 0.0, begins, seconds)
        )
        return Sample.of(events, found)

    def simulate(self, num: int, seconds: float) -> Outcome:
        """Return what becomes of the values of so many explorers."""
        events, interval_s = self._kind.events_per_s, self._kind.flush_interval_s
        return self._sent(
            num,
            seconds,
            lambda sender, share, begins: sender.run.remote(share, events, interval_s, begins, seconds, WARM_UP_S),
            warm_up_s=WARM_UP_S,
        )

    def close(self) -> None:
        """Close the run, too."""
        super().close()
        self._run.__exit__(None, None, None)


class BoardRig(Rig):
    """The synchronizer in Ray, and explorers that wait for newer weights."""

    part: Part = "board"

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self._kind, self._board = kind, RayBoard()
        self._handle = ObjectStoreTransport().publish(0, WORLDS[kind.name].policy().state_dict())
        self._version = 0
        self._publish()
        self._start(Waiters, self._board._actor)  # noqa: SLF001 - what the board calls, but without waiting

    def receiver(self) -> int:
        """Return the process of the actor."""
        return process_of("SynchronizerActor")

    def _publish(self) -> None:
        self._version += 1
        self._board.publish(Published(self._version, time.monotonic_ns(), self._handle))

    def calibrate(self, num: int, seconds: float) -> Sample:
        """Return how many questions are answered in a second, of so many explorers."""
        found = self._sent(num, seconds, lambda sender, share, begins: sender.run.remote(share, begins, seconds))
        return Sample.of(num, found)

    def simulate(self, num: int, seconds: float) -> Outcome:
        """Return how late so many explorers hear of versions that are published as often as they collect a fragment."""
        pids = ray.get([sender.pid.remote() for sender in self._senders])
        begins, cpu = time.monotonic() + START_S, Cpu(self.receiver(), pids)
        calls = [
            sender.run.remote(share, begins, seconds, self._version)
            for sender, share in zip(self._senders, shares(num), strict=True)
        ]
        published = 0
        with cpu.during(begins, seconds):
            while (due := begins + published / self._kind.fragments_per_s) < begins + seconds:
                time.sleep(max(due - time.monotonic(), 0))
                self._publish()
                published += 1
        tallies = ray.get(calls)
        tallies[0].offered = published * num
        return Outcome.of(tallies, cpu)

    def close(self) -> None:
        """End the actor, too."""
        super().close()
        self._board.close()


class LearnerRig(Rig):
    """The learner's side in this process: it grants, takes reports and publishes, and computes nothing.

    Args:
        kind: Of the explorers.
        has_rows: Whether rows travel with the reports, as for an algorithm without a replay.
    """

    part: Part = "learner"

    def __init__(self, kind: Kind, *, has_rows: bool) -> None:
        super().__init__()
        self._kind, self._has_rows = kind, has_rows
        self._policy = WORLDS[kind.name].policy()
        self._period_s: float | None = None

    def receiver(self) -> int:
        """Return this process."""
        return psutil.Process().pid

    def calibrate(self, num: int, seconds: float) -> Sample:
        """Return how many reports are taken in a second that are there at once, of so many explorers."""
        return Sample.of(num**2, self._learn(num, seconds, 0.0))

    def simulate(self, num: int, seconds: float) -> Outcome:
        """Return what becomes of the reports of so many explorers."""
        return self._learn(num, seconds, 1 / self._kind.fragments_per_s)

    def _learn(self, num: int, seconds: float, period_s: float) -> Outcome:
        self._use(period_s)
        pids = ray.get([sender.pid.remote() for sender in self._senders])
        inbox = _Noting(self._inbox())
        explorers = self._explorers(num, inbox)
        # in a thread, since a step of many explorers may take longer than the window; it ends with this process
        threading.Thread(target=_learn_for_ever, args=(explorers, inbox), daemon=True).start()
        inbox.has_begun.wait(FIRST_REPORT_S)
        cpu, tally = Cpu(self.receiver(), pids), Tally(time.monotonic() + 2 * period_s, seconds)
        inbox.tally = tally
        with cpu.during(tally.begins, seconds):
            pass
        inbox.is_over = True
        explorers.close()
        tally.offered = round(num * seconds / period_s) if period_s else tally.accepted
        return Outcome.of([tally], cpu)

    def _use(self, period_s: float) -> None:
        """Start senders whose fragments take so long, unless there are some."""
        if self._period_s != period_s:
            self._period_s = period_s
            self._start(Answerers, self._kind.name if self._has_rows else None, self._kind.fragment_rows, period_s)

    def _inbox(self) -> Any:
        cpu = torch.device("cpu")
        if not self._has_rows:
            return Reports(WORLDS[self._kind.name].envs, cpu, lambda _: None)
        rules = FragmentRules(
            max_chunks=1 << 20, max_staleness=1, max_reuse=1, sampler="oldest", session_policy="resume"
        )
        return Fragments(rules, "scaling", cpu, seed=0)

    def _explorers(self, num: int, inbox: Any) -> Explorers:
        world = WORLDS[self._kind.name]
        config: Any = SimpleNamespace(
            run_name="scaling",
            explorer=ExplorerConfig(num=num),
            sync=SyncConfig(style="trainer_driven"),
            env=SimpleNamespace(num=world.envs, id=self._kind.name),
            agent=SimpleNamespace(rollout_steps=world.steps, gamma=0.99),
        )
        task: Any = Task(config, Any, None, ObjectStoreTransport())  # type: ignore[arg-type]  # nobody makes explorers of it
        place: Any = _Seats(self._senders)
        return Explorers(task, place, inbox, Synchronizer(), self._policy)


def _learn_for_ever(explorers: Explorers, inbox: "_Noting") -> None:
    """Take steps of a learner that learns nothing."""
    while not inbox.is_over:
        explorers.collect()
        explorers.learned()
        explorers.metrics()


class _Seats:
    """A place where many explorers share a process."""

    def __init__(self, actors: list[Any]) -> None:
        self._actors = actors

    def start(self, task: Task, index: int, incarnation: int) -> Any:
        del task, incarnation
        return _Seat(self._actors[index % len(self._actors)], index)


class _Seat(_RayWorker):
    """One of them, called as `RayExplorerPool` calls its actors."""

    def __init__(self, actor: Any, index: int) -> None:
        call = SimpleNamespace(remote=lambda method, *values: actor.do.remote(index, method, *values))
        super().__init__(SimpleNamespace(do=call))

    def find(self) -> "Future[str]":
        """Return this machine."""
        here: Future[str] = Future()
        here.set_result(platform.node())
        return here

    def kill(self) -> None:
        """Leave the process to the others."""


class _Noting:
    """An inbox, and how late reports come to it."""

    def __init__(self, inbox: Any) -> None:
        self._inbox = inbox
        self.has_begun, self.is_over = threading.Event(), False
        self.tally: Tally | None = None

    def put(self, report: Report, incarnation: int) -> bool:
        """Take a report."""
        is_kept: bool = self._inbox.put(report, incarnation)
        self.has_begun.set()
        if self.tally is not None:
            self.tally.note(report.seconds, time.monotonic())
            self.tally.refused += not is_kept
        return is_kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inbox, name)


def process_of(kind: str) -> int:
    """Return the process of the newest actor of a class."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        if line and line[0].startswith(f"ray::{kind}"):
            found.append((process.create_time(), process.pid))
    return max(found)[1]
