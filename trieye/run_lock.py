"""RunLock: one writer for each run."""

import json
import logging
import os
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock, Timeout

from trieye.exceptions import ConfigurationError, RunLockedError

logger = logging.getLogger(__name__)


class RunLock:
    """Holds a run against other writers, on this machine and on others that share the file system.

    The kernel releases it when the holding process dies, however it dies. Who holds it stands in `<path>.holder`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # not thread-local: the hub may release it in another thread than the one that took it
        self._lock = FileLock(path, thread_local=False)
        self._holder_path = path.with_name(path.name + ".holder")

    @classmethod
    def check(cls, path: Path) -> None:
        """Find out whether a run can be written to, and change nothing.

        Raises:
            RunLockedError: Another process holds it; the message names it.
        """
        if not path.exists():
            return
        lock = cls(path)
        try:
            lock._lock.acquire(blocking=False)
            lock._lock.release()
        except Timeout as error:
            raise RunLockedError(lock._refusal()) from error
        except OSError:
            return  # it cannot be told; `acquire` will say why

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock."""
        return bool(self._lock.is_locked)

    def acquire(self, wait_s: float = 0.0) -> Self:
        """Take the lock; holding it already is fine.

        Args:
            wait_s: Seconds to wait for a holder that is about to end.

        Raises:
            RunLockedError: Another process, or another object of this one, holds it; the message names it.
            ConfigurationError: The lock file cannot be made.
        """
        if self.is_held:
            return self
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=wait_s)
        except Timeout as error:
            raise RunLockedError(self._refusal()) from error
        except OSError as error:
            raise ConfigurationError(f"the run's lock {self.path} cannot be made: {error.strerror or error}") from error
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "started": time.time()}
        self._holder_path.write_text(json.dumps(holder))  # who reads half of it takes it for none
        return self

    def release(self) -> None:
        """Give the lock back; does nothing if it is not held."""
        if self.is_held:
            self._holder_path.unlink(missing_ok=True)
            self._lock.release()

    def holder(self) -> dict[str, Any] | None:
        """Return `pid`, `host` and `started` (Unix time in seconds) of who took it last and did not give it back."""
        try:
            found = json.loads(self._holder_path.read_bytes())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def _refusal(self) -> str:
        run = self.path.parent.name
        advice = "wait for it, stop it, or choose another run_name"
        if (found := self.holder()) is None:
            return f"run {run!r} is being written by another process ({self.path} is locked); {advice}"
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(found.get("started") or 0)))
        who = f"process {found.get('pid')} on {found.get('host')}"
        return f"run {run!r} is being written by {who} since {since}; {advice}"

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
