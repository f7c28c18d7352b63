"""Implementation of the launcher: starts jobs when resources are free, and records their outcomes."""

import contextlib
import signal
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, configure_log, setup_globals
from hydra.errors import HydraException
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from trieye.config.hydra.override_text import values_of
from trieye.config.hydra.records import RedactingTask
from trieye.config.hydra.typed import plugin_options
from trieye.config.launcher import LauncherConfig
from trieye.config.redaction import redacted_override
from trieye.exceptions import ConfigurationError, RunInterrupted
from trieye.process.progress import say
from trieye.process.signals import StopSignals, exit_code_of
from trieye.process.text import command_text, counted
from trieye.renames import current_override
from trieye.sweeps.backends import location_of, pool_of
from trieye.sweeps.jobs import ORPHANED_STOP_S, Done, Job, JobElsewhereError, JobRecord, ReportedError, append_output
from trieye.sweeps.objectives import Objectives
from trieye.sweeps.orphans import Orphans
from trieye.sweeps.pools import STOP_S, Died, Outcome, WorkerPool
from trieye.sweeps.progress import SweepProgress
from trieye.sweeps.record import OTHER_SWEEP, SweepRecord, lock_in
from trieye.sweeps.recorder import new_record
from trieye.sweeps.search import JobQueue
from trieye.sweeps.slurm import run_on_slurm
from trieye.sweeps.status import is_removed
from trieye.sweeps.timeouts import Timeouts
from trieye.sweeps.working import SweepContext, message_of, output_dir_of, shared_base, shared_output

_LOOK_S = 0.5
_RESOURCES = {"num_cpus", "num_gpus", "memory", "resources"}


