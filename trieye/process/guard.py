"""Guard program: when its parent exits, it terminates its own process group and removes a directory."""

import os
import shutil
import signal
import sys
import time

GRACE_S = 3.0
"""Seconds between SIGTERM and SIGKILL."""


def guard(directory: str) -> None:
    """Wait until standard input, a pipe, is closed, also by the death of the parent; then terminate the group."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    os.read(sys.stdin.fileno(), 1)
    os.killpg(0, signal.SIGTERM)
    time.sleep(GRACE_S)
    shutil.rmtree(directory, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    guard(sys.argv[1])
