"""Waiting: wait while work makes progress, and back off exponentially between retries."""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

TELL_EVERY_S = 10.0
"""Interval of progress messages while waiting."""

_STEP_BYTES = 16 << 20
"""Resolution of `moved_bytes`; an idle process does not read and write this much."""

_STEPS_PER_S = 10
"""Resolution of `computed`; a thread that only polls does not use a tenth of a second of CPU time in ten seconds."""


def moved_bytes() -> int:
    """Return the bytes this process has read and written, rounded down; grows during file I/O. 0 outside Linux."""
    try:
        fields = Path("/proc/self/io").read_text(encoding="ascii").split()
    except OSError:  # not Linux
        return 0
    return (int(fields[1]) + int(fields[3])) // _STEP_BYTES * _STEP_BYTES


def computed(native_id: int | None) -> int:
    """Return the CPU time of a running thread of this process in tenths of a second; an idle thread stays constant.

    Args:
        native_id: Kernel id of the thread; None: not started yet.
    """
    try:
        stat = Path(f"/proc/self/task/{native_id}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:  # not Linux, or the thread has ended
        return 0
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _STEPS_PER_S // os.sysconf("SC_CLK_TCK")


def wait_while_moving(
    is_done: Callable[[float], bool],
    progress: Callable[[], object],
    still_s: float,
    *,
    poll_s: float = 1.0,
    tell: Callable[[object], None] | None = None,
) -> bool:
    """Wait until work is done or makes no progress; return whether it is done.

    Args:
        is_done: Waits at most the given seconds for the work, and returns whether it is done.
        progress: Returns a value that changes while the work makes progress.
        still_s: Give up after this many seconds without a change.
        poll_s: Seconds between checks.
        tell: Called with the progress every `TELL_EVERY_S`.
    """
    current: object = None
    changed_at = reported_at = time.monotonic()
    while not is_done(max(0.0, min(poll_s, changed_at + still_s - time.monotonic()))):
        previous, current, now = current, progress(), time.monotonic()
        if current != previous:
            changed_at = now
        elif now - changed_at >= still_s:
            return False
        if tell is not None and now - reported_at >= TELL_EVERY_S:
            reported_at = now
            tell(current)
    return True


class Backoff:
    """Exponential backoff: the pause between retries doubles at each failure.

    Args:
        first_s: First pause in seconds.
        longest_s: Maximum pause in seconds.
        spread: Jitter as a fraction of the pause, so that runs that lost a server do not all reconnect at once.

    Attributes:
        failures: Number of failures since the last success.
    """

    # not the global generator, whose state is part of the user's checkpoints
    _random = random.SystemRandom()

    def __init__(self, first_s: float, longest_s: float, *, spread: float = 0.0) -> None:
        self.failures = 0
        self._first_s, self._longest_s, self._spread = first_s, longest_s, spread

    def failed(self) -> float:
        """Count a failure, and return the pause before the next attempt in seconds."""
        pause_s = min(self._first_s * 2.0 ** min(self.failures, 30), self._longest_s)
        self.failures += 1
        return pause_s * self._random.uniform(1 - self._spread, 1 + self._spread)

    def worked(self) -> None:
        """Record a success: the next pause is the first one."""
        self.failures = 0
