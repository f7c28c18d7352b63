"""Wait while work makes progress, and back off exponentially between retries."""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

TELL_EVERY_S = 10.0
"""Seconds between two progress reports to a waiting user."""

_STEP_BYTES = 16 << 20
"""An idle process reads and writes less than this."""

_STEPS_PER_S = 10
"""Steps of 0.1 s: a thread that only polls uses less CPU time than one step within ten seconds."""


def moved_bytes() -> int:
    """Return the bytes that this process has read and written so far, rounded down to `_STEP_BYTES`."""
    try:
        fields = Path("/proc/self/io").read_text(encoding="ascii").split()
    except OSError:  # not Linux
        return 0
    return (int(fields[1]) + int(fields[3])) // _STEP_BYTES * _STEP_BYTES


def computed(native_id: int | None) -> int:
    """Return the CPU time of a running thread of this process, in steps that a waiting thread does not reach.

    Args:
        native_id: Native id of the thread; None if it has not started.
    """
    try:
        stat = Path(f"/proc/self/task/{native_id}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:  # not Linux, or the thread has exited
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
    """Wait until work is done or stalls, and return whether it is done.

    Args:
        is_done: Waits for the work for at most the given number of seconds and returns whether it is done.
        progress: Returns a value that changes while the work makes progress.
        still_s: Seconds without a change after which the work counts as stalled.
        poll_s: Seconds between two polls of `progress`.
        tell: Called with the progress every `TELL_EVERY_S`.
    """
    progress_value: object = None
    changed_at = reported_at = time.monotonic()
    while not is_done(max(0.0, min(poll_s, changed_at + still_s - time.monotonic()))):
        last_progress, progress_value, now = progress_value, progress(), time.monotonic()
        if progress_value != last_progress:
            changed_at = now
        elif now - changed_at >= still_s:
            return False
        if tell is not None and now - reported_at >= TELL_EVERY_S:
            reported_at = now
            tell(progress_value)
    return True


class Backoff:
    """Exponential backoff: pauses between retries, each twice as long as the previous one.

    Args:
        first_s: First pause, in seconds.
        longest_s: Upper bound of a pause, in seconds.
        spread: Relative jitter of each pause, so that runs that lost one server do not all return to it at once.

    Attributes:
        failures: Number of failures since the last success.
    """

    # the global generator is part of the user's checkpoints and must not be advanced here
    _generator = random.SystemRandom()

    def __init__(self, first_s: float, longest_s: float, *, spread: float = 0.0) -> None:
        self.failures = 0
        self._first_s, self._longest_s, self._spread = first_s, longest_s, spread

    def failed(self) -> float:
        """Count a failure and return the pause before the next try, in seconds."""
        pause_s = min(self._first_s * 2.0 ** min(self.failures, 30), self._longest_s)
        self.failures += 1
        return pause_s * self._generator.uniform(1 - self._spread, 1 + self._spread)

    def worked(self) -> None:
        """Record a success: the next pause is the first one again."""
        self.failures = 0
