"""The runs of an app, a sweep or a directory, each by its cheapest files: a thousand are read in less than a second.

Importing this loads neither pydantic nor NumPy, which take longer than that to load.
"""

import os
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from trieye.exceptions import ConfigurationError, JournalError
from trieye.files.run_files import JOURNAL, RUN_RECORD
from trieye.process.lock import is_alive
from trieye.stats.drops import has_diverged

CONFIGS = "configs.json"

State = Literal["RUNNING", "FINISHED", "FAILED", "KILLED", "LOST"]
"""`LOST` is what a run is that says it runs and has no process any more."""

RUN_COLORS: dict[str, str] = {
    "RUNNING": "green", "FINISHED": "cyan", "FAILED": "red", "KILLED": "yellow", "LOST": "yellow",
}  # fmt: skip

_SWEEP, _RUNS, _RUN = "sweep.json", "runs", "run"
_MULTIRUN = Path("multirun")
_DEEP = 3
"""Runs lie at <root>/<app>/runs/<run>."""

_ROOT_IN_CONFIG = re.compile(r"^\s+root_data_dir:\s*['\"]?([^'\"#\n]+?)['\"]?\s*(?:#.*)?$", re.MULTILINE)
_MAX_SHOWN = 10


class _Fork(msgspec.Struct):
    app_name: str
    run_name: str
    step: int | None = None


class _Record(msgspec.Struct):
    """What a list shows of a run.json; `RunRecord` has the rest."""

    run_id: str
    app_name: str
    run_name: str
    status: Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]
    started: float
    created: float
    ended: float | None = None
    attempt: int = 1
    group: str | None = None
    forked_from: _Fork | None = None
    summary: dict[str, dict[str, float | None]] = {}


class _Loop(msgspec.Struct):
    objective: str | None = None
    mode: Literal["max", "min"] = "max"


class _Config(msgspec.Struct):
    loop: _Loop = msgspec.field(default_factory=_Loop)


