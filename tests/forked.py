"""What a forked child finds out."""

import os
import signal
import warnings
from collections.abc import Callable

PATIENCE_S = 20


def in_a_child(check: Callable[[], int]) -> int:
    """Return what a function returns in a forked child, 0 to 254; 255 if it raises, and less than 0 if it hangs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads
        child = os.fork()
    if child == 0:
        answer = 255
        signal.alarm(PATIENCE_S)
        try:
            answer = int(check())
        finally:
            os._exit(answer)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
