"""`trieye runs`: list runs.

List runs with status, step, best objective, time and size, newest first.

SOURCE is the name of a run or an app, the directory of a sweep, or any directory that contains runs. Without SOURCE,
the runs of all apps of the project are listed. `took` is the duration of the last attempt. LOST means that the run is
recorded as running but its process no longer exists: restart the run, or finish it with `trieye close`. Runs that are
starting, and directories that are not runs, are reported on stderr.

Examples:
  trieye runs my_agent
  trieye runs --status finished,running --newer-than 2d      all apps of the project
  trieye runs multirun/20260101_120000 --sort objective -n 5
  trieye runs --where agent.lr=3e-4 --metric loss --mode min --sort objective --json
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trieye.cli.arguments import add_json, add_rating, add_repeatable, add_root, age, listed, pair, positive

if TYPE_CHECKING:
    from trieye.process.terminal import Text
    from trieye.runs.finding import Skipped
    from trieye.runs.stored_run import StoredRun

STATUSES = ("running", "finished", "failed", "killed", "lost")
SORTS = ("created", "objective", "step", "took", "size", "name", "status")
MAX_SKIPPED = 5

RUN_COLORS: dict[str, str] = {
    "RUNNING": "green", "FINISHED": "cyan", "FAILED": "red", "KILLED": "yellow", "LOST": "yellow",
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    parser.add_argument(
        "sources", nargs="*", metavar="SOURCE", help="runs, apps, or directories of sweeps, apps or runs (default: all)"
    )
    parser.add_argument("--status", metavar="STATUS,...", help=f"list only runs in these states: {', '.join(STATUSES)}")
    add_repeatable(parser, "--where", "KEY=VALUE", "list only runs with this config value")
    parser.add_argument(
        "--newer-than", type=age, metavar="AGE", help="list only runs created within this time, such as 30d, 12h or 10m"
    )
    mode = "whether the highest or lowest value of the metric is best (default: loop.mode)"
    add_rating(parser, "metric shown as the objective (default: loop.objective)", mode)
    parser.add_argument("--sort", choices=SORTS, default="created", help="sort key (default: created)")
    parser.add_argument("-r", "--reverse", action="store_true", help="reverse the order")
    parser.add_argument("-n", type=positive, metavar="N", help="list at most N runs")
    add_json(parser)
    add_root(parser)


def run(options: argparse.Namespace) -> int:
    """List the selected runs."""
    from trieye.cli.output import print_json
    from trieye.exceptions import ConfigurationError
    from trieye.runs.finding import find, ordered, roots_of, select

    statuses = None
    if options.status is not None:
        statuses = set(map(str.upper, listed(options.status.lower(), STATUSES, "--status", "status")))
    conditions = dict(pair(text, "--where ") for text in options.where)
    if options.root is not None and not options.root.is_dir():
        raise ConfigurationError(f"--root {options.root}: no such directory")
    all_runs, skipped = find(*options.sources, root=options.root, metric=options.metric, mode=options.mode)
    try:
        runs = select(all_runs, status=statuses, where=conditions, newer_than_s=options.newer_than)
    except ConfigurationError as error:
        raise ConfigurationError(f"--where {error}") from None
    if options.metric is not None and all_runs and all(run.best is None for run in all_runs):
        print(f"note: no run has a metric {options.metric!r}", file=sys.stderr)
    runs = ordered(runs, options.sort, reverse=options.reverse)[: options.n]
    if options.json:
        print_json("runs", {"runs": [_row(run) for run in runs], "skipped": [entry._asdict() for entry in skipped]})
        return 0
    sources = options.sources or [str(root) for root in roots_of(options.root)]
    _show(runs, skipped, num_runs=len(all_runs), sources=sources)
    return 0


def _row(run: "StoredRun") -> dict[str, Any]:
    row = asdict(run)
    del row["metrics"]
    keys = {"metric": "name", "mode": "mode", "best": "best", "diverged": "diverged"}
    row["objective"] = {name: row.pop(key) for key, name in keys.items()}
    return {**row, "size_bytes": run.size_bytes, "age_s": time.time() - run.created}


def _show(runs: "Sequence[StoredRun]", skipped: "Sequence[Skipped]", *, num_runs: int, sources: Sequence[str]) -> None:
    from trieye.process.terminal import Terminal
    from trieye.runs.finding import DEFAULT_ROOT

    if runs:
        Terminal().print(_lines(runs))
    elif num_runs:
        print(f"none of {num_runs} runs match")
    elif sources:
        print(f"no runs in {', '.join(sources)}")
    else:
        print(f"no runs: no {DEFAULT_ROOT} in the working directory or above it; pass the directory with --root")
    _show_skipped(skipped)


def _show_skipped(skipped: "Sequence[Skipped]") -> None:
    """Print the skipped directories; those with the same parent directory and reason share a line."""
    groups: dict[tuple[Path, str], list[str]] = {}
    for entry in sorted(skipped, key=lambda entry: not entry.is_starting):
        groups.setdefault((entry.directory.parent, entry.reason), []).append(entry.directory.name)
    for (parent, reason), names in list(groups.items())[:MAX_SKIPPED]:
        omitted_text = f" and {len(names) - MAX_SKIPPED} more" if names[MAX_SKIPPED:] else ""
        print(f"skipped: {', '.join(names[:MAX_SKIPPED])}{omitted_text} in {parent}: {reason}", file=sys.stderr)
    if len(groups) > MAX_SKIPPED:
        print(f"skipped: {len(groups) - MAX_SKIPPED} more groups of directories that are not runs", file=sys.stderr)


def _lines(runs: "Sequence[StoredRun]") -> "Text":
    """Return one line per run, unfolded in pipes; rendering a rich table would take longer than reading all runs."""
    from rich.cells import cell_len, set_cell_size
    from rich.filesize import decimal

    from trieye.process.terminal import Text
    from trieye.process.text import duration, visible

    apps, metrics = {run.app for run in runs}, {run.metric for run in runs if run.best is not None}
    now, common_metric = time.time(), str(next(iter(metrics))) if len(metrics) == 1 else None
    rows = [("run", "status", "step", common_metric or "objective", "took", "age", "size")]
    for run in runs:
        best_text = "" if run.best is None else f"{run.best:.6g}" + (" (diverged)" if run.diverged else "")
        rows.append(
            (
                run.name if len(apps) == 1 else f"{run.app}/{run.name}",
                run.status,
                "" if run.step is None else f"{run.step:,}",
                best_text if common_metric or not best_text else f"{best_text} {run.metric}",
                duration(run.took_s),
                duration(now - run.created),
                decimal(run.size_bytes),
            )
        )
    lines = [[visible(cell, keep="") for cell in row] for row in rows]
    widths = [max(map(cell_len, cells)) for cells in zip(*lines, strict=True)]
    text = Text()
    for index, (name, status, *end_cells) in enumerate(lines):
        style = "" if index else "bold"
        text.append(f"{set_cell_size(name, widths[0])}  ", style)
        text.append(f"{status:<{widths[1]}}", RUN_COLORS[status] if index else style)
        cells = (f"  {' ' * (width - cell_len(cell))}{cell}" for cell, width in zip(end_cells, widths[2:], strict=True))
        text.append("".join(cells), style)
        text.append("\n" if index < len(runs) else "")
    return text
