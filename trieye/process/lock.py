"""RunLock: one writer for each run; and whether there is one now."""

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

_about: dict[str, str] = {}


def describe_process(**about: str) -> None:
    """Say what this process is, for the record of every lock that it takes from now on.

    Args:
        **about: `kind` (`driver`, which is what it is if nothing is said, or `hub`); of a hub also `address`,
            `namespace`, `actor` and `actor_id`, by which Ray knows it.
    """
    _about.update(about)


class RunLock:
    """Holds a run against other writers, on this machine and on others that share the file system.

    The kernel releases it when the holding process dies, however it dies. Who holds it stands in `<path>.holder`.

    Args:
        path: The file of the lock, in the directory of what it guards.
        of: What it guards, for the message to whoever cannot have it.
        instead: What to do in place of waiting, for the same message.
    """

    def __init__(self, path: Path, *, of: str = "run", instead: str = "choose another run_name") -> None:
        self.path = path
        self._of, self._instead = of, instead
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
            raise RunLockedError(lock.refusal()) from error
        except OSError:
            return  # it cannot be told; `acquire` will say why

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock."""
        return bool(self._lock.is_locked)

    @property
    def is_of_hub(self) -> bool:
        """Whether a hub that does without a driver took it last; such a hub can be taken over when it is an orphan."""
        return (self.holder() or {}).get("kind") == "hub"

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
        except Timeout:
            raise RunLockedError(self.refusal()) from None  # it says who has the lock, and its cause does not
        except OSError as error:
            raise ConfigurationError(
                f"the {self._of}'s lock {self.path} cannot be made: {error.strerror or error}"
            ) from error
        process = ProcessIdentity.current().as_mapping()
        holder = {"kind": "driver", **_about, **process, "started": time.time()}
        self._holder_path.unlink(missing_ok=True)
        with self._holder_path.open("x") as file:  # a link that somebody put there is not followed
            file.write(json.dumps(holder))  # who reads half of it takes it for none
        return self

    def release(self) -> None:
        """Give the lock back; does nothing if it is not held."""
        if self.is_held:
            try:
                self._holder_path.unlink(missing_ok=True)
            finally:
                self._lock.release()

    def holder(self) -> dict[str, Any] | None:
        """Return who took it last and did not give it back.

        Returns:
            The fields of its `ProcessIdentity`, `started` (Unix time in seconds of the acquisition), and what it said
            of itself in `describe_process`; None if the lock is free, or the record is unreadable.
        """
        try:
            found = json.loads(self._holder_path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def refusal(self) -> str:
        """Return what to tell somebody who cannot have the run: who holds it, and what can be done."""
        run = f"{self._of} {self.path.parent.name!r}"
        advice = f"wait for it, stop it, or {self._instead}"
        if (found := self.holder()) is None:
            return f"{run} is being written by another process ({self.path} is locked); {advice}"
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(found.get("started") or 0)))
        if getattr(multiprocessing.current_process(), "_inheriting", False) and found.get("pid") == os.getppid():
            return (
                f"{run} is being written by the process that started this one, which by `spawn` runs the same "
                'program anew: put what starts the run below `if __name__ == "__main__":`'
            )
        who = f"process {found.get('pid')} on {found.get('host')} since {since}"
        if (found.get("pid"), found.get("host")) == (os.getpid(), socket.gethostname()):
            return (
                f"{run} is being written by {who}, which is this one: close it first, with run.close() or by "
                f"leaving its `with` block, or {self._instead}"
            )
        if self.is_of_hub and found.get("actor"):
            who = f"a hub, the Ray actor {found['actor']!r} at {found.get('address')}: {who}"
            advice = (
                f"{advice}, or go on with it: trieye.actor.get_or_create(config), or runtime=cluster, joining there"
            )
        if found.get("host") != socket.gethostname():
            advice = f"{advice}; if that machine is gone for good, delete {self.path}"
        return f"{run} is being written by {who}; {advice}"

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def is_alive(run_dir: Path) -> bool:
    """Return whether a process writes to a run."""
    try:
        # not run.lock: a run that starts at this moment does not wait for it
        RunLock.check(run_dir / "hub.lock")
        lock = RunLock(run_dir / "run.lock")
        if (holder := lock.holder()) is None:
            return False
        liveness = ProcessIdentity.of_mapping(holder).liveness
        if liveness == "unknown":  # of another machine: the file server has the answer
            RunLock.check(lock.path)
    except RunLockedError:
        return True
    return liveness == "alive"
