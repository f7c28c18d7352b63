"""Launch: how Hydra started this process (overrides, sweep, directories), for the name and provenance of a run."""

import hashlib
import json
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any

from trieye.config.persistence import default_run_name

RECORDS = ".hydra"
"""Directory of Hydra's records of a job."""

SWEEPS = "multirun"
"""Parent directory of new sweeps."""

_SWEEP = "sweep.json"
_STAMP = re.compile(r"\d{8}_\d{6}(_\d+)?")
_MAX_SWEEP_NAME, _DIGEST_CHARS = 100, 6


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
        run_names: The names that `new_run_name` has returned.
    """

    overrides: tuple[str, ...]
    is_multirun: bool
    sweep_dir: Path | None
    job_num: int | None
    output_dir: Path
    working_dir: Path
    choices: Mapping[str, Any]
    config_dir: Path | None
    run_names: list[str] = field(default_factory=list, compare=False, repr=False)

    def new_run_name(self) -> str | None:
        """Return the name of the next run of this job, equal in each attempt of the job; None outside of a sweep."""
        if self.sweep_dir is None:
            return None
        name = f"{runs_of_sweep(self.sweep_dir, self.working_dir)}_{self.job_num}"
        self.run_names.append(f"{name}_{len(self.run_names) + 1}" if self.run_names else name)
        return self.run_names[-1]


def new_run_name() -> str:
    """Return the name of a run without `run_name`: in a sweep after the job, which resumes it, else after the time.

    The second config that a job creates, or this process within a second, has the suffix `_2`.
    """
    launch = launch_info()
    return (None if launch is None else launch.new_run_name()) or unused_run_name()


_numbers: dict[str, Iterator[int]] = {}
"""The numbers of the configs that this process named after the same second; `next` of `count` is thread-safe."""


def unused_run_name() -> str:
    """Return `run_<date>_<time>`, with the suffix `_2`, `_3`, ... if this process has already used that name."""
    name = default_run_name()
    number = next(_numbers.setdefault(name, count(1)))
    return name if number == 1 else f"{name}_{number}"


def earlier_run_name(launch: Launch) -> str | None:
    """Return the name of the run that an earlier attempt of this job started; None if there is none.

    The job's directory links to the run. In a copied sweep, links to runs of the original sweep are ignored.
    """
    if launch.sweep_dir is None:
        return None
    link = launch.sweep_dir / str(launch.job_num) / "run"
    return link.resolve().name if link.is_symlink() and not belongs_to_other_sweep(launch, link.resolve()) else None


def belongs_to_other_sweep(launch: Launch, run_dir: Path) -> bool:
    """Return True if a run belongs to another job, or to this job of another sweep, whose link leads to a run of it."""
    record = _read_json(run_dir / "run.json")
    if record.get("group") is None:
        return False
    if record.get("job") not in (None, launch.job_num):
        return True
    link = Path(record["group"]) / str(launch.job_num) / "run"
    is_linked = re.fullmatch(re.escape(str(run_dir.resolve())) + r"(_\d+)?", str(link.resolve()))
    return link.parents[1] != launch.sweep_dir and is_linked is not None


def _read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty if the file is missing or damaged."""
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}


def is_of_moved_sweep(launch: Launch | None, run_dir: Path) -> bool:
    """Return whether this sweep job created a run before its sweep was moved, or copied with its project."""
    if launch is None or run_dir.name not in (earlier_run_name(launch), *launch.run_names):
        return False
    return not belongs_to_other_sweep(launch, run_dir)


def name_of_sweep(directory: Path, working_dir: Path) -> str:
    """Return the common name of a sweep's runs, unique to it: its directory, relative to the working directory.

    For a directory that trieye named, it is the name of the directory alone, as in the first start of the sweep. For a
    directory elsewhere, or with too long a path or unusual characters, it contains a hash of the path.
    """
    directory = directory.resolve()
    path = directory.relative_to(working_dir) if directory.is_relative_to(working_dir) else directory
    is_long = path.is_absolute() or len(str(path)) > _MAX_SWEEP_NAME
    if is_long or (path.parent == Path(SWEEPS) and _STAMP.fullmatch(path.name)):
        text = path.name[:_MAX_SWEEP_NAME]
    else:
        text = "_".join(path.parts)
    name = re.sub(r"[^\w.=+-]+|\.\.+", "_", text, flags=re.ASCII).strip("_.-=+ ")
    digest = hashlib.sha256(os.fsencode(directory if is_long else path)).hexdigest()[:_DIGEST_CHARS]
    return f"{name}-{digest}".lstrip("-") if is_long or name != text else name


