"""What the hub of a run published last, for those who look at the run from another process."""

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trieye.exceptions import RunLockedError
from trieye.hub_status import STATUS_KEY
from trieye.persistence.journal.reading import read_cursors, read_meta
from trieye.run_lock import RunLock


def read_status(run_dir: Path) -> dict[str, Any]:
    """Return `ActorLogic.health()` as it was published last, with `time` and `metrics`; empty before the first time.

    Raises:
        JournalError: The journal cannot be read.
    """
    held = read_meta(run_dir / "journal.db", STATUS_KEY)
    status: dict[str, Any] = {} if held is None else json.loads(held)
    return status


def last_status(run_dir: Path) -> dict[str, Any]:
    """Return `read_status` with the sinks as they were left: they went on after the hub published it.

    Raises:
        JournalError: The journal cannot be read.
    """
    status, cursors = read_status(run_dir), read_cursors(run_dir / "journal.db")
    for sink in status.get("sinks", ()):
        sink["backlog"] = max(status["points"] - cursors.get(sink["name"], 0), 0)
        sink["lag_s"] = 0.0
        sink["error"] = sink["error"] if sink["backlog"] else None
    return status


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
