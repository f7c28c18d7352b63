"""Implementation of the sweeper: takes the jobs of a grid by index, and asks a search for each next job."""

import contextlib
import time
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from trieye.config.hydra.axes import Dimension, dimensions_of
from trieye.config.hydra.records import RedactingTask, write_redacted
from trieye.config.hydra.typed import plugin_options
from trieye.config.redaction import HIDDEN, redacted_text
from trieye.config.sweeper import SweeperConfig
from trieye.exceptions import ConfigurationError, TrieyeError
from trieye.process.progress import say
from trieye.sweeps.failures import failure_message, failure_table
from trieye.sweeps.grid import Grid, bare
from trieye.sweeps.jobs import Done, Job, JobRecord
from trieye.sweeps.launcher import JobList, LauncherBody, new_record
from trieye.sweeps.record import SWEEP, SweepRecord, lock_in
from trieye.sweeps.report import final_table, plan_table
from trieye.sweeps.search import OptunaSearch, RandomSearch, Search, SearchQueue, remarks
from trieye.sweeps.spec import grid_of
from trieye.sweeps.status import status_of, sum_up
from trieye.sweeps.tracking import show_in_mlflow

_NAMED = 10


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

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Receive the task and config from Hydra."""
        self._config, self._context = config, hydra_context
        self._launcher: Launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=RedactingTask.of(task_function), config=config
        )
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
        words = [*(f"{key}={value}" for key, value in (self.options.params or {}).items()), *arguments]
        loader, record = self._context.config_loader, new_record(self._config)
        record.mode = self.options.mode or record.mode
        if self.options.kind == "grid":
            sweep = partial(self._of_grid, words, grid_of(words, self.options, loader), record)
        else:
            sweep = partial(self._of_search, self._dimensions(words), record)
        with contextlib.nullcontext() if self.options.dry_run else self._lock:
            before = SweepRecord.read(self._directory)
            if before is not None:
                before = before.at(self._directory)
                record.follow(before)
            ended = sweep(before)
            if self.options.dry_run:
                return []
            if self._ours is not None and self._ours.options.is_array and self._ours.options.detach:
                return ended
            self._sum_up(record)
        failed = [done for done in ended if done.error is not None]
        if failed:
            failure_table(failed, self._directory)
            raise SweepError(failure_message(failed, len(ended), self._directory))
        return ended

    def _of_grid(self, words: Sequence[str], grid: Grid, record: SweepRecord, before: SweepRecord | None) -> list[Done]:
        if before is not None:
            grid = before.going_on(grid, words, self._directory)
        if self.options.dry_run:
            plan_table(grid)
            return []
        record.set_grid(grid)
        record.varying = [bare(key) for key in grid.varying]
        self._begin(record)
        return self._run(grid)

    def _dimensions(self, words: Sequence[str]) -> list[Dimension]:
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
            if len(axis.choices) > 1 and any(HIDDEN in redacted_text(f"{axis.key}={value}") for value in axis.choices):
                raise ConfigurationError(
                    f"{axis.key}: a search cannot vary a secret: drawn values are recorded, and secrets are not"
                )
        return dimensions

    def _of_search(
        self, dimensions: Sequence[Dimension], record: SweepRecord, before: SweepRecord | None
    ) -> list[Done]:
        del before  # its jobs have records
        search: Search = RandomSearch(dimensions, self.options.seed)
        if self.options.kind == "optuna":
            search = OptunaSearch(dimensions, self.options, record.mode)
        num = self.options.num_trials
        if self.options.dry_run:
            for index in range(num if self.options.kind == "random" else 1):
                say(f"job {index}: {' '.join(search.ask(index))}")
            return []
        assert self._ours is not None  # noqa: S101 - see `_dimensions`
        record.size, record.varying = num, [bare(axis.key) for axis in dimensions if len(axis.choices) != 1]
        self._begin(record)
        read = (JobRecord.read(self._directory / str(index)) for index in range(num))
        begun = {job_record.index: job_record for job_record in read if job_record is not None}
        objective = OmegaConf.select(self._config, "loop.objective") if self.options.pruner != "none" else None
        queue = SearchQueue(search, num, begun, self._directory, objective)
        return self._ours.execution(record.varying).run(queue, num)

    def _begin(self, record: SweepRecord) -> None:
        if not self._is_unchanged:
            record.write(self._directory)
            write_redacted(self._config, self._directory / "multirun.yaml")

    @property
    def _is_unchanged(self) -> bool:
        """Whether the sweep's files must not change, because other processes run other parts of it."""
        return self._ours is not None and self._ours.is_part and (self._directory / SWEEP).exists()

    def _sum_up(self, record: SweepRecord) -> None:
        """Record and print the results of the sweep, including earlier starts."""
        sum_up(self._directory, record)
        if not self._is_unchanged:
            record.write(self._directory)
        show_in_mlflow(self._directory, record)
        final_table(self._directory, record)
        for remark in remarks(status_of(self._directory)) if record.grid is None else []:
            say(remark)

    def _run(self, grid: Grid) -> list[Done]:
        if self._ours is not None:
            jobs = JobList(Job(index, grid[index]) for index in grid)
            return self._ours.execution([bare(key) for key in grid.varying]).run(
                jobs, sum(1 for _ in grid) if grid.without else grid.size
            )
        ended: list[Done] = []
        left = (index for index in grid if not self._is_completed(index))
        for _, run in groupby(enumerate(left), lambda pair: pair[1] - pair[0]):  # others number jobs consecutively
            batch = [Job(index, grid[index]) for _, index in run]
            returned = self._launcher.launch([job.overrides for job in batch], initial_job_idx=batch[0].index)
            ended += map(self._recorded, batch, returned)
        return ended

    def _is_completed(self, index: int) -> bool:
        record = JobRecord.read(self._directory / str(index))
        return record is not None and record.state == "completed"

    def _recorded(self, job: Job, returned: JobReturn) -> Done:
        """Record the outcome of a job of another launcher."""
        record = JobRecord(index=job.index, overrides=[redacted_text(word) for word in job.overrides])
        try:
            done = Done(job.index, returned.return_value, returned=returned)
        except Exception as error:  # noqa: BLE001 - the error of the job
            done = Done(job.index, error=error, returned=returned)
            record.fail(f"{type(error).__name__}: {error}")
        else:
            record.state, record.ended = "completed", time.time()
            record.objective, record.objectives = done.number, done.numbers
        record.write(self._directory / str(job.index))
        return done
