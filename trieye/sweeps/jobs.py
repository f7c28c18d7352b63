"""JobRecord: the state of a sweep job in its status.json, written by the process that runs it."""

import math
import os
import socket
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import msgspec

from trieye.config.hydra.override_text import values_of
from trieye.config.redaction import redacted_override, redacted_text
from trieye.exceptions import ConfigurationError, JournalError, RunLockedError, TrieyeError
from trieye.files.atomic import relink
from trieye.process.identity import Liveness, ProcessIdentity
from trieye.process.lock import RunLock
from trieye.renames import current_override
from trieye.sweeps.record import OTHER_SWEEP, JsonRecord

STATUS, OUTPUT, RUN, OUTPUT_DIR, LOCK = "status.json", "output.log", "run", "output", "job.lock"
"""Files in the directory of a job; `run` is a link to the run directory, `output` to another output directory."""

TARGET_REACHED, TIME_OVER = STUDY_LIMITS = ("tune.target reached", "tune.time_s is over")
"""Reasons of jobs that a limit of their study ended."""

STOP_REASON = "stop-reason.txt"
"""File that tells a running job why a search interrupts it."""

RESERVED = (STATUS, OUTPUT, RUN, OUTPUT_DIR, LOCK, STOP_REASON)
"""Names in the directory of a job that no output directory can have."""

CLAIM = ".job.json"
"""Link in another output directory to the record of its job."""

HEARTBEAT_S = 5.0
ORPHAN_WAIT_S = 30.0
"""How long a job waits for a process of an earlier start that is still running it."""

ORPHANED_STOP_S = 20.0
"""Seconds for jobs to save after their driver died; less than `ORPHAN_WAIT_S`, which the next driver waits."""

_LONGEST_ERROR = 2000

State = Literal["running", "completed", "failed", "interrupted", "pruned", "lost"]
"""`lost`: the process was killed; the job itself writes all other states."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job to run.

    Attributes:
        index: Index of the job.
        overrides: Its overrides.
    """

    index: int
    overrides: tuple[str, ...]


class JobElsewhereError(TrieyeError):
    """Raised when a job is skipped because another process runs it or may be running it."""


class JobLimitError(TrieyeError):
    """Raised for a job that was stopped because it exceeded its time or memory limit."""


class ReportedError(RuntimeError):
    """An error that another process reported as text, including its type."""


class UnpicklableError(RuntimeError):
    """The text, including the type, of an error that a job raised and that cannot be pickled."""


@dataclass(frozen=True, slots=True)
class Done:
    """A job that has ended.

    Attributes:
        index: Index of the job.
        value: Its return value.
        error: The error, if it failed.
        returned: Hydra's `JobReturn`; None if the job could not start, or had ended before this start of the sweep.
        is_pruned: Whether a search pruned it.
        reason: Why, if it says so.
        record: The record that its process wrote, possibly on another machine's disk; None if nothing was returned.
        run_dir: Its run directory on that machine; None if it started no run.
    """

    index: int
    value: object = None
    error: BaseException | None = None
    returned: Any = None
    is_pruned: bool = False
    reason: str | None = None
    record: "JobRecord | None" = None
    run_dir: Path | None = None

    def bring_to(self, directory: Path) -> None:
        """Copy the record and the link to the run to a local directory, if the job ran on another machine."""
        if self.record is not None and self.record.bring_to(directory) and self.run_dir is not None:
            relink(directory / RUN, self.run_dir)

    @property
    def has_ended_by_itself(self) -> bool:
        """Whether the job ended without being stopped."""
        return self.error is None or self.returned is not None

    @property
    def error_text(self) -> str:
        """The error on one line, with its type if the job raised it, without secrets."""
        has_type = not self.is_raised or isinstance(self.error, UnpicklableError)
        name = "" if has_type else f"{type(self.error).__name__}: "
        return redacted_text(" ".join(f"{name}{self.error}".split()).removesuffix(":"))

    @property
    def is_raised(self) -> bool:
        """Whether the job raised the error, and did not end for another reason, such as a limit."""
        return not isinstance(self.error, ReportedError | JobLimitError | JobElsewhereError)

    @property
    def number(self) -> float | None:
        """The return value, if it is a number, or a dict, list or tuple of one number."""
        single_number = _number(self.value)
        return next(iter(self.numbers.values())) if single_number is None and len(self.numbers) == 1 else single_number

    @property
    def objectives(self) -> list[float]:
        """The numbers of the return value, of which a search has one or several; empty if there is none."""
        return list(self.numbers.values()) or ([] if self.number is None else [self.number])

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers in a return value that is a dict, a list or a tuple, named `objective_0`, ... without a dict.

        Keys of nested dicts are joined by `/`.
        """
        value = self.value
        if isinstance(value, list | tuple):
            value = {f"objective_{index}": item for index, item in enumerate(value)}
        return dict(_numbers(value)) if isinstance(value, Mapping) else {}


def _numbers(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for key in values:
        value = values.get(key)  # None for ??? in a config
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{key}/")
        elif (number := _number(value)) is not None:
            yield f"{prefix}{key}", number


def _number(value: Any) -> float | None:
    """Return a number, or a scalar of NumPy or torch, as a float; None for any other value."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, Real) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:  # a large integer
        return -math.inf if value < 0 else math.inf


