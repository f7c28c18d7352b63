"""Find stored runs by name or path, and list the runs of an app, a sweep or a directory.

Importing this loads neither pydantic nor NumPy, which take longer to load than a thousand runs to read.
"""

import errno
import json
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from trieye.exceptions import ConfigurationError
from trieye.files.run_files import CONFIGS, RUN_RECORD
from trieye.process.lock import is_alive
from trieye.renames import KEYS, current_config
from trieye.runs.stored_run import Mode, StoredRun

RunReference = StoredRun | Path | str
"""A stored run: the object, its directory, or its name: `run` or `app/run`."""

SortKey = Literal["created", "objective", "step", "took", "size", "name", "status"]

DEFAULT_ROOT = ".trieye_data"
ROOT_VARIABLE = "TRIEYE_ROOT"
"""Environment variable: where the adapters of `trieye.integrations` store the runs of programs without a config."""

_SWEEP, _RUNS, _RUN, _MULTIRUN = "sweep.json", "runs", "run", Path("multirun")
_DEPTH = 3
"""Depth of run directories: <root>/<app>/runs/<run>."""

_ROOT_IN_CONFIG = re.compile(r"^\s+root_data_dir:\s*['\"]?([^'\"#\n]+?)['\"]?\s*(?:#.*)?$", re.MULTILINE)
_MAX_SHOWN = 10


class RunMissingError(ConfigurationError):
    """Raised if no run has a name."""


class RunStartingError(RunMissingError):
    """Raised for a run that a process is starting, and whose directory has no run.json yet."""


class Skipped(NamedTuple):
    """A directory among runs that is no run, and why.

    Attributes:
        directory: The directory.
        reason: Why it is no run.
        is_starting: Whether a process is starting a run in it.
    """

    directory: Path
    reason: str
    is_starting: bool = False


class Listing(NamedTuple):
    """The runs that were found, and the directories among them that are no runs."""

    runs: list[StoredRun]
    skipped: list[Skipped]


def get(run: RunReference, *, root: Path | None = None) -> StoredRun:
    """Return a stored run.

    Args:
        run: Its directory, or its name: `run` or `app/run`.
        root: Directory of all apps; None: the directories of the project around the working directory.

    Raises:
        ConfigurationError: No run or several have that name, or its run.json is damaged.

    Example:
        >>> import trieye.runs
        >>> trieye.runs.get("my_agent/first").status  # doctest: +SKIP
        'FINISHED'
    """
    return run if isinstance(run, StoredRun) else StoredRun.read(run_directory(run, root=root))


def find(
    *locations: str | Path, root: Path | None = None, metric: str | None = None, mode: Mode | None = None
) -> Listing:
    """Return the runs of apps, sweeps or directories.

    Args:
        *locations: Names of runs and apps, and directories of sweeps, apps, runs or projects; none: all apps.
        root: Directory of all apps; None: the directories of the project around the working directory.
        metric: The metric that rates the runs; None: the `loop.objective` of each.
        mode: Whether higher values are better; None: the `loop.mode` of each.

    Raises:
        ConfigurationError: There is no such app or directory.

    Example:
        >>> import trieye.runs
        >>> [run.name for run in trieye.runs.find("my_agent").runs if run.status == "LOST"]  # doctest: +SKIP
        ['first']
    """
    directories, skipped = find_directories([str(location) for location in locations], roots_of(root))
    runs = []
    for directory in directories:
        try:
            runs.append(StoredRun.read(directory, metric=metric, mode=mode))
        except ConfigurationError as error:
            skipped.append(Skipped(directory, str(error).removeprefix(f"{directory}: ")))
    return Listing(runs, skipped)


def select(
    runs: Iterable[StoredRun],
    *,
    status: Collection[str] | None = None,
    where: Mapping[str, str] | None = None,
    newer_than_s: float | None = None,
) -> list[StoredRun]:
    """Return the runs that fit all conditions.

    Args:
        runs: Runs.
        status: Their status is one of these.
        where: Values of their config as text, by dotted name.
        newer_than_s: They were created within so many seconds.

    Raises:
        ConfigurationError: No run has a key of `where`.
    """
    selected_runs = [run for run in runs if status is None or run.status in status]
    if newer_than_s is not None:
        selected_runs = [run for run in selected_runs if run.created >= time.time() - newer_than_s]
    if not where or not selected_runs:
        return selected_runs
    configs = [(run, _config_values(run.run_dir)) for run in selected_runs]
    keys = {key for _, config in configs for key in config}
    for key in where.keys() - keys:
        from trieye.config.base import did_you_mean

        problem = KEYS.get(key) or f"no run has such a key{did_you_mean(key, keys)}"
        raise ConfigurationError(f"{key}={where[key]}: {problem}")

    def fits(config: Mapping[str, Any]) -> bool:
        return all(key in config and _is_same(config[key], text) for key, text in where.items())

    return [run for run, config in configs if fits(config)]


