"""The body of the sweeper: it knows the jobs of a grid by their numbers, and asks a search for the next one."""

import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from trieye.config.hydra.axes import dimensions_of
from trieye.config.hydra.typed import plugin_options
from trieye.config.sweeper import SweeperConfig
from trieye.exceptions import ConfigurationError, TrieyeError
from trieye.process.progress import say
from trieye.sweeps.grid import Grid, bare
from trieye.sweeps.jobs import Done, Job, JobRecord
from trieye.sweeps.launcher import LauncherBody, Listed, new_record
from trieye.sweeps.record import SweepRecord
from trieye.sweeps.report import final_table, plan_table
from trieye.sweeps.search import OptunaSearch, RandomSearch, Search, Searching
from trieye.sweeps.spec import grid_of
from trieye.sweeps.tracking import show_in_mlflow

_NAMED = 10


class SweepError(TrieyeError):
    """Raised at the end of a sweep some of whose jobs failed."""


class SweeperBody:
    """What `hydra/sweeper=trieye` does.

    Args:
        **options: As `SweeperConfig` has them.

    Raises:
        ConfigurationError: An option is not allowed.
    """

    def __init__(self, **options: Any) -> None:
        self.options = plugin_options("hydra.sweeper", SweeperConfig, options)

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Hear from Hydra what is to be run."""
        self._config, self._context = config, hydra_context
        self._launcher: Launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: Sequence[str]) -> list[Done]:
        """Run the sweep; return what became of each job, in the order of their numbers.

        Raises:
            ConfigurationError: The sweep cannot be run like this.
            SweepError: Some of the jobs failed.
        """
        directory = Path(str(self._config.hydra.sweep.dir)).resolve()
        words = [*(f"{key}={value}" for key, value in (self.options.params or {}).items()), *arguments]
        fresh, before = new_record(self._config), SweepRecord.read(directory)
        fresh.mode = self.options.mode or fresh.mode
        ended = (
            self._of_grid(words, fresh, before)
            if self.options.kind == "grid"
            else self._of_search(words, fresh, before)
        )
        if self.options.dry_run:
            return []
        self._sum_up(directory, fresh, ended)
        failed = [done for done in ended if done.error is not None]
        if failed:
            raise SweepError(_about_failed(failed, len(ended), directory))
        return ended

    def _of_grid(self, words: Sequence[str], record: SweepRecord, before: SweepRecord | None) -> list[Done]:
        directory = Path(str(self._config.hydra.sweep.dir)).resolve()
        grid = grid_of(words, self.options, self._context.config_loader)
        if before is not None:
            grid = before.going_on(grid, words, directory)
            record.follow(before)
        if self.options.dry_run:
            plan_table(grid)
            return []
        record.set_grid(grid)
        record.varying = [bare(key) for key in grid.varying]
        self._begin(record, directory)
        return self._run(grid)

    def _of_search(self, words: Sequence[str], record: SweepRecord, before: SweepRecord | None) -> list[Done]:
        directory = Path(str(self._config.hydra.sweep.dir)).resolve()
        dimensions = dimensions_of(words, self._context.config_loader)
        if all(len(dimension.choices) == 1 for dimension in dimensions):
            raise ConfigurationError(
                "nothing to search for: type KEY=interval(a,b), KEY=range(1,9) or KEY=a,b,c for what may vary"
            )
        search: Search = RandomSearch(dimensions, self.options.seed)
        if self.options.kind == "optuna":
            search = OptunaSearch(dimensions, self.options, record.mode)
        num = self.options.num_trials
        if self.options.dry_run:
            for index in range(num if self.options.kind == "random" else 1):
                say(f"job {index}: {' '.join(search.ask(index))}")
            return []
        launcher = getattr(self._launcher, "body", None)
        if not isinstance(launcher, LauncherBody):
            raise ConfigurationError(
                "a search needs hydra/launcher=trieye_ray; other launchers run whole lists of jobs"
            )
        record.size, record.varying = num, [bare(held.key) for held in dimensions if len(held.choices) != 1]
        if before is not None:
            record.follow(before)
        self._begin(record, directory)
        read = (JobRecord.read(directory / str(index)) for index in range(num))
        begun = {held.index: held.overrides for held in read if held is not None}
        objective = OmegaConf.select(self._config, "loop.objective") if self.options.pruner != "none" else None
        return launcher.launching(record.varying).run(Searching(search, num, begun, directory, objective), num)

    def _begin(self, record: SweepRecord, directory: Path) -> None:
        record.write(directory)
        OmegaConf.save(self._config, directory / "multirun.yaml")

    def _sum_up(self, directory: Path, record: SweepRecord, ended: Sequence[Done]) -> None:
        """Write down and show what the sweep has found."""
        numbers = {done.index: done.number for done in ended if done.number is not None and math.isfinite(done.number)}
        record.summary = {
            "completed": sum(done.error is None and not done.is_pruned for done in ended),
            "failed": sum(done.error is not None for done in ended),
            "pruned": sum(done.is_pruned for done in ended),
        }
        if numbers:
            best = (max if record.mode == "max" else min)(numbers, key=lambda index: numbers[index])
            record.summary |= {"best": best, "objective": numbers[best]}
        record.write(directory)
        show_in_mlflow(directory, record)
        final_table(directory, record)

    def _run(self, grid: Grid) -> list[Done]:
        launcher = getattr(self._launcher, "body", None)
        if isinstance(launcher, LauncherBody):
            jobs = (Job(index, grid[index]) for index in grid)
            return launcher.launching([bare(key) for key in grid.varying]).run(
                Listed(jobs), sum(1 for _ in grid) if grid.without else grid.size
            )
        ended: list[Done] = []
        for _, run in groupby(enumerate(grid), lambda pair: pair[1] - pair[0]):  # such a launcher counts by itself
            numbers = [index for _, index in run]
            returned = self._launcher.launch([grid[index] for index in numbers], initial_job_idx=numbers[0])
            ended += map(_done, numbers, returned)
        return ended


def _done(index: int, returned: JobReturn) -> Done:
    try:
        return Done(index, returned.return_value, returned=returned)
    except Exception as error:  # noqa: BLE001 - what the job raised
        return Done(index, error=error, returned=returned)


def _about_failed(failed: Sequence[Done], num: int, directory: Path) -> str:
    first = failed[0].error
    return (
        f"{len(failed)} of {num} jobs failed; job {failed[0].index} said {type(first).__name__}: {first}. "
        f"All of them: trieye sweep status {directory}; once more: trieye sweep relaunch {directory}"
    )