class JobRecord(JsonRecord, kw_only=True):
    """State of one job of a sweep; all times are Unix seconds.

    Attributes:
        index: Index of the job.
        overrides: Its overrides, without secrets.
        state: Current or final state.
        attempt: 1 for the first start, plus 1 for each restart.
        deaths: Number of its processes that were killed.
        host: Machine of its process.
        boot: See `ProcessIdentity`.
        pid: Id of its process.
        start: See `ProcessIdentity`.
        is_brought: Whether the job ran on another machine, whose disk contains the run.
        started: Start time of this attempt.
        heartbeat: Time of the last write by its process, on the clock of its machine.
        ended: End time.
        step: Last recorded step.
        objective: The objective, if it is a finite number: the return value, or as `hydra.sweeper.objective` defines
            it.
        recorded_objectives: The numbers of a return value with several, by name, or `objective` alone if it is not
            finite; text: `nan`, `inf` or `-inf`, for which JSON has no numbers.
        error: The error, if it failed.
        reason: Why a search, a scheduler or a limit of the study pruned it.
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
    recorded_objectives: dict[str, float | str | None] = msgspec.field(name="objectives", default_factory=dict)
    error: str | None = None
    reason: str | None = None

    @property
    def objectives(self) -> dict[str, float]:
        """The numbers of a return value with several, by name, or `objective` alone if it is not finite."""
        return {name: math.nan if value is None else float(value) for name, value in self.recorded_objectives.items()}

    @property
    def number(self) -> float | None:
        """The objective, also if it is not finite."""
        is_alone = self.objective is None and list(self.recorded_objectives) == ["objective"]
        return self.objectives["objective"] if is_alone else self.objective

    def values(self, varying: Collection[str]) -> dict[str, str]:
        """Return the values of the given keys from its overrides."""
        values = values_of(current_override(word, varying) for word in self.overrides)
        return {key: value for key, value in values.items() if key in varying}

    def rate(self, done: Done) -> None:
        """Set the objectives to the numbers that the job returned."""
        numbers, self.objective = done.numbers, done.number
        if done.number is not None and not math.isfinite(done.number):
            numbers, self.objective = numbers or {"objective": done.number}, None
        self.recorded_objectives = {name: x if math.isfinite(x) else str(x) for name, x in numbers.items()}

    def fail(self, error: str) -> None:
        """Set the state to failed, with the error and the current time."""
        text = redacted_text(error)[:_LONGEST_ERROR]
        self.state, self.error = "failed", text.encode(errors="backslashreplace").decode()  # of undecodable file names
        self.ended = time.time()

    @property
    def process(self) -> ProcessIdentity:
        """The process that wrote the record."""
        return ProcessIdentity(self.host, self.boot, self.pid, self.start)

    def liveness(self, directory: Path) -> Liveness:
        """Return whether its process is still running the job.

        Args:
            directory: Directory of the job.
        """
        if self.state != "running":
            return "dead"
        try:
            RunLock.check(directory / LOCK)
        except RunLockedError:
            return "alive"
        liveness = self.process.liveness
        # only the driver of a study writes the records of trials, which have no lock
        is_copy = liveness == "alive" and (directory / LOCK).exists()  # the live process runs the original
        return "dead" if is_copy else liveness

    def bring_to(self, directory: Path) -> bool:
        """Write the record to a local job directory, unless its record is from the same process; return whether it did.

        Each machine counts the attempts on its own disk only, so the counts are merged.
        """
        local = JobRecord.read(directory)
        if local is not None and (local.host, local.pid, local.started) == (self.host, self.pid, self.started):
            return False
        if local is not None:
            self.attempt, self.deaths = max(self.attempt, local.attempt + 1), max(self.deaths, local.deaths)
        self.is_brought = True
        self.write(directory)
        return True

    @property
    def took_s(self) -> float:
        """Duration of this attempt so far, in seconds."""
        return (self.ended or self.heartbeat) - self.started


def records_in(directory: Path) -> Iterator[JobRecord]:
    """Yield the records of the jobs of a sweep, in any order; a renamed copy of a job's directory is no job.

    Raises:
        SerializationError: A record is damaged.
    """
    job_dirs = (path.parent for path in directory.glob(f"[0-9]*/{STATUS}") if path.parent.name.isdecimal())
    records = ((JobRecord.read(job_dir), job_dir.name) for job_dir in job_dirs)
    return (record for record, name in records if record is not None and name == str(record.index))


def have_objectives(directory: Path) -> bool:
    """Return whether any job of a sweep has recorded objectives."""
    return any(record.objectives or record.objective is not None for record in records_in(directory))


def check_foreign_jobs(directory: Path) -> None:
    """Refuse a directory with jobs of another launcher, whose files a sweep would mix with its own.

    Raises:
        ConfigurationError: The directory contains such jobs.
    """
    jobs = (path.parent for path in directory.glob("[0-9]*/.hydra"))
    if job := next((job for job in jobs if not (job / STATUS).exists()), None):
        raise ConfigurationError(f"{directory} contains jobs of another launcher, such as {job.name}; {OTHER_SWEEP}")


def append_output(directory: Path, text: str) -> None:
    """Append a line of trieye to the output file of a job."""
    with suppress(OSError), (directory / OUTPUT).open("a", encoding="utf-8") as output:
        output.write(f"trieye: {text}\n")


class RunningJob:
    """A job that runs in this process, in the `running` block, under the lock of the job.

    Attributes:
        record: The record of the job.
    """

    def __init__(self, directory: Path, index: int, overrides: Sequence[str]) -> None:
        self._directory = directory
        self._before = JobRecord.read(directory)
        self.record = JobRecord(
            index=index,
            overrides=[redacted_override(word) for word in overrides],
            **ProcessIdentity.current().as_mapping(),
        )
        self._run_lock = RunLock(directory / LOCK, subject="job")
        self._lock = threading.Lock()
        self._over = threading.Event()

    @contextmanager
    def running(self) -> Iterator["JobRecord | None"]:
        """Maintain the record while the block runs; an exception in the block ends the job as well.

        Yields:
            None, or the record of another process that completed the job while this process waited for the lock; the
            block must not run the job then.

        Raises:
            JobElsewhereError: Another process still runs the job after `ORPHAN_WAIT_S`, or started another job.
        """
        try:
            self._run_lock.acquire(ORPHAN_WAIT_S)
        except RunLockedError as error:
            raise JobElsewhereError(str(error)) from None
        try:
            record = JobRecord.read(self._directory)
            if record is not None and record.state == "completed" and (self._before is None or record != self._before):
                self.record = record
                yield record
                return
            if record is not None and record != self._before and record.overrides != self.record.overrides:
                raise JobElsewhereError(f"another process has started it with {' '.join(record.overrides)!r}")
            self._follow(record)
            with self._recorded():
                yield None
        finally:
            self._run_lock.release()

    def _follow(self, earlier_record: JobRecord | None) -> None:
        if earlier_record is not None:
            has_died = earlier_record.state == "running"  # killed without a final record
            self.record.attempt, self.record.deaths = earlier_record.attempt + 1, earlier_record.deaths + has_died
            self.record.step = earlier_record.step

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        self.record.started = self.record.heartbeat = time.time()
        self.record.write(self._directory, is_lasting=False)  # if it is lost, the job restarts
        heartbeat_thread = threading.Thread(target=self._beat, name="trieye-job", daemon=True)
        heartbeat_thread.start()
        try:
            yield
        except Exception as error:
            if self.record.ended is None:
                self.end("failed", error=error)
            raise
        except BaseException:
            if self.record.ended is None:  # a signal may arrive after the job, and must not make it run again
                self.end("interrupted")
            raise
        finally:
            self._over.set()
            heartbeat_thread.join()
            if self.record.ended is None:
                self.end("completed")

    @property
    def run_dir(self) -> Path | None:
        """The run directory; None if the job has started no run."""
        link = self._directory / RUN
        return link.resolve() if link.is_symlink() else None

    def end(self, state: State, *, done: Done | None = None, error: BaseException | None = None) -> None:
        """Write the final state, with the objectives of `done`."""
        with self._lock:
            self.record.state, self.record.step = state, self._step()
            if done is not None:
                self.record.rate(done)
            if error is not None:
                self.record.fail(f"{type(error).__name__}: {error}")
            self.record.ended = self.record.heartbeat = time.time()
            self.record.write(self._directory)

    def _beat(self) -> None:
        while not self._over.wait(HEARTBEAT_S):
            with self._lock, suppress(OSError):  # a temporarily full disk must not stop the job
                if self.record.ended is None:
                    self.record.heartbeat, self.record.step = time.time(), self._step()
                    self.record.write(self._directory, is_lasting=False)

    def _step(self) -> int | None:
        """Return the last recorded step of the run."""
        run_dir = self._directory / RUN
        if not run_dir.is_dir():
            return self.record.step

        from trieye.hub.status import read_status  # imports NumPy, which jobs without a run do not need

        with suppress(JournalError, OSError):
            metrics = read_status(run_dir).get("metrics", {})
            steps = [int(metric["step"]) for metric in metrics.values() if metric.get("step") is not None]
            return max(steps, default=self.record.step)
        return self.record.step
