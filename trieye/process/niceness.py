"""Niceness: the CPU share of actors on a busy machine."""

import contextlib
import os
from pathlib import Path

ACTOR_NICENESS = 5
"""Ray starts workers with 15, which next to a busy process yields a thirtieth of a core; 5 yields a quarter."""

_THREADS = Path("/proc/self/task")
"""On Linux, niceness applies per thread."""


def get_a_fair_share() -> None:
    """Lower the niceness of this process to `ACTOR_NICENESS` where the system permits it.

    Sources: sched(7), niceness weights; `worker_niceness` of Ray.
    """
    if not hasattr(os, "setpriority"):
        return
    threads = [int(entry.name) for entry in _THREADS.iterdir()] if _THREADS.is_dir() else [0]
    for thread in threads:
        with contextlib.suppress(OSError):  # not allowed, or the thread has ended
            if os.getpriority(os.PRIO_PROCESS, thread) > ACTOR_NICENESS:
                os.setpriority(os.PRIO_PROCESS, thread, ACTOR_NICENESS)