_read_record, _read_config = msgspec.json.Decoder(_Record).decode, msgspec.json.Decoder(_Config).decode


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A run at one moment; all times are Unix seconds.

    Attributes:
        run_dir: Its directory.
        app: Name of its app where it is now.
        name: Its name there, by which other commands find it.
        status: Its state.
        step: The highest step of any metric; None if nothing was logged.
        metric: What it is judged by; None if its config cannot be read.
        mode: Whether more or less of that is better.
        best: The best value of that; None if it was never logged.
        diverged: Whether its last values were NaN or infinite.
        attempt: How often it was started.
        created: When it was started for the first time.
        took_s: Seconds of its last attempt, so far.
        size_bytes: Bytes of its directory, those of files with several names once.
        sweep: Directory of the sweep that it belongs to.
        forked_from: The run and the step from which it began: `agents/first@1200`.
    """

    run_dir: Path
    app: str
    name: str
    status: State
    step: int | None
    metric: str | None
    mode: Literal["max", "min"]
    best: float | None
    diverged: bool
    attempt: int
    created: float
    took_s: float
    size_bytes: int
    sweep: str | None
    forked_from: str | None

    @classmethod
    def read(cls, run_dir: Path, *, metric: str | None = None, mode: Literal["max", "min"] | None = None) -> "FoundRun":
        """Look at a run.

        Args:
            run_dir: Its directory.
            metric: What to judge it by; None: its `loop.objective`.
            mode: Whether more of it is better; None: its `loop.mode`.

        Raises:
            ConfigurationError: Its run.json is missing or damaged.
        """
        try:
            record = _read_record((run_dir / RUN_RECORD).read_bytes())
        except FileNotFoundError:
            raise ConfigurationError(f"it has no {RUN_RECORD}") from None
        except OSError as error:
            raise ConfigurationError(f"its {RUN_RECORD} cannot be read: {error.strerror or error}") from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"its {RUN_RECORD} is no whole run record: {error}") from error
        alive = record.status == "RUNNING" and is_alive(run_dir)
        status: State = "LOST" if record.status == "RUNNING" and not alive else record.status
        # only a run that was closed has its metrics in its run.json
        summary = record.summary if record.summary and not alive else published_metrics(run_dir) or record.summary
        loop = loop_of(run_dir)
        judged, which = metric or loop.objective, mode or loop.mode
        until = record.ended or (time.time() if alive else _last_sign(run_dir, record.started))
        fork = record.forked_from
        return cls(
            run_dir=run_dir,
            app=run_dir.parents[1].name,
            name=run_dir.name,
            status=status,
            step=max((int(last) for seen in summary.values() if (last := seen.get("step")) is not None), default=None),
            metric=judged,
            mode=which,
            best=summary.get(judged or "", {}).get(which),
            diverged=has_diverged(summary, judged or ""),
            attempt=record.attempt,
            created=record.created,
            took_s=max(until - record.started, 0.0),
            size_bytes=_size_of(run_dir),
            sweep=record.group,
            forked_from=None if fork is None else f"{fork.app_name}/{fork.run_name}@{fork.step}",
        )


@dataclass(frozen=True, slots=True)
class Skipped:
    """A directory that lies where runs are, and why it is none."""

    directory: Path
    reason: str


def config_values(run_dir: Path) -> Mapping[str, Any]:
    """Return the values of a run's configs.json by their dotted names; nothing if it cannot be read."""
    try:
        held = msgspec.json.decode((run_dir / CONFIGS).read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return dict(_leaves(held, "")) if isinstance(held, dict) else {}


def own_roots() -> list[Path]:
    """Return the directories of apps that a user who stands in a project means: its own, and what its configs name."""
    here = Path.cwd()
    default = Path(".trieye_data")
    above = next((place / default for place in (here, *here.parents) if (place / default).is_dir()), None)
    project = here if above is None else above.parent
    texts = (_text_of(path) for path in sorted((project / "conf").rglob("*.yaml")))
    named = (os.path.expandvars(found) for text in texts for found in _ROOT_IN_CONFIG.findall(text))
    roots = [*([] if above is None else [above]), *(project / Path(root).expanduser() for root in named)]
    return list(dict.fromkeys(root.resolve() for root in roots if root.is_dir()))


def find_runs(places: Sequence[str], roots: Sequence[Path]) -> tuple[list[Path], list[Skipped]]:
    """Return the directories of runs, and what lies beside them and is none.

    Args:
        places: Names of apps below one of `roots`, and directories of sweeps, apps, runs or projects; none: all apps.
        roots: Directories of all apps.

    Raises:
        ConfigurationError: There is no such app, nor such a directory.
    """
    runs: dict[Path, None] = {}
    skipped: dict[Path, Skipped] = {}
    for directory in _meant(places, roots):
        for found in _look(directory):
            if isinstance(found, Skipped):
                skipped[found.directory] = found
            else:
                runs[found.resolve()] = None
    return list(runs), list(skipped.values())


def find_place(given: str, roots: Sequence[Path]) -> Path:
    """Return the directory of a run, an app, a sweep or a project, as `find_runs` takes it.

    A name is that of an app, else that of a run, else that of a sweep or a directory here.

    Args:
        given: Its name, `app/run` for a run, or the directory.
        roots: Directories of all apps.

    Raises:
        ConfigurationError: There is no such thing, or there are several runs of that name.
    """
    path = Path(given)
    if (path / RUN_RECORD).exists():
        return path.resolve()
    below, here = [root / given for root in roots], [path, _MULTIRUN / given]
    first, then = (below, here) if path.name == given else (here, below)
    found = next(filter(Path.is_dir, first), None)
    if found is not None:
        return found.resolve()
    runs = {run: f"{run.parents[1].name}/{run.name}" for run in find_runs([], roots)[0]}
    named = [run for run, name in runs.items() if given in {name, run.name}]
    if len(named) > 1:
        names = [runs[run] for run in named]
        shown = names if len(set(names)) == len(names) else map(str, named)
        raise ConfigurationError(f"{given}: there are several runs of that name; say which: {', '.join(shown)}")
    found = next(iter(named), None) or next(filter(Path.is_dir, then), None)
    if found is None:
        raise ConfigurationError(f"{given}: {_unknown(given, roots, runs.values())}")
    return found.resolve()


def is_run_leftover(directory: Path) -> bool:
    """Return True for a directory among those of runs that has no run.json, as a program interrupted at once leaves."""
    if directory.name[:1] in {"", "."} or not directory.is_dir() or (directory / RUN_RECORD).exists():
        return False
    runs = directory.absolute().parent
    return runs.name == _RUNS or any((path / RUN_RECORD).exists() for path in _directories(runs))


def is_sweep(directory: Path) -> bool:
    """Tell whether a directory is that of a sweep, of Hydra's launchers, too."""
    return (directory / _SWEEP).exists() or any((job / _RUN).is_symlink() for job in _directories(directory))


def duration(seconds: float) -> str:
    """Return a time in words, in two units."""
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _meant(places: Sequence[str], roots: Sequence[Path]) -> Iterator[Path]:
    if not places:
        yield from roots
    for place in places:
        chosen = [Path(place), *(root / place for root in roots), _MULTIRUN / place]
        if Path(place).name == place:  # a name is that of an app before that of a directory here
            chosen = [*chosen[1:], chosen[0]]
        found = next((directory for directory in chosen if directory.is_dir()), None)
        if found is None:
            raise ConfigurationError(f"{place}: {_unknown(place, roots)}")
        yield found


def _unknown(place: str, roots: Sequence[Path], runs: Collection[str] | None = None) -> str:
    from trieye.config.base import did_you_mean

    apps = sorted({path.name for root in roots for path in _directories(root)})
    sweeps = sorted(path.name for path in _directories(_MULTIRUN))
    shown = ", ".join(apps[:_MAX_SHOWN]) + (f" and {len(apps) - _MAX_SHOWN} more" if apps[_MAX_SHOWN:] else "")
    where = ", ".join(map(str, roots)) or "no directory of apps here; name one with --root"
    names = [*apps, *sweeps, *(runs or ()), *(name.rpartition("/")[2] for name in runs or ())]
    return (
        f"there is no such {'run, ' if runs is not None else ''}app, sweep or directory{did_you_mean(place, names)} "
        f"(apps in {where}: {shown or 'none'})"
    )


def _look(directory: Path, deep: int = _DEEP) -> Iterator[Path | Skipped]:
    if (directory / RUN_RECORD).exists():
        yield directory
        return
    if deep == _DEEP and (directory / ".trieye_data").is_dir():
        directory = directory / ".trieye_data"
    below = _directories(directory)
    if is_sweep(directory):
        yield from _jobs(below)
        return
    runs = [path for path in below if (path / RUN_RECORD).exists()]
    if runs or directory.name == _RUNS:
        there = set(runs)
        yield from (path if path in there else Skipped(path, f"it has no {RUN_RECORD}") for path in below)
    elif deep > 1:
        for path in below:
            yield from _look(path, deep - 1)


def _jobs(jobs: Sequence[Path]) -> Iterator[Path | Skipped]:
    for job in sorted(jobs, key=lambda path: (len(path.name), path.name)):
        link = job / _RUN
        if (link / RUN_RECORD).exists():
            yield link
        elif link.is_symlink():
            yield Skipped(job, f"its run, {link.readlink()}, is gone")


def _directories(directory: Path) -> list[Path]:
    try:
        with os.scandir(directory) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.name[0] != "." and entry.is_dir())
    except OSError:
        return []


