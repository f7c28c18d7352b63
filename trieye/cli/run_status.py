"""Whether a run is alive, for those who look at it from another process."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trieye.exceptions import RunLockedError
from trieye.process.lock import RunLock


def is_alive(run_dir: Path) -> bool:
    """Tell whether a process writes to the run."""
    try:
        # not run.lock: a run that starts at this very moment does not wait for that one
        RunLock.check(run_dir / "hub.lock")
    except RunLockedError:
        return True
    return _lives(RunLock(run_dir / "run.lock").holder())


def _lives(holder: Mapping[str, Any] | None) -> bool:
    """Tell whether the process that took a lock is there; one on another machine, or that ended well, is not."""
    if holder is None or holder.get("host") != socket.gethostname():
        return False
    try:
        os.kill(int(holder["pid"]), 0)
    except (ProcessLookupError, KeyError, TypeError, ValueError, OverflowError):
        return False
    except PermissionError:  # it is somebody else's
        return True
    return True