def ordered(runs: Sequence[StoredRun], by: SortKey = "created", *, reverse: bool = False) -> list[StoredRun]:
    """Return the newest, best, longest or largest run first; runs without such a value come last either way."""
    if by in {"name", "status"}:
        return sorted(runs, key=lambda run: (run.status if by == "status" else "", run.app, run.name), reverse=reverse)

    def value(run: StoredRun) -> float | None:
        if by == "objective":
            if run.best is None or run.diverged:
                return None
            return run.best if run.mode == "max" else -run.best
        if by == "size":
            return run.size_bytes
        return {"created": run.created, "step": run.step, "took": run.took_s}[by]

    rated = [(rating, run) for run in runs if (rating := value(run)) is not None]
    best_first = [run for _, run in sorted(rated, key=lambda pair: pair[0], reverse=not reverse)]
    return [*best_first, *(run for run in runs if value(run) is None)]


def roots_of(root: Path | None) -> list[Path]:
    """Return the directories of all apps: the given one, or the project's, around the working directory.

    A project has `.trieye_data`, here or above, `TRIEYE_ROOT`, and each `root_data_dir` that its conf/ names.
    """
    if root is not None:
        return [root.resolve()]
    cwd = Path.cwd()
    data_root = next((node / DEFAULT_ROOT for node in (cwd, *cwd.parents) if has_file(node, DEFAULT_ROOT)), None)
    project = cwd if data_root is None else data_root.parent
    roots = [] if data_root is None else [data_root]
    if adopted := os.environ.get(ROOT_VARIABLE):
        roots.append(_expanded(adopted))
    texts = (_text_of(path) for path in sorted((project / "conf").rglob("*.yaml")))
    roots += [project / _expanded(path) for text in texts for path in _ROOT_IN_CONFIG.findall(text)]
    return list(dict.fromkeys(path.resolve() for path in roots if path.is_dir()))


def _expanded(text: str) -> Path:
    """Return a path with its variables and home directory; `~` of an unknown user remains."""
    path = Path(os.path.expandvars(text))
    with suppress(RuntimeError):
        return path.expanduser()
    return path


def run_directory(run: RunReference, *, root: Path | None = None, marks: Sequence[str] = (RUN_RECORD,)) -> Path:
    """Return the absolute directory of a run, with symbolic links resolved; see `run_entry` for the arguments."""
    return run.run_dir if isinstance(run, StoredRun) else run_entry(run, roots_of(root), marks=marks).resolve()


def run_entry(reference: str | Path, roots: Sequence[Path], *, marks: Sequence[str] = (RUN_RECORD,)) -> Path:
    """Return the directory of a run, or the symbolic link to it that the user named.

    Args:
        reference: Its directory, or its name below one of `roots`: `run` or `app/run`.
        roots: Directories of all apps.
        marks: Files that identify the directory of a run: a run has at least one.

    Raises:
        ConfigurationError: No run or several have that name; the message lists the runs below `roots`.
    """
    path, text = Path(reference), str(reference)
    if any(has_file(path, mark) for mark in marks):
        return path
    runs = _run_directories(roots, marks)
    named = _named(f"run {text!r}", text, runs)
    if named is not None:
        return named
    if (leftover := _leftover(path, roots)) is not None and (is_alive(leftover) or not path.is_dir()):
        kind = RunStartingError if is_alive(leftover) else RunMissingError
        raise kind(f"run {text!r}: {_without_record(leftover, text)}")
    if path.is_dir():
        raise ConfigurationError(f"run {text!r}: the directory is not a run; it has no {' and no '.join(marks)}")
    shown_roots = ", ".join(str(root.resolve()) for root in roots or [Path(DEFAULT_ROOT)])
    names = [_full_name(directory) for directory in runs]
    hint = _did_you_mean(text, [*names, *(directory.name for directory in runs)])
    raise RunMissingError(
        f"run {text!r}: no such directory, and no such run in {shown_roots}{hint} (runs: {_shortened(sorted(names))}); "
        "change to the directory of the project, or pass the run directory, or the directory of all apps as --root"
    )