def published_metrics(run_dir: Path) -> dict[str, dict[str, float | None]]:
    """Return last value, extremes and step of each metric as the hub published them last, also for a killed run."""
    from trieye.hub.status import read_status

    with suppress(JournalError, OSError, ValueError):
        found: dict[str, dict[str, float | None]] = read_status(run_dir).get("metrics", {})
        return found
    return {}


def loop_of(run_dir: Path) -> _Loop:
    """Return objective and mode from the config of a run; the defaults if it cannot be read."""
    try:
        return _read_config((run_dir / CONFIGS).read_bytes()).loop
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Loop()


def _last_sign(run_dir: Path, started: float) -> float:
    seen = [started]
    for name in (JOURNAL, f"{JOURNAL}-wal"):
        with suppress(OSError):
            seen.append((run_dir / name).stat().st_mtime)
    return max(seen)


def _size_of(directory: Path) -> int:
    linked: dict[tuple[int, int], int] = {}
    total, waiting = 0, [str(directory)]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:  # a living run deletes what it does not keep
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                    continue
                about = entry.stat(follow_symlinks=False)
                if about.st_nlink > 1:
                    linked[about.st_dev, about.st_ino] = about.st_size
                else:
                    total += about.st_size
    return total + sum(linked.values())


def _leaves(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
