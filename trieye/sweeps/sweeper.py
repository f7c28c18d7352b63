"""Implementation of the sweeper: takes the jobs of a grid by index, and asks a search for each next job."""

import contextlib
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from trieye.config.fingerprint import leaves
from trieye.config.hydra import registration
from trieye.config.hydra.axes import dimensions_of, typed, words_of
from trieye.config.hydra.loader import quoted
from trieye.config.hydra.override_text import bare, values_of
from trieye.config.hydra.records import RedactingTask, write_redacted
from trieye.config.hydra.typed import plugin_options
from trieye.config.launcher import ranges
from trieye.config.redaction import HIDDEN, redacted, redacted_override
from trieye.config.sweeper import SweeperConfig
from trieye.exceptions import ConfigurationError, SerializationError, TrieyeError
from trieye.files.run_files import RUN_RECORD
from trieye.files.run_record import RunRecord
from trieye.process.progress import say
from trieye.process.text import command_text
from trieye.sweeps.budgets import run_further, with_raised_budget
from trieye.sweeps.grid import Grid
from trieye.sweeps.jobs import RUN, Done, Job, JobRecord, check_foreign_jobs, have_objectives, records_in
from trieye.sweeps.launcher import LauncherBody, SweepExecution
from trieye.sweeps.objectives import ObjectiveNames, Objectives
from trieye.sweeps.record import CONFIG, OTHER_SWEEP, SWEEP, SweepRecord, lock_in
from trieye.sweeps.recorder import new_record
from trieye.sweeps.report import failure_message, failure_table, final_table, plan_table
from trieye.sweeps.search import JobQueue, OptunaSearch, RandomSearch, Search, SearchQueue, print_remarks
from trieye.sweeps.space import SearchSpace, check_search
from trieye.sweeps.spec import grid_of
from trieye.sweeps.status import status_of, sum_up
from trieye.sweeps.tracking import show_in_mlflow

_MOST_CHANGES = 5


class SweepError(TrieyeError):
    """Raised at the end of a sweep if jobs failed."""


