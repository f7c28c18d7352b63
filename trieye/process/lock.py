"""RunLock: at most one writer per run; `is_alive` checks for a writer."""

import json
import logging
import multiprocessing
import os
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock, Timeout

from trieye.exceptions import ConfigurationError, RunLockedError
from trieye.process.identity import ProcessIdentity

logger = logging.getLogger(__name__)

_description: dict[str, str] = {}


def describe_process(**description: str) -> None:
    """Set the description of this process in the holder file of every lock that it acquires from now on.

    Args:
        **description: `kind` (`driver`, the default, or `hub`); for a hub also `address`, `namespace`, `actor` and
            `actor_id`, which identify it to Ray.
    """
    _description.update(description)


class RunLock:
    """Excludes other writers of a run, on this machine and on machines that share the file system.

    The kernel releases the lock when the holding process dies. `<path>.holder` describes the holder.

    Args:
        path: The lock file, in the guarded directory.
        subject: Kind of the guarded object, for the message of a refusal.
        alternative: Advice for the user instead of waiting, for the same message.
    """

    def __init__(self, path: Path, *, subject: str = "run", alternative: str = "choose another run_name") -> None:
        self.path = path
        self._subject, self._alternative = subject, alternative
        # not thread-local: the hub may acquire and release the lock in different threads
        self._lock = FileLock(path, thread_local=False)
        self._holder_path = path.with_name(path.name + ".holder")

    @classmethod
    def check(cls, path: Path) -> None:
        """Check that the lock is free, without changing anything.

        Raises:
            RunLockedError: Another process holds the lock; the message names it.
        """
        if not path.exists():
            return
        lock = cls(path)
        try:
            lock._lock.acquire(blocking=False)
            lock._lock.release()
        except Timeout as error:
            raise RunLockedError(lock.refusal()) from error
        except OSError:
            return  # undecidable; `acquire` reports the reason

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock."""
        return bool(self._lock.is_locked)

    @property
    def is_of_hub(self) -> bool:
        """Whether the last holder is a hub without a driver; such a hub can be taken over if it is orphaned."""
        return (self.holder() or {}).get("kind") == "hub"

    def acquire(self, wait_s: float = 0.0) -> Self:
        """Acquire the lock; does nothing if this object holds it.

        Args:
            wait_s: Seconds to wait for the current holder to exit.

        Raises:
            RunLockedError: Another process, or another object in this process, holds the lock; the message names it.
            ConfigurationError: The lock file cannot be created.
        """
        if self.is_held:
            return self
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=wait_s)
        except Timeout:
            raise RunLockedError(self.refusal()) from None  # the cause would only name the lock file
        except OSError as error:
            raise ConfigurationError(
                f"cannot create the lock {self.path} of the {self._subject}: {error.strerror or error}"
            ) from error
        process = ProcessIdentity.current().as_mapping()
        holder = {"kind": "driver", **_description, **process, "started": time.time()}
        self._holder_path.unlink(missing_ok=True)
        with self._holder_path.open("x") as file:  # "x" does not follow a symbolic link planted at this path
            file.write(json.dumps(holder))  # `holder` ignores a partially written file
        return self

    def release(self) -> None:
        """Release the lock; does nothing if this object does not hold it."""
        if self.is_held:
            try:
                self._holder_path.unlink(missing_ok=True)
            finally:
                self._lock.release()

    def holder(self) -> dict[str, Any] | None:
        """Return the last holder that has not released the lock.

        Returns:
            The fields of its `ProcessIdentity`, `started` (Unix time in seconds of the acquisition), and its
            description from `describe_process`; None if the lock is free or the holder file is unreadable.
        """
        try:
            holder = json.loads(self._holder_path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        return holder if isinstance(holder, dict) else None

    def refusal(self) -> str:
        """Return the message for a refused writer: the lock holder, and the alternatives."""
        run = f"{self._subject} {self.path.parent.name!r}"
        advice = f"wait for it, stop it, or {self._alternative}"
        if (holder := self.holder()) is None:
            return f"{run} is being written by another process ({self.path} is locked); {advice}"
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(holder.get("started") or 0)))
        if getattr(multiprocessing.current_process(), "_inheriting", False) and holder.get("pid") == os.getppid():
            return (
                f"{run} is being written by the parent process, and `spawn` executes the same program again in this "
                'child process: move the code that starts the run below `if __name__ == "__main__":`'
            )
        process = f"process {holder.get('pid')} on {holder.get('host')} since {since}"
        if (holder.get("pid"), holder.get("host")) == (os.getpid(), socket.gethostname()):
            return (
                f"{run} is being written by {process}, which is this process: close the open run first, with "
                f"run.close() or by leaving its `with` block, or {self._alternative}"
            )
        if self.is_of_hub and holder.get("actor"):
            process = f"a hub, the Ray actor {holder['actor']!r} at {holder.get('address')}: {process}"
            advice = (
                f"{advice}, or connect to it: trieye.actor.get_or_create(config), or runtime=cluster on that cluster"
            )
        if holder.get("host") != socket.gethostname():
            advice = f"{advice}; if that machine no longer exists, delete {self.path}"
        return f"{run} is being written by {process}; {advice}"

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def is_alive(run_dir: Path) -> bool:
    """Return whether a process is writing to a run."""
    try:
        # not run.lock: a run that starts at this moment would be refused while this check holds it
        RunLock.check(run_dir / "hub.lock")
        lock = RunLock(run_dir / "run.lock")
        if (holder := lock.holder()) is None:
            return False
        liveness = ProcessIdentity.of_mapping(holder).liveness
        if liveness == "unknown":  # on another machine: only the lock of the shared file system can tell
            RunLock.check(lock.path)
    except RunLockedError:
        return True
    return liveness == "alive"
