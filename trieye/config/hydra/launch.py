"""Launch: how this process was started by Hydra, for what a run writes down about itself."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORDS = ".hydra"
"""Hydra's own records of a job."""


@dataclass(frozen=True)
class Launch:
    """How the running task was started.

    Attributes:
        overrides: The overrides of this job, as typed, without those of Hydra itself.
        is_multirun: Whether the task is one job of a sweep.
        sweep_dir: Absolute directory of the sweep, which names its group; None for a single run.
        job_num: Number of the job in its sweep, from 0; None for a single run.
        output_dir: Absolute directory with Hydra's own records of the job.
        working_dir: Absolute directory in which the command was typed.
        choices: The chosen option of each config group, of Hydra's own ones, too.
        config_dir: The config directory of the program; None if that is in a package.
    """

    overrides: tuple[str, ...]
    is_multirun: bool
    sweep_dir: Path | None
    job_num: int | None
    output_dir: Path
    working_dir: Path
    choices: Mapping[str, Any]
    config_dir: Path | None


def earlier_run_name(launch: Launch) -> str | None:
    """Return the name of the run that an earlier start of this job began; None if it began none.

    The link in the directory of the job leads to it. In a copied sweep that may be the run of the original.
    """
    if launch.sweep_dir is None:
        return None
    link = launch.sweep_dir / str(launch.job_num) / "run"
    return link.resolve().name if link.is_symlink() and not belongs_to_other_sweep(launch, link.resolve()) else None


def belongs_to_other_sweep(launch: Launch, run_dir: Path) -> bool:
    """Return whether a run is that of a job of another sweep: one whose own link leads to the run."""
    try:
        group = json.loads((run_dir / "run.json").read_bytes())["group"]
        link = Path(group) / str(launch.job_num) / "run"
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return link.parents[1] != launch.sweep_dir and link.resolve() == run_dir.resolve()


_runs_begun: list[str] = []


def note_run(name: str) -> None:
    """Note that this process has begun a run: from then on an error is no mistake of the command line."""
    _runs_begun.append(name)


def num_runs_begun() -> int:
    """Return the number of runs that this process has begun."""
    return len(_runs_begun)


def launch_info() -> Launch | None:
    """Return how the running task was started, or None outside of a task that Hydra runs; loads no Hydra."""
    module = sys.modules.get("hydra.core.hydra_config")
    if module is None or not module.HydraConfig.initialized():
        return None
    return _of(module.HydraConfig.get())


def publish_records(run_dir: Path, log_dir: Path) -> None:
    """Move the records of Hydra to `.hydra` of a run; they are in its log directory while it may refuse the attempt."""
    launch, staged = launch_info(), log_dir / RECORDS
    if launch is None or launch.is_multirun or launch.output_dir.resolve() != run_dir.resolve() or not staged.is_dir():
        return
    (run_dir / RECORDS).mkdir(exist_ok=True)
    for path in staged.iterdir():
        path.replace(run_dir / RECORDS / path.name)
    staged.rmdir()


def _of(hydra: object) -> Launch | None:
    from trieye.config.hydra.typed import plain

    job, mode = plain(hydra, "job"), plain(hydra, "mode")
    runtime, overrides = plain(hydra, "runtime"), plain(hydra, "overrides.task")
    if runtime.get("output_dir") in (None, "???"):
        return None
    working_dir = Path(runtime["cwd"])
    sources = [held for held in runtime["config_sources"] if held["schema"] == "file"]
    is_multirun = getattr(mode, "name", mode) == "MULTIRUN"
    return Launch(
        overrides=tuple(overrides),
        is_multirun=is_multirun,
        sweep_dir=(working_dir / plain(hydra, "sweep.dir")) if is_multirun else None,
        job_num=int(job["num"]) if is_multirun else None,
        output_dir=Path(runtime["output_dir"]),
        working_dir=working_dir,
        choices=dict(runtime["choices"]),
        config_dir=next((Path(held["path"]) for held in sources if held["provider"] == "main"), None),
    )