class SweeperBody:
    """Implements `hydra/sweeper=trieye`.

    Args:
        **options: Fields of `SweeperConfig`.

    Raises:
        ConfigurationError: An option is invalid.
    """

    def __init__(self, **options: Any) -> None:
        self.options = plugin_options("hydra.sweeper", SweeperConfig, options)
        self._objectives = Objectives(self.options)
        self._is_elsewhere = False  # whether the directory was moved or copied since the last start

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Receive the task and config from Hydra.

        Raises:
            ConfigurationError: An interpolation in the options of the launcher does not resolve.
        """
        self._config, self._context = config, hydra_context
        for word in _words(config.hydra.overrides.hydra):
            group, _, name = word.lstrip("+").partition("=")
            if group.startswith(("hydra/sweeper/", "hydra/launcher/")):
                raise ConfigurationError(f"{word} belongs to another plugin; set {group.replace('/', '.')}={name}")
        try:
            self._launcher: Launcher = Plugins.instance().instantiate_launcher(
                hydra_context=hydra_context, task_function=RedactingTask.of(task_function), config=config
            )
        except OmegaConfBaseException as error:
            raise ConfigurationError(f"hydra.launcher: {' '.join(str(error).split())}") from error
        self._directory = Path(str(config.hydra.sweep.dir)).resolve()
        body = getattr(self._launcher, "body", None)
        self._ours = body if isinstance(body, LauncherBody) else None
        self._lock = self._ours.lock if self._ours is not None else lock_in(self._directory)

    def sweep(self, arguments: Sequence[str]) -> list[Done]:
        """Run the sweep; return the outcomes of its jobs in order of index.

        Raises:
            ConfigurationError: The sweep cannot run with these options.
            RunLockedError: Another process runs the sweep.
            SweepError: A job failed.
        """
        words = [*words_of(self.options.params or {}), *arguments]
        if registration.current is not None:  # arguments are quoted already
            words = [quoted(word, registration.current.config_type) for word in words]
        if self.options.seeds and "seed" not in self._config:
            raise ConfigurationError(
                f"hydra.sweeper.seeds={self.options.seeds} varies the key seed, which the config does not have; add "
                "it, or vary a new key, as in +seed=0,1,2"
            )
        loader, record = self._context.config_loader, new_record(self._config)
        if self.options.kind == "grid":
            for name in ("num_trials", "sampler"):
                if (value := getattr(self.options, name)) != SweeperConfig.model_fields[name].default:
                    say(f"sweep: hydra.sweeper.{name}={value} has no effect without hydra.sweeper.kind=random, optuna")
            sweep = partial(self._of_grid, words, grid_of(words, self.options, loader), record)
        else:
            record.search = {"kind": self.options.kind, "space": values_of(map(redacted_override, words))}
            sweep = partial(self._of_search, self._space(words), record)
        with contextlib.nullcontext() if self.options.dry_run else self._locked():
            before = SweepRecord.read(self._directory)
            if before is None:
                check_foreign_jobs(self._directory)
            else:
                stored_record, before = before, before.at(self._directory)
                self._is_elsewhere = before is not stored_record
                record.follow(before)
                record.check_program(before, self._directory)
            self._set_mode(record, before)
            outcomes = sweep(before)
            if self.options.dry_run:
                return []
            if self._ours is None or not (self._ours.options.is_array and self._ours.options.detach):
                self._sum_up(record)
        failures = [done for done in outcomes if done.error is not None]
        if failures:
            failure_table(failures, self._directory)
            is_fail_fast = self._ours is not None and self._ours.options.fail_fast
            raise SweepError(failure_message(failures, len(outcomes), self._directory, is_fail_fast=is_fail_fast))
        return outcomes

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the sweep; a refused new sweep leaves no directory behind."""
        with self._lock:
            try:
                yield
            except ConfigurationError:
                self._lock.remove_directory()
                raise

    def _set_mode(self, record: SweepRecord, before: SweepRecord | None) -> None:
        """Set the mode of the objectives: the given one, else the mode of an earlier start.

        Raises:
            ConfigurationError: An Optuna search would follow another mode than its earlier trials.
        """
        has_started = before is not None and (self._directory / CONFIG).exists()  # else it was only planned
        earlier_mode = (before.modes or before.mode) if before is not None and has_started else None
        mode = self.options.mode or earlier_mode or record.mode
        record.modes = list(mode) if isinstance(mode, list) else []
        record.mode = mode if isinstance(mode, str) else record.mode
        if earlier_mode is not None and mode != earlier_mode:
            change = f"hydra.sweeper.mode={typed(mode)}: it was {typed(earlier_mode)} in earlier starts of the sweep"
            if self.options.kind == "optuna" and have_objectives(self._directory):
                raise ConfigurationError(f"{self._directory}: {change}, by which its trials were chosen; {OTHER_SWEEP}")
            say(f"sweep: {change}")
        self._objectives = Objectives(self.options, mode)

    def _of_grid(self, words: Sequence[str], grid: Grid, record: SweepRecord, before: SweepRecord | None) -> list[Done]:
        if before is not None:
            check_search(before.search, {"kind": "grid"}, self._directory)
            grid = before.going_on(grid, words, self._directory, budget=self.options.budget)
            if before.grid is not None and before.size < grid.size:
                say(f"sweep: grows from {before.size} to {grid.size} indices; existing jobs keep theirs")
        selected_jobs = self._selected_jobs(grid.size)
        left_out_jobs = [index for index in selected_jobs if grid.is_left_out(index)]
        if left_out_jobs:
            say(f"sweep: hydra.launcher.only={ranges(left_out_jobs)}: excluded, or equal to earlier jobs; not run")
        if self.options.dry_run:
            plan_table(grid)
            return []
        record.set_grid(grid)
        record.varying = [bare(key) for key in grid.varying]
        samples = [Job(index, grid[index]) for index in grid.samples()]
        with self._execution(record, samples) as execution:
            recorded_indices = (one.index for one in records_in(self._directory) if one.index < grid.size)
            indices = recorded_indices if before is None else iter(grid)
            self._begin(record, (Job(index, grid[index]) for index in indices), execution if before is None else None)
            return self._run(grid, execution, (len(selected_jobs) or grid.num_jobs) - len(left_out_jobs))

    def _selected_jobs(self, size: int) -> list[int]:
        """Return the indices of `hydra.launcher.only`, empty if it is not set.

        Raises:
            ConfigurationError: The sweep has no such job.
        """
        selected_jobs = sorted(self._ours.options.selected_jobs or ()) if self._ours is not None else []
        if selected_jobs and selected_jobs[-1] >= size:
            raise ConfigurationError(
                f"hydra.launcher.only={ranges(selected_jobs)}: out of range; the sweep has the jobs 0 to {size - 1}"
            )
        return selected_jobs

    def _space(self, words: Sequence[str]) -> SearchSpace:
        if self._ours is None:
            raise ConfigurationError(
                "a search needs hydra/launcher=trieye; other launchers only run fixed lists of jobs"
            )
        if self._ours.options.is_array:
            raise ConfigurationError(
                f"hydra.sweeper.kind={self.options.kind}: a search chooses jobs by earlier results, and a Slurm array "
                "is submitted as a whole; start the search inside one Slurm job, with hydra.launcher.backend=local"
            )
        dimensions = dimensions_of(words, self._context.config_loader)
        if all(len(dimension.choices) == 1 for dimension in dimensions):
            raise ConfigurationError("the search space is empty; add KEY=interval(a,b), KEY=range(1,9) or KEY=a,b,c")
        for axis in dimensions:
            values = axis.choices or (str(axis.high),)
            if len(axis.choices) != 1 and any(HIDDEN in redacted_override(f"{axis.key}={value}") for value in values):
                raise ConfigurationError(
                    f"{axis.key}: a search cannot vary a secret: drawn values are recorded, and secrets are not"
                )
        return SearchSpace.of(dimensions, self.options.when)

    def _of_search(self, space: SearchSpace, record: SweepRecord, before: SweepRecord | None) -> list[Done]:
        search: Search = RandomSearch(space, self.options.seed)
        if self.options.kind == "optuna":
            search = OptunaSearch(space, self.options, *(record.modes or [record.mode]))
        num, options = self.options.num_trials, self.options
        sampler = options.sampler if options.kind == "optuna" else None
        record.search |= {"sampler": sampler, "seed": options.seed, "when": space.conditions.sentences()}
        if before is not None:
            loader = self._context.config_loader
            check_search(before.search, record.search, self._directory, budget=options.budget, config_loader=loader)
        if self.options.dry_run:
            for index in range(num if self.options.kind == "random" else 1):
                say(f"job {index}: {' '.join(search.ask(index))}")
            if self.options.kind == "optuna":
                say(f"{num} trials in all, including those of earlier starts; each is chosen when it starts")
            return []
        assert self._ours is not None  # noqa: S101 - see `_space`
        if before is not None and num < before.size:
            say(f"sweep: has {before.size} trials already; hydra.sweeper.num_trials={num} adds none")
            num = before.size
        self._selected_jobs(num)
        record.size, record.varying = num, [bare(axis.key) for axis in space.dimensions if len(axis.choices) != 1]
        records = self._begun(num)
        metric = self._pruning_metric()
        random_search = RandomSearch(space, 0)
        samples = [Job(index, random_search.ask(index)) for index in range(min(num, 2))]
        with self._ours.execution(record.varying, self._objectives).opened(samples) as execution:
            jobs = (Job(index, space.resumed(index, records[index].overrides)) for index in records)
            self._begin(record, jobs, execution if before is None else None)
            metric_key = record.mode if self.options.objective in ("return", "best") else "last"
            pruning = (metric, record.mode, metric_key)
            queue = SearchQueue(search, num, self._begun(num), self._directory, *pruning, len(record.modes))
            return execution.run(queue, num)

    def _pruning_metric(self) -> str | None:
        if self.options.pruner == "none":
            return None
        metric = OmegaConf.select(self._config, "loop.objective")
        if metric is None:
            raise ConfigurationError(
                f"hydra.sweeper.pruner={self.options.pruner}: pruning compares points of running jobs, and this "
                "program reports none, because its config has no loop.objective; trieye.Run reports points"
            )
        return str(metric)

    def _begun(self, num: int) -> dict[int, JobRecord]:
        """Return the records of jobs that have started, by index."""
        return {record.index: record for record in records_in(self._directory) if record.index < num}

    def _begin(self, record: SweepRecord, jobs: Iterable[Job], checker: SweepExecution | None) -> None:
        """Record the sweep, and let completed jobs run further with a larger budget.

        Args:
            record: The record of the sweep.
            jobs: The jobs that may have started before.
            checker: Compares them with their own records, if the record of the sweep was lost.

        Raises:
            ConfigurationError: The budget is smaller than in an earlier start, a run is a copy, or a job differs.
        """
        if checker is not None:
            jobs = [job for job in jobs if checker.record_before(job) is not None]
        indices = None if self._ours is None else self._ours.options.only
        selected_jobs: Iterable[Job] = (job for job in jobs if indices is None or job.index in indices)
        selected_jobs = list(selected_jobs) if self._is_elsewhere else selected_jobs  # a grid may have millions of jobs
        raised_records = with_raised_budget(self._directory, selected_jobs, self.options.budget, self._earlier_value)
        if self._is_elsewhere:
            self._check_copies(selected_jobs, {record.index for record in raised_records})
        if not self._is_unchanged:
            record.write(self._directory)
            self._report_changes()
            write_redacted(self._config, self._directory / CONFIG)
        run_further(self._directory, raised_records, self.options.budget)

    def _check_copies(self, jobs: Iterable[Job], raised: Collection[int]) -> None:
        """Raise `ConfigurationError` if a job would resume the copy of a run; `raised`: jobs with a larger budget."""
        for job in jobs:
            record = JobRecord.read(self._directory / str(job.index))
            if record is None or record.state == "pruned" or (record.state == "completed" and job.index not in raised):
                continue
            run_dir = (self._directory / str(job.index) / RUN).resolve()
            with contextlib.suppress(SerializationError):  # the job fails with its own message
                run = RunRecord.read(run_dir / RUN_RECORD)
                if run is not None and (original := run.copy_of(run_dir)) is not None:
                    raise ConfigurationError(
                        f"{self._directory}: the run of job {job.index} is a copy of {original}, and both would write "
                        "to the same MLflow run and mirror; resume it in the original sweep. The jobs without a run: "
                        f"{command_text('sweep', 'relaunch', self._directory, '--only', 'missing')}"
                    )

    @cached_property
    def _earlier_config(self) -> Any:
        """The config of the last start; None if there was none."""
        path = self._directory / CONFIG
        return OmegaConf.load(path) if path.exists() else None

    def _earlier_value(self, key: str) -> str | None:
        """Return the value of a key in the config of the last start; None if it is missing."""
        try:
            value = None if self._earlier_config is None else OmegaConf.select(self._earlier_config, key)
        except OmegaConfBaseException:  # an interpolation that only a job resolves
            return None
        return None if value is None else str(value)

    def _report_changes(self) -> None:
        """Report the keys of the config, outside of Hydra and of the sweep's own words, that changed since a start."""
        if self._earlier_config is None:
            return
        before, now = (_config_values(config) for config in (self._earlier_config, self._config))
        own_keys = {*values_of(_words(self._config.hydra.overrides.task)), *self.options.budget}
        keys = [key for key in sorted(before.keys() | now.keys()) if str(before.get(key)) != str(now.get(key))]
        changes = [f"{key}: {before.get(key)} -> {now.get(key)}" for key in keys if key not in own_keys | {"run_name"}]
        if changes:
            omitted_text = f" and {len(changes) - _MOST_CHANGES} more" if len(changes) > _MOST_CHANGES else ""
            say(
                f"sweep: the config changed since its last start ({', '.join(changes[:_MOST_CHANGES])}{omitted_text}); "
                "completed jobs keep their results"
            )

    @property
    def _is_unchanged(self) -> bool:
        """Whether the sweep's files must not change, because other processes run other parts of it."""
        return self._ours is not None and self._ours.is_part and (self._directory / SWEEP).exists()

    def _sum_up(self, record: SweepRecord) -> None:
        """Record and print the results of the sweep, including earlier starts."""
        jobs = status_of(self._directory)
        sum_up(jobs, record)
        if not self._is_unchanged:
            record.write(self._directory)
        show_in_mlflow(self._directory, record, jobs)
        final_table(jobs, record, self._directory)
        if record.grid is None:
            print_remarks(jobs)

    def _execution(
        self, record: SweepRecord, samples: Sequence[Job]
    ) -> contextlib.AbstractContextManager[SweepExecution | None]:
        return (
            contextlib.nullcontext()
            if self._ours is None
            else self._ours.execution(record.varying, self._objectives).opened(samples)
        )

    def _run(self, grid: Grid, execution: SweepExecution | None, num_jobs: int) -> list[Done]:
        num_objectives = len(self._objectives.modes)
        if execution is not None:
            queue = JobQueue((Job(index, grid[index]) for index in grid), self._directory, num_objectives)
            return execution.run(queue, num_jobs)
        outcomes: list[Done] = []
        names = ObjectiveNames(self._directory, num_objectives)
        completed_indices = {record.index for record in records_in(self._directory) if record.state == "completed"}
        indices = (index for index in grid if index not in completed_indices)
        for _, run in groupby(enumerate(indices), lambda pair: pair[1] - pair[0]):  # others number jobs consecutively
            batch = [Job(index, grid[index]) for _, index in run]
            job_returns = self._launcher.launch([job.overrides for job in batch], initial_job_idx=batch[0].index)
            outcomes += map(names.applied, map(self._recorded, batch, job_returns))
        return outcomes

    def _recorded(self, job: Job, returned: JobReturn) -> Done:
        """Record the outcome of a job of another launcher."""
        record = JobRecord(index=job.index, overrides=[redacted_override(word) for word in job.overrides])
        directory = self._directory / str(job.index)
        try:
            done = Done(job.index, returned.return_value, returned=returned)
        except Exception as error:  # noqa: BLE001 - the error of the job
            done = Done(job.index, error=error, returned=returned)
        done = self._objectives.applied(done, (directory / RUN).resolve() if (directory / RUN).exists() else None)
        if done.error is not None:
            record.fail(f"{type(done.error).__name__}: {done.error}")
        else:
            record.state, record.ended = "completed", time.time()
            record.rate(done)
        record.write(directory)
        return done


def _words(overrides: Any) -> list[str]:
    """Return overrides as typed, without resolving interpolations in them."""
    words: Any = OmegaConf.to_container(overrides, resolve=False)
    return [str(word) for word in words]


def _config_values(config: Any) -> dict[str, Any]:
    """Return the values of a config by dotted key, unresolved, without secrets and the node `hydra`."""
    values: Any = redacted(OmegaConf.to_container(config, resolve=False, enum_to_str=True))
    return dict(leaves({key: value for key, value in values.items() if key != "hydra"}))