class SweepExecution:
    """Runs the jobs of one sweep.

    Args:
        options: The options of the launcher.
        context: Data that all jobs share.
    """

    def __init__(self, options: LauncherConfig, context: SweepContext) -> None:
        self.options, self._context, self.config, self.directory = options, context, context.config, context.directory
        raw_options: Any = OmegaConf.to_container(self.config.hydra.launcher, resolve=False)
        self._varies = any("${" in str(raw_options.get(name)) for name in _RESOURCES)
        self._running: dict[int, Job] = {}
        self._ended: dict[int, Done] = {}
        self._requeued: deque[Job] = deque()
        self._pruned: dict[int, Done] = {}
        # resources of the next job, by index and overrides, where its config determines them
        self._needs: dict[tuple[int, tuple[str, ...]], dict[str, Any]] = {}
        self._deaths: Counter[int] = Counter()
        self._exit_code: int | None = None
        self._fails = False
        self._orphans = Orphans(self.directory, observes_unknown=not options.is_array)
        self._timeouts = Timeouts(options, self.directory)

    @contextlib.contextmanager
    def opened(self, samples: Sequence[Job]) -> Iterator[Self]:
        """Prepare the backend, so that errors of all jobs are reported before the sweep is recorded.

        Args:
            samples: Jobs of the sweep, of which only the output directories are checked, except for the first.

        Raises:
            ConfigurationError: A config does not compose, a job requests more than this machine has, jobs share an
                output directory, or the backend is not available.
        """
        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        resources = self._checked_resources(samples[0]) if samples else {}
        self._check_output_directories(samples)
        if self.options.is_array:
            yield self
            return
        with contextlib.closing(pool_of(self.options, self._context)) as self._pool:
            if (refusal := self._pool.refusal(resources)) is not None:
                raise ConfigurationError(refusal)
            yield self

    def _checked_resources(self, job: Job) -> dict[str, Any]:
        """Return the resources of a job.

        Raises:
            ConfigurationError: Its config does not compose.
        """
        try:
            self._context.composed_here(job.index, job.overrides)
            return self._resources_of(job)
        except ConfigurationError as error:
            raise ConfigurationError(f"job {job.index} ({' '.join(job.overrides)}): {error}") from error

    def _check_output_directories(self, samples: Sequence[Job]) -> None:
        pattern: Any = OmegaConf.to_container(self.config.hydra.sweep, resolve=False)
        if pattern["subdir"] == "${hydra.job.num}":
            return
        owners: dict[Path, Job] = {}
        for job in samples:
            try:
                config = self._context.composed(job.index, job.overrides)
                output_dir = output_dir_of(self.directory / str(job.index), config)
            except (HydraException, OmegaConfBaseException):  # this job fails with its own message
                continue
            if (owner := owners.setdefault(output_dir, job)) is not job:
                raise ConfigurationError(shared_output(config, owner.index, job.index))

    def run(self, queue: JobQueue, size: int) -> list[Done]:
        """Run the jobs of a queue; return their outcomes in order of index.

        The caller holds the lock of the sweep, within `opened`.

        Args:
            queue: The jobs.
            size: Number of jobs, at most.

        Raises:
            ConfigurationError: A job had other overrides in an earlier start of the sweep.
            RunInterrupted: A signal arrived; running jobs have ended or were stopped.
        """
        size = size if self.options.selected_jobs is None else min(size, len(self.options.selected_jobs))
        if self.options.is_array:
            return self._run_on_slurm(queue, size)
        try:
            with self._progress(size) as progress:
                try:
                    self._run(queue, self._pool, progress)
                except BaseException:  # a second Ctrl-C, or an error outside of the jobs
                    self._stop(self._pool, progress)
                    raise
                # Ctrl-C during the last jobs has skipped no job
                is_over = self._exit_code is not None and not self._running and self._next(queue, progress) is None
                is_over = is_over and not self._orphans
            if self._exit_code is None or is_over:
                return [self._ended[index] for index in sorted(self._ended)]
        except KeyboardInterrupt as error:
            if isinstance(error, RunInterrupted):  # of a job in this process
                error.tell(say)
            self._exit_code = getattr(error, "exit_code", exit_code_of(signal.SIGINT))
        interrupt = RunInterrupted(
            "the sweep was stopped; resume the unfinished jobs with: "
            f"{command_text('sweep', 'relaunch', self.directory)}",
            self._exit_code,
        )
        interrupt.tell(say)
        raise interrupt

    def _progress(self, size: int) -> SweepProgress:
        location, is_live = location_of(self.options, self._context), not self.options.is_sequential
        return SweepProgress(self.directory, size, self._context.varying, location=location, is_live=is_live)

    def _run_on_slurm(self, queue: JobQueue, size: int) -> list[Done]:
        with self._progress(size) as progress:
            jobs = list(iter(lambda: self._next(queue, progress), None))
            options = self.options
            if self._varies and jobs:  # a task of the array may run any of the jobs
                needs = [need for job in jobs if (need := self._resources_or_failure(job, queue, progress)) is not None]
                jobs = [job for job in jobs if job.index not in self._ended]
                names = ("num_cpus", "num_gpus", "memory")
                largest_needs = {name: max((need.get(name) or 0 for need in needs), default=0) for name in names}
                options = options.model_copy(update=largest_needs)
            self._skip(self._orphans.skipped(), queue, progress)
            words: Any = OmegaConf.to_container(self.config.hydra.overrides.hydra, resolve=False)
            outcomes = run_on_slurm(self.directory, jobs, options, progress, words=words)
            for job in jobs:
                if job.index in outcomes:
                    self._ended[job.index] = queue.ended(job, outcomes[job.index])
        return [self._ended[index] for index in sorted(self._ended)]

    def _run(self, queue: JobQueue, pool: WorkerPool, progress: SweepProgress) -> None:
        with self._signals():
            while True:
                self._requeued.extend(self._orphans.ended())
                if self._exit_code is not None or self._fails:
                    for index in pool.cancel_waiting():
                        self._timeouts.ended(index)
                        self._requeued.append(self._running.pop(index))
                        progress.cancelled(self._requeued[-1])
                self._begin(queue, pool, progress)
                if self._running:
                    self._collect(queue, pool, progress)
                elif not self._orphans or self._exit_code is not None or self._fails:
                    return
                else:
                    self._await_orphans(queue, progress)
                if self._exit_code not in (None, exit_code_of(signal.SIGINT)):
                    self._stop(pool, progress)  # a scheduler does not wait for jobs to finish
                    return
                progress.show()

    def _stop(self, pool: WorkerPool, progress: SweepProgress) -> None:
        if self._running:
            jobs = counted(len(self._running), "job")
            limit = f"jobs still running after {STOP_S:.0f} s are killed"
            say(f"sweep: interrupting {jobs}; {limit}; Ctrl-C exits without waiting ...")
        try:
            with StopSignals(lambda _: None, "interrupted jobs are still running", received={signal.SIGINT}):
                pool.stop()
        except KeyboardInterrupt:
            say(f"sweep: jobs that are still running are killed within {ORPHANED_STOP_S:.0f} s")
            raise
        for index, job in list(self._running.items()):  # a job may ignore the interruption and return
            record = JobRecord.read(self.directory / str(index))
            if record is not None and record.state == "completed":
                progress.ended(self._running.pop(index), Done(job.index, record.objective))

    def _collect(self, queue: JobQueue, pool: WorkerPool, progress: SweepProgress) -> None:
        """Wait for jobs to end, and stop jobs that the queue prunes."""
        for outcome in pool.wait(_LOOK_S):
            job = self._running.pop(outcome.index)
            if job.index in self._pruned:
                self._pruned[job.index] = queue.rated(self._pruned[job.index])
            self._end(job, outcome, queue, progress)
        for index, done in queue.to_prune(list(self._running.values())).items():
            if index not in self._pruned:
                self._pruned[index] = done
                pool.cancel(index)
        self._timeouts.enforce(pool)

    def _end(self, job: Job, outcome: Outcome, queue: JobQueue, progress: SweepProgress) -> None:
        """Record the outcome of a job, or retry it in another process."""
        done = self._resolve(job, outcome)
        if done is None:
            self._requeued.append(job)
            progress.died(job, outcome.reason if isinstance(outcome, Died) else "")
            return
        self._ended[job.index] = done = queue.ended(job, done)
        progress.ended(job, done)
        self._fails |= self.options.fail_fast and done.error is not None

    def _await_orphans(self, queue: JobQueue, progress: SweepProgress) -> None:
        """Wait briefly for jobs of other processes, and skip jobs that time out."""
        self._orphans.wait()
        self._skip(self._orphans.timed_out(), queue, progress)
        time.sleep(_LOOK_S)

    def _skip(self, skipped: Sequence[tuple[Job, JobElsewhereError]], queue: JobQueue, progress: SweepProgress) -> None:
        for job, error in skipped:
            self._ended[job.index] = done = queue.ended(job, Done(job.index, error=error))
            progress.ended(job, done)

    def _signals(self) -> contextlib.AbstractContextManager[Any]:
        """Stop starting jobs at the first signal; a job in this process handles its own signals."""
        if self.options.is_sequential:
            return contextlib.nullcontext()
        code = OmegaConf.select(self.config, "runtime.requeue_exit_code", default=None)
        return StopSignals(self._on_signal, _no_more_jobs, requeue_exit_code=code)

    def _on_signal(self, exit_code: int) -> None:
        self._exit_code = exit_code

    def _begin(self, queue: JobQueue, pool: WorkerPool, progress: SweepProgress) -> None:
        """Start jobs while the pool has room."""
        common_resources = {} if self._varies else self._resources(self.options)
        while self._exit_code is None and not self._fails and pool.has_room(common_resources):
            job = self._next(queue, progress)
            if job is None:
                return
            resources = self._resources_or_failure(job, queue, progress)
            if resources is None:
                continue
            if not pool.has_room(resources):
                self._requeued.appendleft(job)
                return
            progress.began(job)
            self._timeouts.began(job.index)
            self._needs.clear()
            pool.begin(job.index, job.overrides, resources)
            self._running[job.index] = job

    def _next(self, queue: JobQueue, progress: SweepProgress) -> Job | None:
        """Return the next job to run, or None."""
        while True:
            job = self._requeued.popleft() if self._requeued else queue.next()
            if job is None:
                return None
            if self.options.selected_jobs is not None and job.index not in self.options.selected_jobs:
                continue
            record = self.record_before(job)
            if record is not None and self._orphans.add(job, record):
                continue
            if record is None or not self._has_ended(job, record):
                return job
            done = Done(job.index, record.objective, is_pruned=record.state == "pruned")
            self._ended[job.index] = queue.ended(job, done)
            progress.skipped()

    def record_before(self, job: Job) -> JobRecord | None:
        """Return the record of a job from an earlier start of the sweep; None if the job never started.

        Raises:
            ConfigurationError: The job had other overrides then.
        """
        record = JobRecord.read(self.directory / str(job.index))
        if record is None:
            return None
        overrides = [redacted_override(word) for word in job.overrides]
        if [current_override(word, values_of(overrides)) for word in record.overrides] != overrides:
            raise ConfigurationError(
                f"{self.directory}: job {job.index} was {' '.join(record.overrides)!r} and would be "
                f"{' '.join(overrides)!r}; {OTHER_SWEEP}"
            )
        return record

    def _has_ended(self, job: Job, record: JobRecord) -> bool:
        """Return whether a job must not run again; a completed job with a deleted run may, if `only` names it."""
        if self.options.only is not None and is_removed(self.directory / str(job.index), record):
            return False
        return record.state in ("completed", "pruned")

    def _resources_or_failure(self, job: Job, queue: JobQueue, progress: SweepProgress) -> dict[str, Any] | None:
        """Return the resources of a job; None if it has failed, because its config does not compose."""
        try:
            return self._resources_of(job)
        except ConfigurationError as error:
            progress.began(job)
            self._end(job, Done(job.index, error=error), queue, progress)
            return None

    def _resources_of(self, job: Job) -> dict[str, Any]:
        if not self._varies:
            return self._resources(self.options)
        key = job.index, tuple(job.overrides)
        if key not in self._needs:
            config = self._context.composed_here(job.index, job.overrides)
            try:
                options: Any = OmegaConf.to_container(config.hydra.launcher, resolve=True)
            except OmegaConfBaseException as error:
                raise ConfigurationError(f"hydra.launcher: {message_of(error)}") from error
            options = plugin_options("hydra.launcher", LauncherConfig, options, job.overrides)
            self._needs[key] = self._resources(options)
        return self._needs[key]

    @staticmethod
    def _resources(options: LauncherConfig) -> dict[str, Any]:
        return options.model_dump(include=_RESOURCES, exclude_none=True)

    def _resolve(self, job: Job, outcome: Outcome) -> Done | None:
        """Record and return the outcome of a job; None if the job is retried in another process."""
        directory, limit = self.directory / str(job.index), self._timeouts.ended(job.index)
        if isinstance(outcome, Done):
            if isinstance(outcome.error, JobElsewhereError):
                return outcome
            outcome.bring_to(directory)
        record = JobRecord.read(directory) or JobRecord(
            index=job.index, overrides=[redacted_override(word) for word in job.overrides], attempt=0
        )
        has_ended = outcome.has_ended_by_itself if isinstance(outcome, Done) else record.state == "completed"
        if limit is not None and not has_ended:
            record.fail(str(limit))
            record.write(directory)
            append_output(directory, str(limit))
            return Done(job.index, error=limit)
        return self._of_done(job, outcome, record) if isinstance(outcome, Done) else self._of_death(outcome, record)

    def _of_done(self, job: Job, done: Done, record: JobRecord) -> Done:
        directory = self.directory / str(job.index)
        if job.index in self._pruned and not done.has_ended_by_itself:
            pruned_outcome = self._pruned[job.index]
            record.state, record.objective, record.error = "pruned", pruned_outcome.number, None
            record.reason, record.ended = pruned_outcome.reason, time.time()
            record.write(directory)
            return pruned_outcome
        if done.error is not None and record.state in ("running", "lost"):  # no final record
            record.fail(done.error_text)
            record.write(directory)
            if not done.is_raised:
                append_output(directory, done.error_text)
        return done

    def _of_death(self, died: Died, record: JobRecord) -> Done | None:
        if record.state == "completed":  # the process was killed after the job, before it returned the result
            return Done(died.index, record.objective)
        self._deaths[died.index] += 1
        deaths = self._deaths[died.index]
        record.deaths += 1
        record.attempt = max(record.attempt, deaths)  # attempts may be on the disk of another machine
        record.state, record.error = "lost", died.reason
        reason = f"its process died{f' {deaths} times' if deaths > 1 else ''}: {died.reason}"
        append_output(self.directory / str(died.index), reason)
        has_no_retries = deaths > self.options.retries
        if has_no_retries:
            record.fail(reason)
        record.write(self.directory / str(died.index))
        if has_no_retries or self._exit_code is not None or self._fails:
            return Done(died.index, error=ReportedError(reason))
        return None


