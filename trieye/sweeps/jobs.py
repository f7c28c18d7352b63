"""JobRecord: what became of a job of a sweep, in its status.json, which the process that runs it writes."""

import os
import socket
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from trieye.config.redaction import redacted_text
from trieye.exceptions import JournalError, RunLockedError, TrieyeError
from trieye.files.atomic import relink
from trieye.process.identity import Liveness, ProcessIdentity
from trieye.process.lock import RunLock
from trieye.sweeps.grid import bare
from trieye.sweeps.record import Record

STATUS, OUTPUT, RUN, LOCK = "status.json", "output.log", "run", "job.lock"
"""The files of a job in its directory; `run` is a link to the directory of its run."""

HEARTBEAT_S = 5.0
ORPHAN_WAIT_S = 30.0
"""How long a job waits for a process of an earlier start that still runs it."""

_LONGEST_ERROR = 2000

State = Literal["running", "completed", "failed", "interrupted", "pruned", "lost"]
"""`lost` is what a job is whose process was killed; all others are written by the job itself."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job that is to run.

    Attributes:
        index: Its number.
        overrides: Its overrides.
    """

    index: int
    overrides: tuple[str, ...]


class JobElsewhereError(TrieyeError):
    """Raised when a job is left out because another process runs it, or may run it."""


class ToldError(RuntimeError):
    """What another process said of an error, with its type."""


@dataclass(frozen=True, slots=True)
class Done:
    """A job that has ended.

    Attributes:
        index: Its number.
        value: What it returned.
        error: Why it failed; None if it did not.
        returned: Hydra's `JobReturn`; None if it could not begin, or had ended before the sweep was started again.
        is_pruned: Whether a search stopped it, since it was hopeless.
        record: What its process wrote of it, perhaps on another machine's disk; None if nothing came back.
        run_dir: Of its run, on that machine; None if it began none.
    """

    index: int
    value: object = None
    error: Exception | None = None
    returned: Any = None
    is_pruned: bool = False
    record: "JobRecord | None" = None
    run_dir: Path | None = None

    def bring_to(self, directory: Path) -> None:
        """Leave its record and the link to its run in its directory on this machine, if it was written elsewhere."""
        if self.record is not None and self.record.bring_to(directory) and self.run_dir is not None:
            relink(directory / RUN, self.run_dir)

    @property
    def has_ended_by_itself(self) -> bool:
        """Whether nobody stopped it."""
        return self.error is None or self.returned is not None

    @property
    def number(self) -> float | None:
        """What it returned, if that is a number."""
        is_number = isinstance(self.value, int | float) and not isinstance(self.value, bool)
        return float(self.value) if is_number else None  # type: ignore[arg-type]


class JobRecord(Record, kw_only=True):
    """One job of a sweep; all times are Unix seconds.

    Attributes:
        index: Its number.
        overrides: What it was started with, without secrets.
        state: What it does, or how it ended.
        attempt: 1 for the first start, one more for each restart.
        deaths: How many of its processes were killed.
        host: Machine of its process.
        boot: As in `ProcessIdentity`.
        pid: Its process.
        start: As in `ProcessIdentity`.
        is_brought: Whether the job ran on another machine with its own disk, which holds the run.
        started: When this attempt was started.
        heartbeat: When its process last wrote the record, by the clock of its machine.
        ended: When it ended.
        step: The last step that is known.
        objective: What it returned, if that is a number.
        error: Why it failed.
    """

    FILE = STATUS
    ADVICE = "delete it to run the job again"

    index: int
    overrides: list[str]
    state: State = "running"
    attempt: int = 1
    deaths: int = 0
    host: str = msgspec.field(default_factory=socket.gethostname)
    boot: str = ""
    pid: int = msgspec.field(default_factory=os.getpid)
    start: float = 0.0
    is_brought: bool = False
    started: float = msgspec.field(default_factory=time.time)
    heartbeat: float = msgspec.field(default_factory=time.time)
    ended: float | None = None
    step: int | None = None
    objective: float | None = None
    error: str | None = None

    def values(self, varying: Collection[str]) -> dict[str, str]:
        """Return what it was started with of these keys."""
        pairs = (word.partition("=") for word in self.overrides)
        return {bare(key): value for key, _, value in pairs if bare(key) in varying}

    def fail(self, error: str) -> None:
        """Note why it failed, now."""
        self.state, self.error = "failed", redacted_text(error)[:_LONGEST_ERROR]
        self.ended = time.time()

    @property
    def process(self) -> ProcessIdentity:
        """The process that wrote it."""
        return ProcessIdentity(self.host, self.boot, self.pid, self.start)

    def liveness(self, directory: Path) -> Liveness:
        """Return whether its process still runs the job.

        Args:
            directory: Of the job.
        """
        if self.state != "running":
            return "dead"
        liveness, is_locked = self.process.liveness, _is_locked(directory)
        if is_locked is None:  # a trial of a study, whose driver writes the record, or an earlier version
            return liveness
        if is_locked:
            return "alive"
        return "dead" if liveness == "alive" else liveness  # of a copied directory, the process runs the original

    def bring_to(self, directory: Path) -> bool:
        """Write it into a job's directory on this machine, if what is there is not of the same process; tell whether.

        The disks of two machines count the attempts of a job each for itself.
        """
        known = JobRecord.read(directory)
        if known is not None and (known.host, known.pid, known.started) == (self.host, self.pid, self.started):
            return False
        if known is not None:
            self.attempt, self.deaths = max(self.attempt, known.attempt + 1), max(self.deaths, known.deaths)
        self.is_brought = True
        self.write(directory)
        return True

    @property
    def took_s(self) -> float:
        """Seconds of this attempt, so far."""
        return (self.ended or self.heartbeat) - self.started


