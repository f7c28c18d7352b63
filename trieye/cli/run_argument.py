"""RUN: which run a command means, as a directory or by name."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from trieye.exceptions import ConfigurationError
from trieye.files.run_files import RUN_RECORD

DEFAULT_ROOT = ".trieye_data"
MAX_SHOWN = 10


def add_run_argument(parser: argparse.ArgumentParser) -> None:
    """Add RUN and --root to a command."""
    parser.add_argument("run_name", metavar="RUN", help="directory of a run, or its name below --root: run or app/run")
    parser.add_argument(
        "--root",
        type=Path,
        default=Path(DEFAULT_ROOT),
        metavar="DIR",
        help=f"directory of all apps (default: {DEFAULT_ROOT})",
    )


def find_run(given: str, root: Path, *, marks: Sequence[str] = (RUN_RECORD,)) -> Path:
    """Return the absolute directory of a run, of which links are followed: its names are those on the disk.

    Args:
        given: Its directory, or its name below `root`.
        root: Directory of all apps.
        marks: What tells the directory of a run from another one: it has one of these.

    Raises:
        ConfigurationError: There is no such run, or there are several; the message names those that there are.
    """
    path = Path(given)
    if any((path / mark).exists() for mark in marks):
        return path.resolve()
    runs = sorted({found.parent for mark in marks for found in root.glob(f"*/*/*/{mark}")})
    found = [run for run in runs if given in {_full_name(run), run.name}]
    if len(found) == 1:
        return found[0].resolve()
    if found:
        names = [_full_name(run) for run in found]
        shown = names if len(set(names)) == len(names) else [str(run) for run in found]
        raise ConfigurationError(f"run {given!r}: there are several of that name; say which: {', '.join(shown)}")
    if path.is_dir():
        raise ConfigurationError(f"run {given!r}: that directory is no run, it has no {' and no '.join(marks)}")
    raise ConfigurationError(_nothing_found(given, root, runs))


def _full_name(run_dir: Path) -> str:
    return f"{run_dir.parents[1].name}/{run_dir.name}"


def _nothing_found(given: str, root: Path, runs: list[Path]) -> str:
    from trieye.config.base import did_you_mean

    if not root.is_dir():
        return (
            f"run {given!r}: there is neither such a directory nor {root.resolve()} with runs in it; go where the run "
            "was started, or give its directory, or with --root the directory of all apps"
        )
    names = sorted(_full_name(run) for run in runs)
    hint = did_you_mean(given, {name for run in runs for name in (_full_name(run), run.name)})
    shown = ", ".join(names[:MAX_SHOWN]) + (f" and {len(names) - MAX_SHOWN} more" if names[MAX_SHOWN:] else "")
    where = f"there is none in {root.resolve()}{hint} (runs there: {shown or 'none'})"
    return f"run {given!r}: {where}; give its directory, or with --root the directory of all apps"