def _no_more_jobs(signal_number: int) -> str:
    running_hint = "; running jobs finish, and a second Ctrl-C or another signal interrupts them"
    return f"no further jobs start{running_hint if signal_number == signal.SIGINT else ''}"


class LauncherBody:
    """Implements `hydra/launcher=trieye`.

    Args:
        **options: Fields of `LauncherConfig`.

    Attributes:
        is_part: Whether it runs one part of a sweep while other processes run other parts, as on a batch system.
        lock: Lock of the sweep, or of this part; not acquired.

    Raises:
        ConfigurationError: An option is invalid.
    """

    def __init__(self, **options: Any) -> None:
        self.options = plugin_options("hydra.launcher", LauncherConfig, options)
        self._hydra_setup: tuple[HydraContext, DictConfig, TaskFunction] | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Receive the task and config from Hydra."""
        self._hydra_setup = (hydra_context, config, RedactingTask.of(task_function))
        directory, selected_jobs = Path(str(config.hydra.sweep.dir)).resolve(), self.options.only
        self.is_part = self.options.is_part and bool(selected_jobs)
        self.lock = lock_in(directory / str(min(selected_jobs or [0])) if self.is_part else directory)

    def execution(self, varying: Sequence[str], objectives: Objectives) -> SweepExecution:
        """Return the execution of this sweep, whose jobs differ in the keys `varying`."""
        assert self._hydra_setup is not None  # noqa: S101 - Hydra calls `setup` first
        hydra_context, config, task = self._hydra_setup
        directory, base = Path(str(config.hydra.sweep.dir)).resolve(), shared_base(hydra_context.config_loader, config)
        singletons, working_dir = Singleton.get_state(), Path.cwd()
        context = SweepContext(
            hydra_context, config, task, singletons, directory, working_dir, tuple(varying),
            {} if base is None else {(): base}, objectives,
        )  # fmt: skip
        return SweepExecution(self.options, context)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run jobs; return their outcomes in order."""
        jobs = [Job(index, tuple(words)) for index, words in enumerate(job_overrides, initial_job_idx)]
        if self.options.is_array:
            raise ConfigurationError(
                "hydra.launcher.backend=slurm: needs hydra/sweeper=trieye, because tasks select jobs by their index in "
                "its grid"
            )
        constant = set.intersection(*(set(words) for words in job_overrides)) if job_overrides else set()
        varying = {*values_of(word for words in job_overrides for word in words if word not in constant)}
        execution = self.execution(sorted(varying), Objectives())
        with self.lock, execution.opened(jobs[:2]):
            for job in jobs:
                execution.record_before(job)  # raises before any job starts
            # other batches of the same sweep extend its record
            earlier_record = SweepRecord.read(execution.directory)
            record = new_record(execution.config) if earlier_record is None else earlier_record.at(execution.directory)
            record.varying = sorted(varying)
            record.size = max(record.size, initial_job_idx + len(jobs))
            record.write(execution.directory)
            outcomes = execution.run(JobQueue(jobs, execution.directory), len(jobs))
        return [_as_returned(jobs[done.index - initial_job_idx], done) for done in outcomes]


def _as_returned(job: Job, done: Done) -> JobReturn:
    """Return Hydra's `JobReturn` of a job, or construct one."""
    if done.returned is not None:
        returned: JobReturn = done.returned
        return returned
    job_return = JobReturn(overrides=list(job.overrides))
    job_return.status = JobStatus.COMPLETED if done.error is None else JobStatus.FAILED
    job_return.return_value = done.value if done.error is None else done.error
    return job_return
