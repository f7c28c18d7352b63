"""Rigs for the receivers of explorers: start a receiver, calibrate its cost, and simulate many explorers."""

import os
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
import psutil  # type: ignore[import-untyped]  # stubs would be one more package
import ray
import torch

import trieye
from scale.messages import NAMES, WORLDS
from scale.model import Kind, Part
from scale.senders import START_S, HubSender, ReplaySender, SyntheticExplorers, Tally
from trieye.config.explorer import ExplorerConfig, SyncConfig
from trieye.replay.remote import RemoteReplay
from trieye.training.exploring.explorer import FragmentResult, Task
from trieye.training.exploring.explorers import Explorers
from trieye.training.exploring.in_ray import ObjectStoreTransport, _RayWorker
from trieye.training.exploring.inbox import Reports

NUM_SENDERS = 2
"""Sending processes; more would only compete for the same processors."""

WARM_UP_S = 1.0
"""Time until the clients of the hub reach a steady state."""

LONGEST_WARM_UP_S = 10.0

FIRST_REPORT_S = 60.0
"""Timeout for the first fragment result, which the learner receives after it has started all explorers."""

FEW = 8
"""Explorers of a calibration."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Calibration of a receiver, under a closed loop with few senders.

    Attributes:
        units: Units of a message.
        per_s: Accepted messages per second.
        cpu_us: CPU time of the receiver per message in microseconds, over all threads.
    """

    units: float
    per_s: float
    cpu_us: float

    @classmethod
    def of(cls, units: float, outcome: "Outcome") -> "Sample":
        """Convert the outcome of a calibration."""
        return cls(units, outcome.accepted_per_s, outcome.cpu_us or 0.0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Measured throughput and latency of a receiver under a load.

    Attributes:
        offered_per_s: Scheduled messages per second.
        accepted_per_s: Acknowledged messages per second.
        p50_ms: Median latency of acknowledged messages, from their scheduled time.
        p99_ms: 99th percentile of that latency.
        backlog_growth_per_s: Growth of the backlog in messages per second.
        receiver_cpu: Processors used by the receiver.
        sender_cpu: Processors used by all senders.
        refused: Messages that the receiver refused at first.
        units_per_s: Accepted events per second, if messages differ in size.
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
        """CPU time of the receiver per message in microseconds."""
        return 1e6 * self.receiver_cpu / self.accepted_per_s if self.accepted_per_s else None

    @classmethod
    def of(cls, tallies: list[Tally], cpu: "Cpu") -> "Outcome":
        """Sum the tallies of all senders."""
        seconds = tallies[0].seconds
        offered, accepted = sum(tally.offered for tally in tallies), sum(tally.accepted for tally in tallies)
        latencies = [latency for tally in tallies for latency in tally.latencies]
        units = sum(tally.accepted_units for tally in tallies)
        lag = sum(tally.offered_units - tally.accepted_units for tally in tallies) if units != accepted else 0.0
        return cls(
            offered_per_s=offered / seconds,
            accepted_per_s=accepted / seconds,
            p50_ms=1e3 * float(np.percentile(latencies, 50)) if latencies else None,
            p99_ms=1e3 * float(np.percentile(latencies, 99)) if latencies else None,
            backlog_growth_per_s=max(offered - accepted if units == accepted else lag, 0) / seconds,
            receiver_cpu=cpu.receiver,
            sender_cpu=cpu.senders,
            refused=sum(tally.refused for tally in tallies),
            units_per_s=None if units == accepted else units / seconds,
        )


class Cpu:
    """CPU seconds per second of the receiver and of all senders during a time window.

    Args:
        receiver: Process id of the receiver.
        senders: Process ids of the senders.
    """

    def __init__(self, receiver: int, senders: list[int]) -> None:
        self._receiver, self._senders = psutil.Process(receiver), [psutil.Process(pid) for pid in senders]
        self.receiver = self.senders = 0.0

    @contextmanager
    def during(self, start: float, seconds: float) -> Iterator[None]:
        """Measure from `start` for some seconds; leaving the block waits for the end of the window."""
        time.sleep(max(start - time.monotonic(), 0))
        before, actual_start = self._cpu_times(), time.monotonic()
        yield
        time.sleep(max(start + seconds - time.monotonic(), 0))
        after, elapsed = self._cpu_times(), time.monotonic() - actual_start
        self.receiver, self.senders = ((last - first) / elapsed for last, first in zip(after, before, strict=True))

    def _cpu_times(self) -> tuple[float, float]:
        return cpu_s(self._receiver), sum(cpu_s(sender) for sender in self._senders)


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU time of a process in seconds."""
    return float(sum(process.cpu_times()[:2]))


class Rig(ABC):
    """A receiver and the processes that send to it."""

    part: Part

    def __init__(self) -> None:
        self._senders: list[Any] = []

    def _start(self, sender: type, *values: Any) -> None:
        """Replace the sending processes."""
        self._stop()
        actor_class: Any = ray.remote(num_cpus=0)(sender)
        self._senders = [actor_class.options(max_concurrency=10_000).remote(*values) for _ in range(NUM_SENDERS)]

    def _stop(self) -> None:
        for sender in self._senders:
            ray.kill(sender)
        self._senders = []

    @abstractmethod
    def receiver(self) -> int:
        """Return the process id of the receiver."""

    def _measure(
        self, num: int, seconds: float, run: Callable[[Any, int, float], Any], *, warm_up_s: float = 0.0
    ) -> Outcome:
        """Run all senders, each with its share of the explorers; messages of the warm-up do not count."""
        pids = ray.get([sender.pid.remote() for sender in self._senders])
        start, cpu = time.monotonic() + START_S + warm_up_s, Cpu(self.receiver(), pids)
        calls = [run(sender, share, start) for sender, share in zip(self._senders, shares(num), strict=True)]
        with cpu.during(start, seconds):
            pass
        return Outcome.of(ray.get(calls), cpu)

    def close(self) -> None:
        """Stop all processes of the rig."""
        self._stop()


def shares(num: int) -> list[int]:
    """Return the number of explorers of each sender."""
    return [num // NUM_SENDERS + (number < num % NUM_SENDERS) for number in range(NUM_SENDERS)]


class ReplayRig(Rig):
    """Replay actor, and writers of one kind of explorers."""

    part: Part = "replay"

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self._kind, self._world = kind, WORLDS[kind.name]
        self._replay = RemoteReplay.start({"capacity": self._world.capacity})
        self._channel = self._replay.channel  # the argument of a writer

    def receiver(self) -> int:
        """Return the process id of the actor."""
        return int(self._replay.stats()["pid"])

    def warm_up(self) -> None:
        """Fill the memory, whose pages are slower on first access."""
        self.prepare()
        deadline = time.monotonic() + LONGEST_WARM_UP_S
        while self._replay.stats()["size"] < self._world.capacity and time.monotonic() < deadline:
            self._flood(FEW, 0.5)

    def calibrate(self, rows: int, seconds: float) -> Sample:
        """Measure the throughput of batches with `rows` rows; the units are bytes."""
        self._start(ReplaySender, self._channel, self._kind.name, rows)
        self._flood(FEW, 0.3)
        return Sample.of(rows * self._kind.row_bytes, self._flood(FEW, seconds))

    def _flood(self, num: int, seconds: float) -> Outcome:
        return self._measure(
            num, seconds, lambda sender, share, start: sender.run.remote(share, float("inf"), start, seconds)
        )

    def simulate(self, num: int, seconds: float) -> Outcome:
        """Simulate the fragments of `num` explorers."""
        if not self._senders:
            self.prepare()
        per_s = self._kind.fragments_per_s
        return self._measure(num, seconds, lambda sender, share, start: sender.run.remote(share, per_s, start, seconds))

    def prepare(self) -> None:
        """Start senders of whole fragments."""
        self._start(ReplaySender, self._channel, self._kind.name, self._kind.fragment_rows)

    def close(self) -> None:
        """Also stop the actor."""
        super().close()
        self._replay.close()


class HubRig(Rig):
    """Hub of a run without sinks, and clients of explorers that log."""

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
        self._start(HubSender, self._run.client()._channel)  # noqa: SLF001 - the channel of a pickled client

    def receiver(self) -> int:
        """Return the process id of the actor."""
        return process_of("HubActor")

    def calibrate(self, events: int, seconds: float) -> Sample:
        """Measure the throughput of batches with `events` events."""
        outcome = self._measure(
            2 * FEW, seconds, lambda sender, share, start: sender.run.remote(share, events, 0.0, start, seconds)
        )
        return Sample.of(events, outcome)

    def simulate(self, num: int, seconds: float) -> Outcome:
        """Simulate the logged values of `num` explorers."""
        events, interval_s = self._kind.events_per_s, self._kind.flush_interval_s
        return self._measure(
            num,
            seconds,
            lambda sender, share, start: sender.run.remote(share, events, interval_s, start, seconds, WARM_UP_S),
            warm_up_s=WARM_UP_S,
        )

    def close(self) -> None:
        """Also close the run."""
        super().close()
        self._run.__exit__(None, None, None)


class LearnerRig(Rig):
    """Learner in this process: it assigns fragments, receives results and publishes weights, without computation.

    Args:
        kind: Kind of the explorers.
        has_rows: Fragment results contain rows, as for an algorithm without a replay.
    """

    part: Part = "learner"

    def __init__(self, kind: Kind, *, has_rows: bool) -> None:
        super().__init__()
        self._kind, self._has_rows = kind, has_rows
        self._policy = WORLDS[kind.name].policy()
        self._period_s: float | None = None

    def receiver(self) -> int:
        """Return the id of this process."""
        return os.getpid()

    def calibrate(self, num: int, seconds: float) -> Sample:
        """Measure the throughput of fragment results that `num` explorers return immediately."""
        return Sample.of(num**2, self._learn(num, seconds, 0.0))

    def simulate(self, num: int, seconds: float) -> Outcome:
        """Simulate the fragment results of `num` explorers."""
        return self._learn(num, seconds, 1 / self._kind.fragments_per_s)

    def _learn(self, num: int, seconds: float, period_s: float) -> Outcome:
        self._ensure_senders(period_s)
        pids = ray.get([sender.pid.remote() for sender in self._senders])
        inbox = _RecordingInbox(self._inbox())
        explorers = self._explorers(num, inbox)
        # a daemon thread, because a step with many explorers may outlast the window
        threading.Thread(target=_run_learner, args=(explorers, inbox), daemon=True).start()
        inbox.has_results.wait(FIRST_REPORT_S)
        cpu, tally = Cpu(self.receiver(), pids), Tally(time.monotonic() + 2 * period_s, seconds)
        inbox.tally = tally
        with cpu.during(tally.start, seconds):
            pass
        inbox.is_over = True
        explorers.close()
        tally.offered = round(num * seconds / period_s) if period_s else tally.accepted
        return Outcome.of([tally], cpu)

    def _ensure_senders(self, period_s: float) -> None:
        """Start senders with this fragment duration, unless they are running."""
        if self._period_s != period_s:
            self._period_s = period_s
            self._start(
                SyntheticExplorers, self._kind.name if self._has_rows else None, self._kind.fragment_rows, period_s
            )

    def _inbox(self) -> Any:
        cpu = torch.device("cpu")
        num_envs = WORLDS[self._kind.name].envs
        if not self._has_rows:
            return Reports(num_envs, cpu, publish_version=lambda _: None)
        return Reports(num_envs, cpu, max_staleness=1)

    def _explorers(self, num: int, inbox: Any) -> Explorers:
        world = WORLDS[self._kind.name]
        config: Any = SimpleNamespace(
            run_name="scaling",
            explorer=ExplorerConfig(num=num),
            sync=SyncConfig(style="trainer_driven"),
            env=SimpleNamespace(num=world.envs, id=self._kind.name),
            agent=SimpleNamespace(rollout_steps=world.steps, gamma=0.99),
        )
        unused: Any = None  # synthetic explorers create no policy
        policy: Any = self._policy  # a plain module, because no explorer acts
        pool: Any = _SharedPool(self._senders)
        task = Task(config, unused, unused, ObjectStoreTransport())
        return Explorers(task, pool, inbox, policy)


def _run_learner(explorers: Explorers, inbox: "_RecordingInbox") -> None:
    """Run steps of a learner without computation until the simulation is over."""
    while not inbox.is_over:
        explorers.collect()
        explorers.learned()
        explorers.metrics()


class _SharedPool:
    """Explorer pool whose explorers share a few processes."""

    def __init__(self, actors: list[Any]) -> None:
        self._actors = actors

    def start(self, task: Task, index: int, incarnation: int) -> Any:
        del task, incarnation
        return _SharedWorker(self._actors[index % len(self._actors)], index)


class _SharedWorker(_RayWorker):
    """Explorer of a `_SharedPool`; forwards the calls of `RayExplorerPool` to the shared actor."""

    def __init__(self, actor: Any, index: int) -> None:
        call = SimpleNamespace(remote=lambda method, *values: actor.do.remote(index, method, *values))
        super().__init__(SimpleNamespace(do=call))

    def find(self) -> "Future[str]":
        """Return the name of this machine."""
        node: Future[str] = Future()
        node.set_result(platform.node())
        return node

    def kill(self) -> None:
        """Do nothing: other explorers use the process."""


class _RecordingInbox:
    """Fragment queue that records the latency of fragment results."""

    def __init__(self, inbox: Any) -> None:
        self._inbox = inbox
        self.has_results, self.is_over = threading.Event(), False
        self.tally: Tally | None = None

    def put(self, report: FragmentResult, incarnation: int) -> bool:
        """Add a fragment result; return False if it was refused."""
        is_accepted: bool = self._inbox.put(report, incarnation)
        self.has_results.set()
        if self.tally is not None:
            self.tally.record(report.seconds, time.monotonic())
            self.tally.refused += not is_accepted
        return is_accepted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inbox, name)


def process_of(actor_class: str) -> int:
    """Return the process id of the newest actor of a class."""
    candidates = []
    for process in psutil.Process().children(recursive=True):
        try:
            command_line = process.cmdline()
        except psutil.Error:
            continue
        if command_line and command_line[0].startswith(f"ray::{actor_class}"):
            candidates.append((process.create_time(), process.pid))
    return int(max(candidates)[1])
