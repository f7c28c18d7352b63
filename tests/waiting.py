"""Wait for conditions that another thread or process fulfills; tests wait in no other way."""

import threading
import time
from collections.abc import Callable

LONG_S = 60.0


def wait_until(condition: Callable[[], object], *, within_s: float = LONG_S, pause_s: float = 0.005) -> None:
    """Return as soon as a condition is true; fail after a time limit.

    Args:
        condition: Polled until it returns a true value.
        within_s: Time limit, generous enough for a busy machine.
        pause_s: Time between polls; longer if polling slows down the observed process.
    """
    deadline, pause = time.monotonic() + within_s, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        pause.wait(pause_s)
