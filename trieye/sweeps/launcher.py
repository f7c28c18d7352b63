"""The body of the launcher: it starts jobs where resources are free, and records how each ends."""

import contextlib
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, configure_log, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from trieye.config.hydra.records import RedactingTask
from trieye.config.hydra.typed import plugin_options
from trieye.config.launcher import LauncherConfig
from trieye.config.redaction import redacted_text
from trieye.exceptions import ConfigurationError, RunInterrupted
from trieye.process.progress import say
from trieye.process.signals import StopSignals, exit_code_of
from trieye.sweeps.grid import bare
from trieye.sweeps.jobs import Done, Job, JobElsewhereError, JobRecord
from trieye.sweeps.orphans import Orphans
from trieye.sweeps.pools import Died, Outcome, Places, ThisProcess
from trieye.sweeps.progress import Progress
from trieye.sweeps.record import SweepRecord, lock_in
from trieye.sweeps.status import is_removed
from trieye.sweeps.working import Shared

_LOOK_S = 0.5
_RESOURCES = ("num_cpus", "num_gpus", "memory", "resources")


class Source(Protocol):
    """Where jobs come from, one at a time: a search knows the next one when it has seen others end."""

    def next(self) -> Job | None:
        """Return the next job; None if there is none, or none as long as nobody else has ended."""

    def ended(self, job: Job, done: Done) -> None:
        """Hear of a job that has ended, also of one that had ended before the sweep was started again."""

    def hopeless(self, running: Sequence[Job]) -> Mapping[int, float]:
        """Return which of the jobs that run are to be stopped, with what each has reached."""


