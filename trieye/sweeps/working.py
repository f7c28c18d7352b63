"""What a process does that runs jobs of a sweep."""

import os
import pickle
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cloudpickle
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.errors import HydraException
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from trieye.exceptions import TrieyeError
from trieye.process.output import printing_to
from trieye.sweeps.grid import shown
from trieye.sweeps.jobs import OUTPUT, Done, RunningJob

Composed = DictConfig
"""The config of a job, with the node `hydra`."""


@dataclass(frozen=True)
class Shared:
    """What the jobs of a sweep have in common.

    Attributes:
        context: What Hydra composes with.
        config: The config that Hydra composed for the sweep.
        task: What a job runs.
        singletons: The state of Hydra in the process that started the sweep.
        directory: Of the sweep, absolute.
        working_dir: Where the sweep was started, which is where jobs begin.
        varying: The keys that differ between jobs.
    """

    context: HydraContext
    config: DictConfig
    task: TaskFunction
    singletons: Any
    directory: Path
    working_dir: Path
    varying: tuple[str, ...] = ()

    def composed(self, index: int, overrides: Sequence[str]) -> DictConfig:
        """Return the config of a job."""
        config = self.context.config_loader.load_sweep_config(self.config, list(overrides))
        with open_dict(config):
            config.hydra.job.id = f"{config.hydra.job.name}_{index}"
            config.hydra.job.num = index
        return config

    def composed_or_error(self, index: int, overrides: Sequence[str]) -> DictConfig | Exception:
        """Return the config of a job, or why it has none."""
        try:
            return self.composed(index, overrides)
        except (HydraException, OmegaConfBaseException, TrieyeError) as error:
            return error

    @property
    def has_mirror(self) -> bool:
        """Whether runs are copied to where all machines find them."""
        return OmegaConf.select(self.config, "persistence.mirror", default=None) is not None


def work(
    shared: Shared,
    index: int,
    overrides: Sequence[str],
    config: Composed | None = None,
    *,
    is_own_process: bool = True,
) -> Done:
    """Run a job; return what became of it, which can be pickled.

    Args:
        shared: What all jobs have in common.
        index: The number of the job.
        overrides: Its overrides.
        config: Its config, if it is composed already; None composes it here.
        is_own_process: Whether the process has nothing else to do: what it prints goes into a file.
    """
    directory = shared.directory / str(index)
    job = RunningJob(directory, index, overrides)
    with job.running() as completed:
        if completed is not None:
            return Done(index, completed.objective)
        if not is_own_process:
            return _ended(_result(shared, index, overrides, config), job)
        setup_globals()
        # with the plugins that this process has, whose modules would run once more for each job: 12 ms; what else is in
        # the state came with this job, and is of no other
        instances = {**shared.singletons["instances"], Plugins: Plugins.instance()}
        Singleton.set_state({**shared.singletons, "instances": instances})
        shared.working_dir.mkdir(parents=True, exist_ok=True)  # on another machine there may be none
        os.chdir(shared.working_dir)
        with printing_to(directory / OUTPUT):
            return _portable(_ended(_result(shared, index, overrides, config), job))


def _ended(done: Done, job: RunningJob) -> Done:
    if done.error is not None:
        job.end("failed", error=done.error)
    else:
        job.end("completed", objective=done.number)
    return replace(done, record=job.record, run_dir=job.run_dir)


def _result(shared: Shared, index: int, overrides: Sequence[str], config: Composed | None) -> Done:
    returned: JobReturn | None = None
    try:
        returned = _run(shared, overrides, shared.composed(index, overrides) if config is None else config)
        return Done(index, value=returned.return_value, returned=returned)
    except SystemExit as left:
        if isinstance(left, KeyboardInterrupt):  # it was asked to stop
            raise
        if left.code in (None, 0):
            return Done(index)
        print(left.code, file=sys.stderr)  # noqa: T201 - as Python does
        return Done(index, error=RuntimeError(f"it left with {left.code!r}"))
    except Exception as error:  # noqa: BLE001 - what the job raised, or its config
        traceback.print_exc()
        return Done(index, error=error, returned=returned)


def _run(shared: Shared, overrides: Sequence[str], config: DictConfig) -> JobReturn:
    if (tags := OmegaConf.select(config, "tags")) is not None and shared.varying:
        with open_dict(config):
            tags.setdefault("mlflow.runName", " ".join(shown(overrides, shared.varying)))
    HydraConfig.instance().set_config(config)
    return run_job(
        hydra_context=shared.context,
        config=config,
        task_function=shared.task,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )


def _portable(done: Done) -> Done:
    """Return what another process can unpickle: an error that cannot be is told by its words."""
    try:
        pickle.loads(cloudpickle.dumps(done))  # noqa: S301 - its own
    except Exception as problem:  # noqa: BLE001 - whatever its class does there
        value = done.number if done.error is None else None
        error = None if done.error is None else RuntimeError(f"{type(done.error).__name__}: {done.error}")
        if error is None and value is None and done.value is not None:
            print(f"what the job returned cannot be pickled: {problem}", file=sys.stderr)  # noqa: T201 - its file
        return Done(done.index, value, error, record=done.record, run_dir=done.run_dir)
    return done
