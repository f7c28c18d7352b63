"""Scheduling priority of processes that Ray starts."""

import contextlib
import os
from pathlib import Path

ACTOR_NICENESS = 5
"""Against a busy process, Ray's default of 15 gets a thirtieth of a core, 5 a quarter."""

_THREADS = Path("/proc/self/task")
"""On Linux each thread has a separate niceness."""


def get_a_fair_share() -> None:
    """Lower the niceness of this process to `ACTOR_NICENESS`, if the system permits it.

    Sources: sched(7), the weights of niceness; `worker_niceness` of Ray.
    """
    if not hasattr(os, "setpriority"):
        return
    threads = [int(entry.name) for entry in _THREADS.iterdir()] if _THREADS.is_dir() else [0]
    for thread in threads:
        with contextlib.suppress(OSError):  # not permitted, or the thread has exited
            if os.getpriority(os.PRIO_PROCESS, thread) > ACTOR_NICENESS:
                os.setpriority(os.PRIO_PROCESS, thread, ACTOR_NICENESS)
