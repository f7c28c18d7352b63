"""RunLock: an exclusive lock that allows one writer per run, and a check whether a run has a writer."""

import contextlib
import json
import logging
import multiprocessing
import os
import socket
import time
from pathlib import Path
from typing import Any, Self

from filelock import FileLock, Timeout

from trieye.exceptions import ConfigurationError, RunLockedError
from trieye.process.identity import ProcessIdentity

logger = logging.getLogger(__name__)

_about: dict[str, str] = {}


def describe_process(**fields: str) -> None:
    """Describe this process in the holder record of every lock that it acquires later.

    Args:
        **fields: `kind` (`driver`, the default, or `hub`); for a hub also `address`, `namespace`, `actor` and
            `actor_id`, which identify its Ray actor.
    """
    _about.update(fields)


class RunLock:
    """Excludes other writers of a run, on this machine and on machines that share the file system.

    The kernel releases the lock when the holding process dies, by SIGKILL too. `<path>.holder` names the holder.

    Args:
        path: The lock file, in the directory that it guards.
        subject: Kind of the guarded object, for the error message.
        alternative: Alternative to waiting, for the error message.
    """

    def __init__(self, path: Path, *, subject: str = "run", alternative: str = "choose another run_name") -> None:
        self.path = path
        self._subject, self._alternative = subject, alternative
        # not thread-local: the hub may acquire and release it in different threads
        self._lock = FileLock(path, thread_local=False)
        self._holder_path = path.with_name(path.name + ".holder")

    @classmethod
    def check(cls, path: Path) -> None:
        """Check that no process holds a lock; changes nothing.

        Raises:
            RunLockedError: Another process holds the lock; the message names the process.
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
            return  # `acquire` reports the reason

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock."""
        return bool(self._lock.is_locked)

    def is_held_elsewhere(self) -> bool:
        """Return whether another process holds the lock."""
        try:
            self.check(self.path)
        except RunLockedError:
            return (self.holder() or {}).get("pid") != os.getpid()
        return False

    @property
    def is_of_hub(self) -> bool:
        """Whether the last holder was a detached hub, which a new driver can take over after its own driver died."""
        return (self.holder() or {}).get("kind") == "hub"

    def acquire(self, wait_s: float = 0.0) -> Self:
        """Acquire the lock; does nothing if this object holds it.

        Args:
            wait_s: Seconds to wait for a holder that is exiting.

        Raises:
            RunLockedError: Another process, or another object in this process, holds it; the message names the holder.
            ConfigurationError: The lock file cannot be created.
        """
        if self.is_held:
            return self
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=wait_s)
        except Timeout:
            raise RunLockedError(self.refusal()) from None  # the cause does not name the holder
        except OSError as error:
            raise ConfigurationError(
                f"cannot create {self.path}, the lock of the {self._subject}: {error.strerror or error}"
            ) from error
        self._holder_path.unlink(missing_ok=True)
        while not self._write_holder():  # another process announced itself in between
            self._holder_path.unlink(missing_ok=True)
        return self

    def announce(self) -> None:
        """Record this process as the next holder, so that commands see that it is starting.

        A program creates the directory of a run seconds before it holds the lock, because it imports its libraries. The
        record of a living process stays.
        """
        if (holder := self.holder()) is not None:
            if ProcessIdentity.of_mapping(holder).liveness != "dead":
                return
            self._holder_path.unlink(missing_ok=True)
        self._write_holder()

    def _write_holder(self) -> bool:
        """Record this process, and return whether there was no other record."""
        process = ProcessIdentity.current().as_mapping()
        try:
            with self._holder_path.open("x") as file:  # does not follow a symbolic link
                # readers treat an incomplete record as absent
                record = {"kind": "driver", **_about, **process, "inode": _inode(self.path.parent)}
                file.write(json.dumps({**record, "started": time.time()}))
        except FileExistsError:
            return False
        except OSError:  # the record only informs, and deleting a run must work on a full disk
            pass
        return True

    def release(self) -> None:
        """Release the lock; does nothing if this object does not hold it."""
        if self.is_held:
            try:
                self._holder_path.unlink(missing_ok=True)
            finally:
                self._lock.release()

    def remove_directory(self) -> None:
        """Remove the guarded directory if it contains nothing else; this object holds the lock.

        A process that waits for the lock finds that its file was removed, and creates the directory again.
        """
        own_files = {self.path, self._holder_path}
        if self.is_held and own_files.issuperset(self.path.parent.iterdir()):
            for path in own_files:
                path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # another process has added a file
                self.path.parent.rmdir()

    def holder(self) -> dict[str, Any] | None:
        """Return the record of the last holder that did not release the lock.

        Returns:
            The fields of its `ProcessIdentity`, `started` (time of the acquisition, Unix seconds), `inode` of the
            guarded directory, and the fields that it passed to `describe_process`; None if the lock is free or the
            record is unreadable.
        """
        try:
            record = json.loads(self._holder_path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        return record if isinstance(record, dict) else None

    def refusal(self) -> str:
        """Return the error message for a caller that cannot acquire the lock: the holder, and the next steps."""
        run = f"{self._subject} {self.path.parent.name!r}"
        advice = f"wait for it, stop it, or {self._alternative}"
        if (holder := self.holder()) is None:
            return f"{run} is being written by another process ({self.path} is locked); {advice}"
        start_time = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(holder.get("started") or 0)))
        if getattr(multiprocessing.current_process(), "_inheriting", False) and holder.get("pid") == os.getppid():
            return (
                f"{run} is being written by the parent of this process, which `spawn` made run the same program: "
                'put the code that starts the run under `if __name__ == "__main__":`'
            )
        who = f"process {holder.get('pid')} on {holder.get('host')} since {start_time}"
        if (holder.get("pid"), holder.get("host")) == (os.getpid(), socket.gethostname()):
            return (
                f"{run} is being written by {who}, the current process: close the run first, by run.close() or by "
                f"leaving its `with` block, or {self._alternative}"
            )
        if self.is_of_hub and holder.get("actor"):
            who = f"a hub, the Ray actor {holder['actor']!r} at {holder.get('address')}: {who}"
            advice = (
                f"{advice}, or attach to the hub with trieye.actor.get_or_create(config), or join its cluster with "
                "runtime=cluster"
            )
        if holder.get("host") != socket.gethostname():
            advice = f"{advice}; if that machine no longer exists, delete {self.path}"
        return f"{run} is being written by {who}; {advice}"

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def is_alive(run_dir: Path) -> bool:
    """Return whether a process is writing to a run."""
    try:
        # not run.lock: probing it could make a run that is starting fail
        RunLock.check(run_dir / "hub.lock")
        lock = RunLock(run_dir / "run.lock")
        if (holder := lock.holder()) is None:
            return False
        liveness = ProcessIdentity.of_mapping(holder).liveness
        # a copied record names the holder of the original; a moved directory keeps its inode
        is_copied = holder.get("inode") not in (None, _inode(run_dir))
        if liveness == "unknown" or is_copied:  # on another machine, or a copy: ask the file server
            RunLock.check(lock.path)
    except RunLockedError:
        return True
    return liveness == "alive" and not is_copied


def _inode(directory: Path) -> int | None:
    try:
        return directory.stat().st_ino
    except OSError:
        return None