def _is_locked(directory: Path) -> bool | None:
    """Return whether a process holds the lock of a job; None if no job has taken it yet."""
    if not (directory / LOCK).exists():
        return None
    try:
        RunLock.check(directory / LOCK)
    except RunLockedError:
        return True
    return False


class RunningJob:
    """A job that runs in this process; the block of `running` is the job.

    The lock of the job keeps every other process out of the block.
    """

    def __init__(self, directory: Path, index: int, overrides: Sequence[str]) -> None:
        self._directory = directory
        self._before = JobRecord.read(directory)
        self._record = JobRecord(
            index=index,
            overrides=[redacted_text(word) for word in overrides],
            **ProcessIdentity.current().as_mapping(),
        )
        self._run_lock = RunLock(directory / LOCK, of="job")
        self._lock = threading.Lock()
        self._over = threading.Event()

    @contextmanager
    def running(self) -> Iterator["JobRecord | None"]:
        """Keep the record while the block runs; an exception of the block is its end, too.

        Yields:
            The record of another process that completed the job while this one waited for it; usually None. The block
            must not run the job then.

        Raises:
            JobElsewhereError: Another process still runs the job after `ORPHAN_WAIT_S`, or began it with other values.
        """
        try:
            self._run_lock.acquire(ORPHAN_WAIT_S)
        except RunLockedError as error:
            raise JobElsewhereError(str(error)) from None
        try:
            now = JobRecord.read(self._directory)
            if now is not None and now.state == "completed" and (self._before is None or now != self._before):
                self._record = now
                yield now
                return
            if now is not None and now != self._before and now.overrides != self._record.overrides:
                raise JobElsewhereError(f"another process began it with {' '.join(now.overrides)!r} meanwhile")
            self._follow(now)
            with self._kept():
                yield None
        finally:
            self._run_lock.release()

    def _follow(self, before: JobRecord | None) -> None:
        if before is not None:
            died = before.state == "running"  # and nobody was there to note it
            self._record.attempt, self._record.deaths = before.attempt + 1, before.deaths + died
            self._record.step = before.step

    @contextmanager
    def _kept(self) -> Iterator[None]:
        self._record.started = self._record.heartbeat = time.time()
        self._record.write(self._directory, is_lasting=False)  # whoever loses it begins the job again
        beating = threading.Thread(target=self._beat, name="trieye-job", daemon=True)
        beating.start()
        try:
            yield
        except Exception as error:
            self.end("failed", error=error)
            raise
        except BaseException:
            self.end("interrupted")
            raise
        finally:
            self._over.set()
            beating.join()
            if self._record.ended is None:
                self.end("completed")

    @property
    def record(self) -> JobRecord:
        """What was written of it."""
        return self._record

    @property
    def run_dir(self) -> Path | None:
        """Directory of its run; None if it has begun none."""
        link = self._directory / RUN
        return link.resolve() if link.is_symlink() else None

    def end(self, state: State, *, objective: float | None = None, error: BaseException | None = None) -> None:
        """Note how it ended."""
        with self._lock:
            self._record.state, self._record.step = state, self._step()
            self._record.objective = objective
            if error is not None:
                self._record.fail(f"{type(error).__name__}: {error}")
            self._record.ended = self._record.heartbeat = time.time()
            self._record.write(self._directory)

    def _beat(self) -> None:
        while not self._over.wait(HEARTBEAT_S):
            with self._lock, suppress(OSError):  # a disk that is full for a moment is no reason to stop
                if self._record.ended is None:
                    self._record.heartbeat, self._record.step = time.time(), self._step()
                    self._record.write(self._directory, is_lasting=False)

    def _step(self) -> int | None:
        """Return the last step of its run, as far as it is known."""
        from trieye.hub.status import read_status  # with NumPy, which those who only read records have no use for

        run_dir = self._directory / RUN
        with suppress(JournalError, OSError):
            metrics = read_status(run_dir).get("metrics", {}) if run_dir.is_dir() else {}
            steps = [int(held["step"]) for held in metrics.values() if held.get("step") is not None]
            return max(steps, default=self._record.step)
        return self._record.step
