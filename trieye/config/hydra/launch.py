"""Launch: how Hydra started this process (overrides, sweep, directories), for the provenance of a run."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORDS = ".hydra"
"""Directory of Hydra's records of a job."""


@dataclass(frozen=True)
class Launch:
    """How the running task was started.

    Attributes:
        overrides: Overrides of this job as typed, without Hydra's own keys.
        is_multirun: Whether the task is a job of a sweep.
        sweep_dir: Absolute directory of the sweep, which identifies its group of runs; None for a single run.
        job_num: Index of the job in its sweep, from 0; None for a single run.
        output_dir: Absolute directory of Hydra's records of the job.
        working_dir: Absolute working directory of the command.
        choices: The selected option of each config group, including Hydra's groups.
        config_dir: The config directory of the program; None if it is in a package.
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
    """Return the name of the run that an earlier attempt of this job started; None if there is none.

    The job's directory links to the run. In a copied sweep, links to runs of the original sweep are ignored.
    """
    if launch.sweep_dir is None:
        return None
    link = launch.sweep_dir / str(launch.job_num) / "run"
    return link.resolve().name if link.is_symlink() and not belongs_to_other_sweep(launch, link.resolve()) else None


def belongs_to_other_sweep(launch: Launch, run_dir: Path) -> bool:
    """Return True if a run belongs to a job of another sweep, whose link leads to the run."""
    try:
        group = json.loads((run_dir / "run.json").read_bytes())["group"]
        link = Path(group) / str(launch.job_num) / "run"
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return link.parents[1] != launch.sweep_dir and link.resolve() == run_dir.resolve()


_started_runs: list[str] = []


def note_run(name: str) -> None:
    """Record that this process has started a run; errors from then on are not errors of the command line."""
    _started_runs.append(name)


def num_started_runs() -> int:
    """Return the number of runs that this process has started."""
    return len(_started_runs)


def launch_info() -> Launch | None:
    """Return how the running task was started; None outside of Hydra tasks. Does not import Hydra."""
    module = sys.modules.get("hydra.core.hydra_config")
    if module is None or not module.HydraConfig.initialized():
        return None
    hydra = module.HydraConfig.get()
    if _last is not None and _last[0] is hydra and str(_last[1].output_dir) == hydra.runtime.get("output_dir"):
        return _last[1]
    return _read(hydra)


def publish_records(output_dir: Path, run_dir: Path, log_dir: Path) -> None:
    """Move Hydra's records from the log directory to `.hydra` of the run, once the run has accepted the attempt."""
    staged = log_dir / RECORDS
    if output_dir.resolve() != run_dir.resolve() or not staged.is_dir():
        return
    (run_dir / RECORDS).mkdir(exist_ok=True)
    for path in staged.iterdir():
        path.replace(run_dir / RECORDS / path.name)
    staged.rmdir()


_last: tuple[Any, Launch] | None = None
"""The node `hydra` that was read last, and its launch."""


def _read(hydra: object) -> Launch | None:
    from trieye.config.hydra.typed import plain

    global _last

    job, mode = plain(hydra, "job"), plain(hydra, "mode")
    runtime, overrides = plain(hydra, "runtime"), plain(hydra, "overrides.task")
    if runtime.get("output_dir") in (None, "???"):
        return None
    working_dir = Path(runtime["cwd"])
    sources = [source for source in runtime["config_sources"] if source["schema"] == "file"]
    is_multirun = getattr(mode, "name", mode) == "MULTIRUN"
    launch = Launch(
        overrides=tuple(overrides),
        is_multirun=is_multirun,
        sweep_dir=(working_dir / plain(hydra, "sweep.dir")) if is_multirun else None,
        job_num=int(job["num"]) if is_multirun else None,
        output_dir=Path(runtime["output_dir"]),
        working_dir=working_dir,
        choices=dict(runtime["choices"]),
        config_dir=next((Path(source["path"]) for source in sources if source["provider"] == "main"), None),
    )
    _last = (hydra, launch)
    return launch