def resolve(reference: str | Path, roots: Sequence[Path]) -> Path:
    """Return the directory of a run, an app, a sweep or a project.

    A name means an app before a run, and a run before a sweep or a directory here.

    Args:
        reference: Its directory, or its name; `app/run` for a run.
        roots: Directories of all apps.

    Raises:
        ConfigurationError: Nothing or several runs have that name.
    """
    return _locate(reference, roots).resolve()


def find_directories(locations: Sequence[str], roots: Sequence[Path]) -> tuple[list[Path], list[Skipped]]:
    """Return the directories of runs, and directories among them that are no runs, as `find`."""
    runs: dict[Path, None] = {}
    skipped: dict[Path, Skipped] = {}
    for directory in [_locate(location, roots) for location in locations] if locations else roots:
        entries = list(_walk(directory))
        if not entries and is_run_leftover(directory):
            entries = [_skipped(directory, directory)]
        for entry in entries:
            if isinstance(entry, Skipped):
                skipped[entry.directory] = entry
            else:
                runs[entry.resolve()] = None
    return list(runs), list(skipped.values())


def has_file(directory: Path, name: str) -> bool | None:
    """Return whether a directory has an entry of a name; None if the directory is another user's and not readable.

    Raises:
        ConfigurationError: The path, which a user named, is too long.
    """
    try:
        return (directory / name).exists()
    except PermissionError:
        return None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise ConfigurationError(f"{directory}: {error.strerror}") from error
        raise


def is_run_leftover(directory: Path) -> bool:
    """Return True for a directory among runs without run.json, as an interrupted program leaves it."""
    if directory.name[:1] in {"", "."} or not directory.is_dir() or has_file(directory, RUN_RECORD) is not False:
        return False
    return _has_runs(directory.absolute().parent)


def _has_runs(directory: Path) -> bool:
    """Return whether a directory is one of runs; an app may be named `runs`, too."""
    is_named = directory.name == _RUNS and not has_file(directory, _RUNS)
    return is_named or any(has_file(path, RUN_RECORD) for path in _directories_in(directory))


def is_sweep(directory: Path) -> bool:
    """Return True for the directory of a sweep, also of Hydra's launchers."""
    return bool(has_file(directory, _SWEEP)) or any(os.path.islink(job / _RUN) for job in _directories_in(directory))  # noqa: PTH114 - as `has_file`


def _run_directories(roots: Sequence[Path], marks: Sequence[str]) -> list[Path]:
    paths = {path.parent for root in roots for mark in marks for path in root.glob(f"*/*/*/{mark}")}
    return sorted(path for path in paths if path.name[0] != ".")


def _named(label: str, name: str, runs: Sequence[Path]) -> Path | None:
    """Return the run of a name; None if there is none."""
    matches = [run for run in runs if name in {_full_name(run), run.name}]
    if len(matches) > 1:
        names = [_full_name(run) for run in matches]
        labels = names if len(set(names)) == len(names) else map(str, matches)
        raise ConfigurationError(f"{label}: several runs have this name; choose one: {', '.join(labels)}")
    return matches[0] if matches else None


def _full_name(run_dir: Path) -> str:
    return f"{run_dir.parents[1].name}/{run_dir.name}"


def _did_you_mean(name: str, names: Collection[str]) -> str:
    from trieye.config.base import did_you_mean  # with pydantic

    return did_you_mean(name, set(names))


def _shortened(names: Sequence[str]) -> str:
    omitted_text = f" and {len(names) - _MAX_SHOWN} more" if names[_MAX_SHOWN:] else ""
    return ", ".join(names[:_MAX_SHOWN]) + omitted_text or "none"


