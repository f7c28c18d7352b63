"""The body of the sweeper: it knows the jobs of a grid by their numbers, and asks a search for the next one."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from trieye.config.hydra.axes import axes_of
from trieye.config.redaction import redacted
from trieye.config.sweeper import SweeperConfig
from trieye.exceptions import TrieyeError
from trieye.sweeps.grid import Axis, Grid, bare, with_seeds, zipped
from trieye.sweeps.jobs import Done, Job
from trieye.sweeps.launcher import LauncherBody, Listed, new_record
from trieye.sweeps.record import SweepRecord
from trieye.sweeps.report import final_table, plan_table

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
        self.options = SweeperConfig.model_validate(options)

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
        given = [f"{key}={value}" for key, value in (self.options.params or {}).items()]
        grid = grid_of([*given, *arguments], self.options, self._context.config_loader)
        record = SweepRecord.read(directory)
        if record is not None and record.grid is not None:
            record.check_same(grid, directory)
        if self.options.dry_run:
            plan_table(grid)
            return []
        fresh = new_record(self._config)
        fresh.created = record.created if record is not None else fresh.created
        fresh.grid, fresh.size = redacted(grid.plain()), grid.size
        fresh.mode = self.options.mode or fresh.mode
        fresh.write(directory)
        OmegaConf.save(self._config, directory / "multirun.yaml")
        ended = self._run(grid)
        final_table(directory, fresh)
        failed = [done for done in ended if done.error is not None]
        if failed:
            raise SweepError(_about_failed(failed, len(ended), directory))
        return ended

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


def grid_of(overrides: Sequence[str], options: SweeperConfig, config_loader: Any = None) -> Grid:
    """Return the grid of a command line.

    Args:
        overrides: As typed.
        options: Seeds, what varies together, what is left out.
        config_loader: Hydra's, which knows the options of groups.

    Raises:
        ConfigurationError: Something is no override, or a key has no axis.
    """
    axes = tuple(Axis((key,), tuple((value,) for value in values)) for key, values in axes_of(overrides, config_loader))
    axes = zipped(axes, options.zip)
    if options.seeds is not None:
        axes = with_seeds(axes, options.seeds)
    without = tuple({key: str(value) for key, value in combination.items()} for combination in options.without)
    return Grid(axes, without)


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