def runs_of_sweep(directory: Path, working_dir: Path) -> str:
    """Return the common name of a sweep's runs; of a new sweep, one that no other has: `a/b` differs from `a_b`."""
    record, name = _read_json(directory / _SWEEP), name_of_sweep(directory, working_dir)
    if record or _STAMP.fullmatch(directory.name):
        return record.get("runs") or name
    renamed_sweeps = directory.resolve().parent.glob(f"*/{_SWEEP}")
    records = map(_read_json, chain(renamed_sweeps, _records_named(name, working_dir)))
    taken_names = {record.get("runs") for record in records}
    return next(free for free in chain([name], (f"{name}-{number}" for number in count(2))) if free not in taken_names)


def _records_named(name: str, parent: Path) -> Iterator[Path]:
    """Yield the records of possible sweeps below a directory whose paths, joined by `_`, are a name."""
    yield parent / name / _SWEEP
    for position, letter in enumerate(name):
        if letter == "_" and position and (parent / name[:position]).is_dir():
            yield from _records_named(name[position + 1 :], parent / name[:position])


_started_runs: list[str] = []


def note_run(name: str) -> None:
    """Record that this process has started a run; errors from then on are not errors of the command line."""
    _started_runs.append(name)


def num_started_runs() -> int:
    """Return the number of runs that this process has started."""
    return len(_started_runs)


def launch_info() -> Launch | None:
    """Return how the running task was started; None outside of Hydra tasks. Does not import Hydra."""
    hydra = _hydra()
    if hydra is None:
        return None
    if _last is not None and _last[0] is hydra and str(_last[1].output_dir) == hydra.runtime.get("output_dir"):
        return _last[1]
    return _read(hydra)


def program_config(own_keys: Collection[str]) -> dict[str, Any]:
    """Return the composed config of a program that creates its `TrieyeConfig` in code, with interpolations as written.

    Args:
        own_keys: Keys of `TrieyeConfig`; if the config has all of them, or outside Hydra tasks, the result is empty.
    """
    hydra = _hydra()
    if hydra is None:
        return {}
    from omegaconf import OmegaConf  # with Hydra

    composed = OmegaConf.select(hydra, "..")  # HydraConfig holds the node in the composed config
    if composed is None or all(key in composed for key in own_keys):
        return {}
    parts = OmegaConf.masked_copy(composed, [key for key in composed if key != "hydra"])
    values: dict[str, Any] = json.loads(json.dumps(OmegaConf.to_container(parts, enum_to_str=True), default=str))
    return values


def _hydra() -> Any:
    module = sys.modules.get("hydra.core.hydra_config")
    return module.HydraConfig.get() if module is not None and module.HydraConfig.initialized() else None


def publish_records(output_dir: Path, run_dir: Path, log_dir: Path) -> None:
    """Move Hydra's records from the log directory to `.hydra` of the run, once the run has accepted the attempt."""
    staged_records = log_dir / RECORDS
    if output_dir.resolve() != run_dir.resolve() or not staged_records.is_dir():
        return
    (run_dir / RECORDS).mkdir(exist_ok=True)
    for path in staged_records.iterdir():
        path.replace(run_dir / RECORDS / path.name)
    staged_records.rmdir()


_last: tuple[Any, Launch] | None = None
"""The node `hydra` that was read last, and its launch."""


def plain(node: Any, key: str) -> Any:
    """Return the value at a key of a node, resolved and as plain Python values."""
    from omegaconf import OmegaConf  # with Hydra

    value = OmegaConf.select(node, key)
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _read(hydra: object) -> Launch | None:
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
