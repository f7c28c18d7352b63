"""Waiting: as long as work goes on, and longer each time before something that failed is tried again."""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

TELL_EVERY_S = 10.0
"""How often somebody who waits is told what for."""

_STEP_BYTES = 16 << 20
"""So much is not read and written by a process that only stands by."""

_STEPS_PER_S = 10
"""A thread that only looks again and again whether it may go on does not compute a tenth of a second in ten."""


def moved_bytes() -> int:
    """Return about how much this process has read and written so far; it grows while files of any kind are."""
    try:
        fields = Path("/proc/self/io").read_text(encoding="ascii").split()
    except OSError:  # not Linux
        return 0
    return (int(fields[1]) + int(fields[3])) // _STEP_BYTES * _STEP_BYTES


def computed(native_id: int | None) -> int:
    """Return about how long a living thread of this process has computed, in steps that one which waits does not reach.

    Args:
        native_id: The thread's number in the kernel; None: it has not begun.
    """
    try:
        stat = Path(f"/proc/self/task/{native_id}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:  # not Linux, or it has ended
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
    """Wait until work is done, or stands still, and tell whether it is done.

    Args:
        is_done: Waits at most so many seconds for the work, and tells whether it is done.
        progress: Returns something that changes as long as the work goes on.
        still_s: After how many seconds without a change it stands still.
        poll_s: Seconds between two looks.
        tell: Called with the progress every `TELL_EVERY_S`.
    """
    seen: object = None
    changed = told = time.monotonic()
    while not is_done(max(0.0, min(poll_s, changed + still_s - time.monotonic()))):
        before, seen, now = seen, progress(), time.monotonic()
        if seen != before:
            changed = now
        elif now - changed >= still_s:
            return False
        if tell is not None and now - told >= TELL_EVERY_S:
            told = now
            tell(seen)
    return True


class Backoff:
    """Pauses before something that failed is tried again, each twice as long as the one before.

    Args:
        first_s: The first pause, seconds.
        longest_s: No pause is longer, seconds.
        spread: Chance makes each pause longer or shorter by up to this share of it, so that runs that lost one server
            do not all come back to it at once.

    Attributes:
        failures: How often it failed since it worked.
    """

    # the user's own generator is part of his checkpoints, and must not be drawn from here
    _dice = random.SystemRandom()

    def __init__(self, first_s: float, longest_s: float, *, spread: float = 0.0) -> None:
        self.failures = 0
        self._first_s, self._longest_s, self._spread = first_s, longest_s, spread

    def failed(self) -> float:
        """Count a failure, and return how long to wait now, seconds."""
        pause_s = min(self._first_s * 2.0 ** min(self.failures, 30), self._longest_s)
        self.failures += 1
        return pause_s * self._dice.uniform(1 - self._spread, 1 + self._spread)

    def worked(self) -> None:
        """Begin anew with the first pause."""
        self.failures = 0
