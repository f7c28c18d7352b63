"""MemoryLimits: watches the resident memory of jobs, including the processes that they have started."""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress

import psutil  # type: ignore[import-untyped]  # stubs would be one more package

_INTERVAL_S = 0.5
_GIB = 2.0**30


class MemoryLimits:
    """Finds processes that use more memory than their limit.

    Shared pages count in proportion, where the system says so, since forks share most of theirs.
    """

    def __init__(self) -> None:
        self._exceeded: dict[int, str] = {}
        self._next = 0.0

    def check(self, limits: Mapping[int, int]) -> Iterator[int]:
        """Yield the processes above their limit, at most every `_INTERVAL_S`.

        Args:
            limits: Limit of each process and its children in bytes.
        """
        if time.monotonic() < self._next or not limits:
            return
        for pid, limit in limits.items():
            used = _used_bytes(pid)
            if used > limit and pid not in self._exceeded:
                self._exceeded[pid] = (
                    f"it used {gibibytes(used)} of memory, more than hydra.launcher.memory={limit} ({gibibytes(limit)})"
                )
                yield pid
        self._next = time.monotonic() + _INTERVAL_S

    def exceeded(self, pid: int | None) -> str | None:
        """Return how a process exceeded its limit; None if it did not."""
        return None if pid is None else self._exceeded.get(pid)

    def forget(self, pid: int | None) -> None:
        """Forget a process whose job has ended."""
        if pid is not None:
            self._exceeded.pop(pid, None)


def _used_bytes(pid: int) -> int:
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
