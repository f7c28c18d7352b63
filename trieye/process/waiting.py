"""Waiting for work that takes as long as it takes: as long as it goes on."""

import time
from collections.abc import Callable
from pathlib import Path

TELL_EVERY_S = 10.0
"""How often somebody who waits is told what for."""

_STEP_BYTES = 16 << 20
"""So much is not read and written by a process that only stands by."""


def moved_bytes() -> int:
    """Return about how much this process has read and written so far; it grows while files of any kind are."""
    try:
        fields = Path("/proc/self/io").read_text(encoding="ascii").split()
    except OSError:  # not Linux
        return 0
    return (int(fields[1]) + int(fields[3])) // _STEP_BYTES * _STEP_BYTES


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
