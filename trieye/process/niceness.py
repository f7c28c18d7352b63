"""Niceness: how much of a busy machine a process gets."""

import contextlib
import os
from pathlib import Path

ACTOR_NICENESS = 5
"""Ray starts workers with 15, a thirtieth of the processor beside one that computes all the time; 5 is a quarter."""

_THREADS = Path("/proc/self/task")
"""On Linux each thread has a niceness of its own."""


def get_a_fair_share() -> None:
    """Lower the niceness of this process to `ACTOR_NICENESS` where the system lets the user do that.

    Sources: sched(7), the weights of niceness; `worker_niceness` of Ray.
    """
    if not hasattr(os, "setpriority"):
        return
    threads = [int(entry.name) for entry in _THREADS.iterdir()] if _THREADS.is_dir() else [0]
    for thread in threads:
        with contextlib.suppress(OSError):  # not allowed, or the thread has ended
            if os.getpriority(os.PRIO_PROCESS, thread) > ACTOR_NICENESS:
                os.setpriority(os.PRIO_PROCESS, thread, ACTOR_NICENESS)
