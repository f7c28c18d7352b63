"""Slots: the CPUs, GPUs and memory of this machine, and how much of them jobs occupy and use."""

import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # stubs would be one more package

_ROUNDING = 1e-6
_QUERY_S = 20.0
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_GIB = 2.0**30


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a job occupies.

    Attributes:
        num_cpus: CPUs.
        gpus: The share of each of its GPUs, by name.
        memory: Bytes of memory.
    """

    num_cpus: float
    gpus: Mapping[str, float]
    memory: float

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of the job; libraries use as many threads as it has CPUs, as under Ray."""
        threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(max(int(self.num_cpus), 1))}
        return {**threads, _VISIBLE: ",".join(self.gpus)}


class Slots:
    """Assigns the resources of this machine to jobs.

    Args:
        num_cpus: Number of CPUs.
        gpus: Names of the GPUs, as in CUDA_VISIBLE_DEVICES; None: ask the driver when a job requests one.
        memory: Bytes of memory.
    """

    def __init__(self, num_cpus: float, gpus: list[str] | None, memory: float) -> None:
        self._num_cpus, self._gpus, self._memory = num_cpus, gpus, memory
        self._occupied: list[Assignment] = []

    @classmethod
    def of_machine(cls) -> "Slots":
        """Return the slots of this machine."""
        return cls(num_cores(), None, psutil.virtual_memory().total)

    def find(self, resources: Mapping[str, Any]) -> Assignment | None:
        """Return an assignment of free resources; None if they are not free."""
        num_cpus, memory = float(resources.get("num_cpus", 0.0)), float(resources.get("memory", 0.0))
        if sum(job.num_cpus for job in self._occupied) + num_cpus > self._num_cpus + _ROUNDING:
            return None
        if sum(job.memory for job in self._occupied) + memory > self._memory:
            return None
        gpus = self._free_gpus(float(resources.get("num_gpus", 0.0)))
        return None if gpus is None else Assignment(num_cpus, gpus, memory)

    def take(self, assignment: Assignment) -> None:
        """Occupy the resources of an assignment."""
        self._occupied.append(assignment)

    def release(self, assignment: Assignment) -> None:
        """Free the resources of an assignment."""
        self._occupied.remove(assignment)

    def refusal(self, resources: Mapping[str, Any]) -> str | None:
        """Return an error message if a job requests more than the machine has, else None."""
        num_gpus = float(resources.get("num_gpus", 0.0))
        totals = {
            "num_cpus": self._num_cpus, "memory": self._memory, "num_gpus": len(self._names()) if num_gpus else 0.0,
        }  # fmt: skip
        for key, total in totals.items():
            if float(resources.get(key, 0.0)) > total + _ROUNDING:
                return shortage(key, resources[key], total)
        return None

    def _names(self) -> list[str]:
        if self._gpus is None:
            self._gpus = gpus_of_machine()
        return self._gpus

    def _free_gpus(self, num: float) -> dict[str, float] | None:
        """Return free GPUs: entire ones, or the share of the fullest GPU that has room for it."""
        if not num:
            return {}
        free_shares = {name: 1.0 - sum(job.gpus.get(name, 0.0) for job in self._occupied) for name in self._names()}
        if num < 1.0:
            fitting_gpus = [name for name, share in free_shares.items() if share + _ROUNDING >= num]
            return {min(fitting_gpus, key=free_shares.__getitem__): num} if fitting_gpus else None
        entire_gpus = [name for name, share in free_shares.items() if share >= 1.0 - _ROUNDING][: round(num)]
        return dict.fromkeys(entire_gpus, 1.0) if len(entire_gpus) == round(num) else None


def shortage(key: str, amount: float, total: float) -> str:
    """Return an error message for a job that requests more than this machine has."""
    requested_text, available_text = f"{amount:g}", f"{total:g}"
    if key == "memory":
        requested_text, available_text = str(round(amount)), gibibytes(total)
    return f"hydra.launcher.{key}={requested_text}: this machine has {available_text} in total; request less"


@cache
def num_cores() -> int:
    """Return the number of cores that this process may use; in a container, at most its quota."""
    num = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # no cgroup, or no quota: "max 100000"
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        num = min(num, max(int(quota) // int(period), 1))
    return num


def gpus_of_machine() -> list[str]:
    """Return the names of the GPUs that this process may use."""
    if (visible_names := os.environ.get(_VISIBLE)) is not None:
        return [name for name in visible_names.split(",") if name not in ("", "-1", "NoDevFiles")]
    if not has_nvidia_driver():
        return []
    try:
        query = subprocess.run(
            ["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=_QUERY_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [str(index) for index, _ in enumerate(line for line in query.stdout.splitlines() if line[:3] == "GPU")]


def has_nvidia_driver() -> bool:
    """Return whether the machine has the driver of an NVIDIA GPU."""
    return Path("/dev/nvidiactl").exists()


def used_bytes(pid: int) -> int:
    """Return the memory of a process and its children.

    Shared pages count in proportion where the system reports it, since forks share most of theirs.
    """
    total = 0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for member in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                memory = member.memory_full_info()
                total += getattr(memory, "pss", memory.rss)
    return total


def gibibytes(size_bytes: float) -> str:
    """Return a size for display."""
    return f"{size_bytes / _GIB:.2f} GiB"