class Listed:
    """Jobs that are known from the beginning."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._jobs = iter(jobs)

    def next(self) -> Job | None:
        """Return the next one."""
        return next(self._jobs, None)

    def ended(self, job: Job, done: Done) -> None:
        """Do nothing: the others are to run in any case."""

    def hopeless(self, running: Sequence[Job]) -> Mapping[int, float]:
        """Return none."""
        del running
        return {}


class Launching:
    """The jobs of one sweep, on their way.

    Args:
        options: The options of the launcher.
        context: What Hydra composes with.
        task: What a job runs.
        config: The config that Hydra composed for the sweep.
        varying: The keys that differ between jobs.
    """

    def __init__(
        self,
        options: LauncherConfig,
        context: HydraContext,
        task: TaskFunction,
        config: DictConfig,
        varying: Sequence[str],
    ) -> None:
        self.options, self.config = options, config
        self.directory = Path(str(config.hydra.sweep.dir)).resolve()
        self._shared = Shared(context, config, task, Singleton.get_state(), self.directory, Path.cwd(), tuple(varying))
        unresolved: Any = OmegaConf.to_container(config.hydra.launcher, resolve=False)
        self._varies = any("${" in str(unresolved.get(name)) for name in _RESOURCES)
        self._running: dict[int, Job] = {}
        self._ended: dict[int, Done] = {}
        self._again: deque[Job] = deque()
        self._hopeless: dict[int, float] = {}
        self._composed: dict[int, DictConfig] = {}  # of jobs that wait for room: their resources stand there
        self._deaths: Counter[int] = Counter()
        self._exit_code: int | None = None
        self._fails = False
        self._orphans = Orphans(self.directory)

    def run(self, source: Source, size: int | None) -> list[Done]:
        """Run the jobs of a source to their end; return what became of each, in the order of their numbers.

        The caller holds the lock of the sweep.

        Args:
            source: Where they come from.
            size: How many there will be; None if nobody knows.

        Raises:
            ConfigurationError: A job was another one when the sweep was started the last time.
            RunInterrupted: A signal; what ran has ended, or has been stopped.
        """
        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        size = size if self.options.only is None else len(self.options.only)
        try:
            with Progress(self.directory, size, self._shared.varying) as progress:
                places = self._places()
                try:
                    self._run(source, places, progress)
                except BaseException:  # the second Ctrl-C, or what no job is to blame for
                    self._stop(places)
                    raise
                # whoever presses Ctrl-C while the last jobs run has stopped nothing
                is_over = self._exit_code is not None and not self._running and self._next(source, progress) is None
                is_over = is_over and not self._orphans
            if self._exit_code is None or is_over:
                return [self._ended[index] for index in sorted(self._ended)]
        except KeyboardInterrupt as error:
            if isinstance(error, RunInterrupted):  # of a job in this process
                error.tell(say)
            self._exit_code = getattr(error, "exit_code", exit_code_of(signal.SIGINT))
        interrupt = RunInterrupted(
            f"the sweep was stopped; what is not completed goes on with: trieye sweep relaunch {self.directory}",
            self._exit_code,
        )
        interrupt.tell(say)
        raise interrupt

    def _run(self, source: Source, places: Places, progress: Progress) -> None:
        with self._signals():
            while True:
                self._again.extend(self._orphans.ended())
                self._begin(source, places, progress)
                if self._running:
                    self._hear(source, places, progress)
                elif not self._orphans or self._exit_code is not None or self._fails:
                    return
                else:
                    self._await_orphans(source, progress)
                if self._exit_code not in (None, exit_code_of(signal.SIGINT)):
                    self._stop(places)  # a scheduler does not wait for jobs to finish
                    return
                progress.show()

    def _stop(self, places: Places) -> None:
        if self._running:
            num = len(self._running)
            say(f"sweep: {num} jobs save and stop ..." if num > 1 else "sweep: 1 job saves and stops ...")
        with StopSignals(lambda _: None, "jobs are still being saved", received={signal.SIGINT}):
            places.stop()

    def _hear(self, source: Source, places: Places, progress: Progress) -> None:
        """Wait for jobs that end, and stop those that a search gives up."""
        for outcome in places.wait(_LOOK_S):
            job = self._running.pop(outcome.index)
            done = self._judged(job, outcome)
            if done is None:
                self._again.append(job)
                progress.died(job, outcome.reason if isinstance(outcome, Died) else "")
                continue
            self._ended[job.index] = done
            source.ended(job, done)
            progress.ended(job, done)
            self._fails |= self.options.fail_fast and done.error is not None
        for index, value in source.hopeless(list(self._running.values())).items():
            if index not in self._hopeless:
                self._hopeless[index] = value
                places.cancel(index)

    def _await_orphans(self, source: Source, progress: Progress) -> None:
        """Wait a moment for the jobs that other processes run, and leave out those that run for too long."""
        self._orphans.wait()
        for job, error in self._orphans.given_up():
            self._ended[job.index] = done = Done(job.index, error=error)
            source.ended(job, done)
            progress.ended(job, done)
        time.sleep(_LOOK_S)

    def _signals(self) -> contextlib.AbstractContextManager[Any]:
        """Let the first signal end the beginning of jobs; one that runs in this process minds its signals itself."""
        if self.options.isolate == "none":
            return contextlib.nullcontext()
        code = OmegaConf.select(self.config, "runtime.requeue_exit_code", default=None)
        message = (
            "no other job begins; those that run finish, or, after a second Ctrl-C or another signal, save and stop"
        )
        return StopSignals(self._on_signal, message, requeue_exit_code=code)

    def _on_signal(self, exit_code: int) -> None:
        self._exit_code = exit_code

    def _places(self) -> Places:
        if self.options.isolate == "none":
            return ThisProcess(self._shared)
        from trieye.sweeps.in_ray import RayPlaces

        return RayPlaces(self._shared, self.options)

    def _begin(self, source: Source, places: Places, progress: Progress) -> None:
        """Begin jobs as long as there is room for them."""
        usual = {} if self._varies else self._resources(self.options)
        while self._exit_code is None and not self._fails and places.has_room(usual):
            job = self._next(source, progress)
            if job is None:
                return
            wanted = self._resources_of(job) if self._varies else usual
            if not places.has_room(wanted):
                self._again.appendleft(job)
                return
            progress.began(job)
            places.begin(job.index, job.overrides, wanted, self._composed.pop(job.index, None))
            self._running[job.index] = job

    def _next(self, source: Source, progress: Progress) -> Job | None:
        """Return the next job that is to run; None if there is none."""
        while True:
            job = self._again.popleft() if self._again else source.next()
            if job is None:
                return None
            if self.options.only is not None and job.index not in self.options.only:
                continue
            record = self.record_before(job)
            if record is not None and self._orphans.add(job, record):
                continue
            if record is None or not self._has_ended(job, record):
                return job
            before = Done(job.index, record.objective, is_pruned=record.state == "pruned")
            self._ended[job.index] = before
            source.ended(job, before)
            progress.skipped(job, before)

    def record_before(self, job: Job) -> JobRecord | None:
        """Return the record of a job from an earlier start of the sweep; None if the job never began.

        Raises:
            ConfigurationError: The job had other overrides then.
        """
        record = JobRecord.read(self.directory / str(job.index))
        if record is None:
            return None
        overrides = [redacted_text(word) for word in job.overrides]
        if record.overrides != overrides:
            raise ConfigurationError(
                f"{self.directory}: its job {job.index} was {' '.join(record.overrides)!r} and would be "
                f"{' '.join(overrides)!r}; for another sweep leave hydra.sweep.dir out, or name another directory"
            )
        return record

    def _has_ended(self, job: Job, record: JobRecord) -> bool:
        """Return whether a job has ended for good; a completed job whose run was deleted has not if `only` names it."""
        if self.options.only is not None and is_removed(self.directory / str(job.index), record):
            return False
        return record.state in ("completed", "pruned")

    def _resources_of(self, job: Job) -> dict[str, Any]:
        if job.index not in self._composed:
            self._composed[job.index] = self._shared.composed(job.index, job.overrides)
        composed = self._composed[job.index]
        held: Any = OmegaConf.to_container(composed.hydra.launcher, resolve=True)
        return self._resources(plugin_options("hydra.launcher", LauncherConfig, held, job.overrides))

    @staticmethod
    def _resources(options: LauncherConfig) -> dict[str, Any]:
        asked: Mapping[str, Any] = {name: getattr(options, name) for name in _RESOURCES}
        return {name: value for name, value in asked.items() if value is not None}

    def _judged(self, job: Job, outcome: Outcome) -> Done | None:
        """Return what became of a job, as its record says it, too; None if it gets another process."""
        directory = self.directory / str(job.index)
        if isinstance(outcome, Done):
            if isinstance(outcome.error, JobElsewhereError):
                return outcome
            outcome.bring_to(directory)
        record = JobRecord.read(directory) or JobRecord(index=job.index, overrides=list(job.overrides), attempt=0)
        if isinstance(outcome, Done):
            if job.index in self._hopeless and not outcome.has_ended_by_itself:
                record.state, record.objective, record.error = "pruned", self._hopeless[job.index], None
                record.ended = time.time()
                record.write(directory)
                return Done(job.index, record.objective, is_pruned=True)
            if outcome.error is not None and record.state in ("running", "lost"):  # it did not come so far
                record.fail(f"{type(outcome.error).__name__}: {outcome.error}")
                record.write(directory)
            return outcome
        if record.state == "completed":  # what was killed is what had still to bring the result
            return Done(job.index, record.objective)
        self._deaths[job.index] += 1
        deaths = self._deaths[job.index]
        record.deaths += 1
        record.attempt = max(record.attempt, deaths)  # it may have begun on the disk of another machine
        record.state, record.error = "lost", outcome.reason
        epitaph = f"its process was killed{f' {deaths} times' if deaths > 1 else ''}: {outcome.reason}"
        is_given_up = deaths > self.options.retries
        if is_given_up:
            record.fail(epitaph)
        record.write(directory)
        if is_given_up or self._exit_code is not None or self._fails:
            return Done(job.index, error=RuntimeError(f"job {job.index}: {epitaph}"))
        return None


class LauncherBody:
    """What `hydra/launcher=trieye_ray` does.

    Args:
        **options: As `LauncherConfig` has them.

    Attributes:
        is_part: Whether it runs some jobs of a sweep of which others run at the same time, as a batch system does.
        lock: Of the sweep, or of this part of it; not taken.

    Raises:
        ConfigurationError: An option is not allowed.
    """

    def __init__(self, **options: Any) -> None:
        self.options = plugin_options("hydra.launcher", LauncherConfig, options)
        self._given: tuple[HydraContext, TaskFunction, DictConfig] | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Hear from Hydra what is to be run."""
        self._given = (hydra_context, RedactingTask.of(task_function), config)
        directory, only = Path(str(config.hydra.sweep.dir)).resolve(), self.options.only
        self.is_part = self.options.is_part and bool(only)
        self.lock = lock_in(directory / str(min(only or [0])) if self.is_part else directory)

    def launching(self, varying: Sequence[str]) -> Launching:
        """Return what runs the jobs of this sweep, in which some keys differ."""
        assert self._given is not None  # noqa: S101 - Hydra calls `setup` first
        return Launching(self.options, *self._given, varying)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run jobs; return what became of each, in order."""
        jobs = [Job(number, tuple(words)) for number, words in enumerate(job_overrides, initial_job_idx)]
        constant = set.intersection(*(set(words) for words in job_overrides)) if job_overrides else set()
        varying = {bare(word.partition("=")[0]) for words in job_overrides for word in words if word not in constant}
        launching = self.launching(sorted(varying))
        with self.lock:
            for job in jobs:
                launching.record_before(job)  # raises before any job begins
            # a batch of several adds to it
            before = SweepRecord.read(launching.directory)
            record = new_record(launching.config) if before is None else before.at(launching.directory)
            record.varying = sorted(varying)
            record.size = max(record.size, initial_job_idx + len(jobs))
            record.write(launching.directory)
            ended = launching.run(Listed(jobs), len(jobs))
        return [_as_returned(jobs[done.index - initial_job_idx], done) for done in ended]


def new_record(config: DictConfig) -> SweepRecord:
    """Return the record of a sweep that is about to begin, without its grid."""
    return _record_of(config.hydra, str(OmegaConf.select(config, "loop.mode", default="max")))


def record_of_study(mode: str) -> SweepRecord:
    """Return the record of a study that this program is about to begin, which Hydra has started for one run.

    Args:
        mode: Whether more of the objective is better, `max`, or less, `min`.
    """
    if not HydraConfig.initialized():
        return SweepRecord(spec=[], working_dir=str(Path.cwd()), mode=mode)
    record = _record_of(HydraConfig.get(), mode)
    record.own = [word for word in record.own if not word.startswith(("hydra.run.dir=", "hydra.mode="))]
    return record.sign()


def _record_of(hydra: Any, mode: str) -> SweepRecord:
    overrides: Any = OmegaConf.to_container(hydra.overrides, resolve=False)  # `${cpus}` is each job's own
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    started = ["-m", main.name.removesuffix(".__main__")] if main is not None else [str(Path(sys.argv[0]).resolve())]
    return SweepRecord(
        program=[sys.executable, *started, *_flags(hydra)],
        working_dir=str(Path.cwd()),
        spec=[redacted_text(word) for word in overrides["task"]],
        own=[redacted_text(word) for word in overrides["hydra"]],
        mode=mode,
    ).sign()


def _flags(hydra: Any) -> list[str]:
    """Return the flags that say where the configs are."""
    found, name = [], hydra.job.config_name
    if name is not None:
        found += ["--config-name", str(name)]
    is_elsewhere = any(word.startswith(("--config-p", "-cp")) for word in sys.argv[1:])
    for source in hydra.runtime.config_sources:
        path = source.path if source.schema == "file" else f"{source.schema}://{source.path}"
        if source.provider == "command-line":
            found += ["--config-dir", path]
        elif source.provider == "main" and is_elsewhere:
            found += ["--config-path", path]
    return found


def _as_returned(job: Job, done: Done) -> JobReturn:
    """Return it as Hydra has it, also where there is nothing of Hydra's."""
    if done.returned is not None:
        returned: JobReturn = done.returned
        return returned
    made = JobReturn(overrides=list(job.overrides))
    made.status = JobStatus.COMPLETED if done.error is None else JobStatus.FAILED
    made.return_value = done.value if done.error is None else done.error
    return made
