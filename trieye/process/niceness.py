"""Scheduling priority of processes that Ray starts."""

import contextlib
import os
from pathlib import Path

WORKER_NICENESS = 15
"""Ray's default, which explorers and evaluations keep, so that they do not delay the learner."""
SERVICE_NICENESS = 5
"""Niceness of hubs and replays: beside a busy process they get a quarter of a core, with 15 a thirtieth."""

_THREADS = Path("/proc/self/task")
"""On Linux each thread has a separate niceness."""


def limit_niceness(*, at_least: int = -20, at_most: int = 19) -> None:
    """Bring the niceness of this process within limits; lowering it may need a permission, without which it remains.

    Sources: sched(7), the weights of niceness; `worker_niceness` of Ray.
    """
    threads = [int(entry.name) for entry in _THREADS.iterdir()] if _THREADS.is_dir() else [0]
    for thread in threads:
        with contextlib.suppress(OSError):  # not permitted, or the thread has exited
            old_niceness = os.getpriority(os.PRIO_PROCESS, thread)
            if (new_niceness := min(max(old_niceness, at_least), at_most)) != old_niceness:
                os.setpriority(os.PRIO_PROCESS, thread, new_niceness)
