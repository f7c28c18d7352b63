"""`trieye runs`: which runs there are.

List runs with their status, step, best objective, time and size, the newest first.

WHERE is an app below --root, the directory of a sweep, or any directory with runs in it; without it, all apps of the
project that you stand in are listed. `took` is the time of the last attempt. LOST is a run whose processes are gone
without a word: start it again, or `trieye close` it. Directories that are no runs are named, and left out.

Examples:
  trieye runs my_agent
  trieye runs --status finished,running --newer-than 2d      of all apps of the project
  trieye runs multirun/20260101_120000 --sort objective -n 5
  trieye runs --where agent.lr=3e-4 --metric loss --mode min --sort objective --json
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trieye.cli.arguments import DEFAULT_ROOT, age

if TYPE_CHECKING:
    from trieye.cli.found_runs import FoundRun, Skipped
    from trieye.process.terminal import Text

STATES = ("running", "finished", "failed", "killed", "lost")
SORTS = ("created", "objective", "step", "took", "size", "name", "status")
MAX_SKIPPED = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    parser.add_argument("places", nargs="*", metavar="WHERE", help="apps, or directories of sweeps, apps or runs")
    parser.add_argument("--status", metavar="STATE,...", help=f"only those: {', '.join(STATES)}")
    parser.add_argument(
        "--where", action="append", default=[], metavar="KEY=VALUE", help="only those with that in their config"
    )
    parser.add_argument("--newer-than", type=age, metavar="AGE", help="only those begun since: 30d, 12h, 10m")
    parser.add_argument("--metric", metavar="NAME", help="what is shown as the objective (default: loop.objective)")
    parser.add_argument("--mode", choices=("max", "min"), help="which of its values is best (default: loop.mode)")
    parser.add_argument("--sort", choices=SORTS, default="created", help="what they are ordered by (default: created)")
    parser.add_argument("-r", "--reverse", action="store_true", help="the other way round")
    parser.add_argument("-n", type=int, metavar="N", help="no more than N")
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    parser.add_argument(
        "--root", type=Path, metavar="DIR", help=f"directory of all apps (default: {DEFAULT_ROOT} of the project)"
    )


def run(options: argparse.Namespace) -> int:
    """List the runs that were asked for."""
    from trieye.cli.found_runs import find_runs, own_roots
    from trieye.exceptions import ConfigurationError

    states = _states(options.status)
    wanted = dict(_pair(text) for text in options.where)
    if options.n is not None and options.n < 1:
        raise ConfigurationError(f"-n {options.n}: it has to be 1 or more")
    if options.root is not None and not options.root.is_dir():
        raise ConfigurationError(f"--root {options.root}: there is no such directory")
    roots = own_roots() if options.root is None else [options.root.resolve()]
    directories, skipped = find_runs(options.places, roots)
    runs = [found for directory in directories if (found := _read(directory, options, skipped)) is not None]
    num_found, known = len(runs), sorted({found.metric for found in runs if found.best is not None and found.metric})
    runs = [found for found in runs if states is None or found.status in states]
    if options.newer_than is not None:
        runs = [found for found in runs if found.created >= time.time() - options.newer_than]
    runs = _with_values(runs, wanted)
    if options.metric is not None and num_found and not known:
        print(f"note: no run has a metric {options.metric!r}", file=sys.stderr)
    runs = _sorted(runs, options.sort, reverse=options.reverse)[: options.n]
    if options.json:
        print(json.dumps({"runs": [_plain(found) for found in runs], "skipped": [_said(one) for one in skipped]}))
        return 0
    _show(runs, skipped, num_found=num_found, places=options.places or [str(root) for root in roots])
    return 0


def _read(directory: Path, options: argparse.Namespace, skipped: "list[Skipped]") -> "FoundRun | None":
    from trieye.cli.found_runs import FoundRun, Skipped
    from trieye.exceptions import ConfigurationError

    try:
        return FoundRun.read(directory, metric=options.metric, mode=options.mode)
    except ConfigurationError as error:
        skipped.append(Skipped(directory, str(error)))
        return None


def _states(given: str | None) -> set[str] | None:
    from trieye.exceptions import ConfigurationError

    if given is None:
        return None
    names = [name.strip().lower() for name in given.split(",")]
    for name in names:
        if name not in STATES:
            from trieye.config.base import did_you_mean

            raise ConfigurationError(
                f"--status {name}: no run is that{did_you_mean(name, STATES)} (of: {', '.join(STATES)})"
            )
    return {name.upper() for name in names}


def _pair(text: str) -> tuple[str, str]:
    from trieye.exceptions import ConfigurationError

    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigurationError(f"--where {text}: this is not KEY=VALUE")
    return key, value


def _with_values(runs: "Sequence[FoundRun]", wanted: Mapping[str, str]) -> "list[FoundRun]":
    """Return the runs that have values in their config; a key that none of them has is a mistake."""
    from trieye.cli.found_runs import config_values
    from trieye.exceptions import ConfigurationError

    if not wanted or not runs:
        return list(runs)
    configs = [(found, config_values(found.run_dir)) for found in runs]
    known = {key for _, config in configs for key in config}
    for key in wanted.keys() - known:
        from trieye.config.base import did_you_mean

        raise ConfigurationError(f"--where {key}={wanted[key]}: no run has such a key{did_you_mean(key, known)}")
    return [
        found
        for found, config in configs
        if all(key in config and _is_same(config[key], value) for key, value in wanted.items())
    ]


def _is_same(held: Any, typed: str) -> bool:
    if isinstance(held, bool) or held is None:
        return typed.lower() in ({"none", "null"} if held is None else {str(held).lower()})
    if isinstance(held, int | float):
        try:
            return float(typed) == held
        except ValueError:
            return False
    return typed == held if isinstance(held, str) else typed.replace(" ", "") == json.dumps(held, separators=(",", ":"))


def _sorted(runs: "Sequence[FoundRun]", by: str, *, reverse: bool) -> "list[FoundRun]":
    """Return the newest, best, longest or largest first, and what has no such value at the end, either way."""
    if by in {"name", "status"}:
        return sorted(
            runs, key=lambda found: (found.status if by == "status" else "", found.app, found.name), reverse=reverse
        )

    def value(found: "FoundRun") -> float | None:
        if by == "objective":
            if found.best is None or found.diverged:
                return None
            return found.best if found.mode == "max" else -found.best
        held: float | None = {
            "created": found.created, "step": found.step, "took": found.took_s, "size": found.size_bytes,
        }[by]  # fmt: skip
        return held

    rated = [(rating, found) for found in runs if (rating := value(found)) is not None]
    ordered = [found for _, found in sorted(rated, key=lambda pair: pair[0], reverse=not reverse)]
    return [*ordered, *(found for found in runs if value(found) is None)]


def _plain(found: "FoundRun") -> dict[str, Any]:
    held = asdict(found)
    keys = {"metric": "name", "mode": "mode", "best": "best", "diverged": "diverged"}
    held["objective"] = {shown: held.pop(key) for key, shown in keys.items()}
    return {**held, "run_dir": str(found.run_dir), "age_s": time.time() - found.created}


def _said(skipped: "Skipped") -> dict[str, str]:
    return {"directory": str(skipped.directory), "reason": skipped.reason}


def _show(runs: "Sequence[FoundRun]", skipped: "Sequence[Skipped]", *, num_found: int, places: Sequence[str]) -> None:
    from trieye.process.terminal import Terminal

    if runs:
        Terminal().print(_lines(runs))
    elif num_found:
        print(f"none of {num_found} runs is like that")
    else:
        print(
            f"no runs in {', '.join(places)}"
            if places
            else f"no runs: there is no {DEFAULT_ROOT} here nor above; name a directory with --root"
        )
    _show_skipped(skipped)


def _show_skipped(skipped: "Sequence[Skipped]") -> None:
    """Name directories without run.json on one line for each app, and others with the reason."""
    from trieye.cli.found_runs import is_run_leftover

    leftovers: dict[Path, list[str]] = {}
    others = []
    for one in skipped:
        if is_run_leftover(one.directory):
            leftovers.setdefault(one.directory.parent, []).append(one.directory.name)
        else:
            others.append(f"left out: {one.directory}: {one.reason}")
    for runs, names in leftovers.items():
        more = f" and {len(names) - MAX_SKIPPED} more" if names[MAX_SKIPPED:] else ""
        shown = f"{', '.join(names[:MAX_SKIPPED])}{more}"
        print(f"left out, no run.json (`trieye rm NAME` deletes one): {shown} in {runs}", file=sys.stderr)
    for line in others[:MAX_SKIPPED]:
        print(line, file=sys.stderr)
    if others[MAX_SKIPPED:]:
        print(f"left out: {len(others) - MAX_SKIPPED} more directories that are no runs", file=sys.stderr)


def _lines(runs: "Sequence[FoundRun]") -> "Text":
    """Return a line for each run, which no pipe folds; a table of rich takes longer than reading all runs does."""
    from rich.cells import cell_len, set_cell_size
    from rich.filesize import decimal

    from trieye.cli.found_runs import RUN_COLORS, duration
    from trieye.process.terminal import Text
    from trieye.process.text import visible

    apps, metrics = {found.app for found in runs}, {found.metric for found in runs if found.best is not None}
    now, one = time.time(), str(next(iter(metrics))) if len(metrics) == 1 else None
    rows = [("run", "status", "step", one or "objective", "took", "age", "size")]
    for found in runs:
        best = "" if found.best is None else f"{found.best:.6g}" + (" (diverged)" if found.diverged else "")
        rows.append(
            (
                found.name if len(apps) == 1 else f"{found.app}/{found.name}",
                found.status,
                "" if found.step is None else f"{found.step:,}",
                best if one or not best else f"{best} {found.metric}",
                duration(found.took_s),
                duration(now - found.created),
                decimal(found.size_bytes),
            )
        )
    lines = [[visible(cell, keep="") for cell in row] for row in rows]
    widths = [max(map(cell_len, cells)) for cells in zip(*lines, strict=True)]
    text = Text()
    for number, (name, status, *rest) in enumerate(lines):
        style = "" if number else "bold"
        text.append(f"{set_cell_size(name, widths[0])}  ", style)
        text.append(f"{status:<{widths[1]}}", RUN_COLORS[status] if number else style)
        cells = (f"  {' ' * (width - cell_len(cell))}{cell}" for cell, width in zip(rest, widths[2:], strict=True))
        text.append("".join(cells), style)
        text.append("\n" if number < len(runs) else "")
    return text