def _locate(reference: str | Path, roots: Sequence[Path]) -> Path:
    path, text = Path(reference), str(reference)
    if has_file(path, RUN_RECORD):
        return path
    paths_below, paths_here = [root / text for root in roots], [path, _MULTIRUN / text]
    first_paths, later_paths = (paths_below, paths_here) if path.name == text else (paths_here, paths_below)
    directory = next(filter(Path.is_dir, first_paths), None)
    if directory is not None:
        return directory
    runs = _run_directories(roots, (RUN_RECORD,))
    directory = _named(text, text, runs) or next(filter(Path.is_dir, later_paths), None)
    if directory is not None:
        return directory
    if (leftover := _leftover(path, roots)) is not None:
        raise ConfigurationError(f"{text}: {_without_record(leftover, text)}")
    apps = sorted({app.name for root in roots for app in _directories_in(root)})
    sweeps = [sweep.name for sweep in _directories_in(_MULTIRUN)]
    names = [*apps, *sweeps, *map(_full_name, runs), *(run.name for run in runs)]
    places = f"apps in {', '.join(map(str, roots))}: {_shortened(apps)}" if roots else f"no {DEFAULT_ROOT} here"
    raise ConfigurationError(f"{text}: no such run, app, sweep or directory{_did_you_mean(text, names)} ({places})")


def _walk(directory: Path, depth: int = _DEPTH) -> Iterator[Path | Skipped]:
    if has_file(directory, RUN_RECORD):
        yield directory
        return
    if depth == _DEPTH and has_file(directory, DEFAULT_ROOT):
        directory = directory / DEFAULT_ROOT
    subdirs = _directories_in(directory)
    if is_sweep(directory):
        yield from _jobs(subdirs)
        return
    if _has_runs(directory):
        yield from (path if has_file(path, RUN_RECORD) else _skipped(path, path) for path in subdirs)
    elif depth > 1:
        for path in subdirs:
            yield from _walk(path, depth - 1)


def _jobs(jobs: Sequence[Path]) -> Iterator[Path | Skipped]:
    for job in sorted(jobs, key=lambda path: (len(path.name), path.name)):
        link = job / _RUN
        if has_file(link, RUN_RECORD):
            yield link
        elif os.path.islink(link):  # noqa: PTH114 - as `has_file`
            yield _skipped(job, link) if link.is_dir() else Skipped(job, f"its run, {link.readlink()}, is gone")


def _skipped(directory: Path, run_dir: Path) -> Skipped:
    if has_file(run_dir, RUN_RECORD) is None:
        return Skipped(directory, "it cannot be read: Permission denied")
    if is_alive(run_dir):
        return Skipped(directory, f"it is starting, and has no {RUN_RECORD} yet", is_starting=True)
    return Skipped(directory, f"it has no {RUN_RECORD}; if an interrupted start left it, `trieye rm` deletes it")


def _leftover(path: Path, roots: Sequence[Path]) -> Path | None:
    """Return the only directory without run.json that has a path or a name, `run` or `app/run`, below `roots`."""
    directories = (directory for root in roots for directory in root.glob("*/*/*"))
    matches = [directory for directory in directories if str(path) in {directory.name, _full_name(directory)}]
    leftovers = {leftover.resolve() for leftover in (path, *matches) if is_run_leftover(leftover)}
    return leftovers.pop() if len(leftovers) == 1 else None


def _without_record(directory: Path, name: str) -> str:
    if is_alive(directory):
        return f"the run is starting in {directory}, and has no {RUN_RECORD} yet; repeat the command in a moment"
    return f"{directory} was left by an interrupted start, without {RUN_RECORD} (`trieye rm {name}` deletes it)"


def _directories_in(directory: Path) -> list[Path]:
    try:
        with os.scandir(directory) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.name[0] != "." and entry.is_dir())
    except OSError:
        return []


def _config_values(run_dir: Path) -> Mapping[str, Any]:
    """Return the values of a run's configs.json by dotted name; nothing if it cannot be read."""
    with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        config = msgspec.json.decode((run_dir / CONFIGS).read_bytes())
        if isinstance(config, dict):
            from trieye.config.fingerprint import leaves  # with pydantic

            return dict(leaves(current_config(config)))
    return {}


def _is_same(value: Any, text: str) -> bool:
    if isinstance(value, bool) or value is None:
        return text.lower() in ({"none", "null"} if value is None else {str(value).lower()})
    if isinstance(value, int | float):
        with suppress(ValueError):
            return float(text) == value
        return False
    if isinstance(value, str):
        return text == value
    return text.replace(" ", "") == json.dumps(value, separators=(",", ":"))


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
