"""Waiting for what another thread or process does: the one way in which tests wait."""

import threading
import time
from collections.abc import Callable

LONG_S = 60.0


def wait_until(condition: Callable[[], object], *, within_s: float = LONG_S, pause_s: float = 0.005) -> None:
    """Return when a condition holds; fail if it does not within so many seconds.

    Args:
        condition: Is asked again and again.
        within_s: Longer than it takes on the busiest machine.
        pause_s: Between two looks; longer where a look costs the one that is waited for some work.
    """
    deadline, pause = time.monotonic() + within_s, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        pause.wait(pause_s)
