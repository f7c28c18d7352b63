"""A program of its own: when its parent is gone, it ends the process group that it leads, and removes a directory."""

import os
import shutil
import signal
import sys
import time

GRACE_S = 3.0
"""What a server has to end by itself, seconds."""


def guard(directory: str) -> None:
    """Wait for the end of standard input, a pipe that the system closes also when the parent is killed; end all."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.read(sys.stdin.fileno(), 1)
    os.killpg(0, signal.SIGTERM)
    time.sleep(GRACE_S)
    shutil.rmtree(directory, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    guard(sys.argv[1])
