"""`trieye metrics`: print the metrics of a run.

Print the points of some metrics of a run, or the last value and the extremes of all metrics that the program logged.

The command works during the training. The points of its last ten seconds may be missing, for a killed run until
`trieye close`; superseded points are left out. The metrics of trieye itself have
points, but no summary: -m 'trieye/*', or --csv.

Examples:
  trieye metrics first                                        summary of all logged metrics
  trieye metrics first -m eval/return
  trieye metrics first -m 'loss/*' --since 10000 --csv        columns metric, step, value, time, count
"""

import argparse
import csv
import sys
from collections.abc import Mapping
from itertools import starmap
from typing import TYPE_CHECKING, Any

from trieye.cli.arguments import add_run
from trieye.cli.output import show

if TYPE_CHECKING:
    from trieye.runs import MetricPoints, StoredRun

MAX_POINTS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_run(parser)
    parser.add_argument(
        "-m", "--metric", action="append", default=[], metavar="NAME",
        help="metric or pattern whose points are printed, such as eval/return or 'loss/*'; repeatable",
    )  # fmt: skip
    parser.add_argument("--since", type=int, metavar="STEP", help="print the points from this step on")
    parser.add_argument("--csv", action="store_true", help="print all points as CSV; without -m, of all metrics")


def run(options: argparse.Namespace) -> int:
    """Print the metrics."""
    from trieye.runs import get, points

    stored_run = get(options.run_name, root=options.root)
    patterns = options.metric or (["*"] if options.csv else [])
    if stored_run.status == "LOST":
        print(f"{stored_run} was killed: `trieye close {stored_run}` stores its newest points", file=sys.stderr)
    points_by_name = points(stored_run, patterns, since=options.since) if patterns else None
    if options.csv and not options.json:
        _print_csv(points_by_name or {})
        return 0
    names = stored_run.metrics if points_by_name is None else points_by_name
    metrics = {name: stored_run.metrics.get(name) for name in names}
    tables = [_summary(stored_run)] if points_by_name is None else starmap(_table, points_by_name.items())
    document = {"run": str(stored_run), "run_dir": stored_run.run_dir, "summary": metrics}
    show(options, "metrics", {**document, "points": points_by_name or {}}, tables)
    return 0


def _print_csv(points_by_name: "Mapping[str, MetricPoints]") -> None:
    writer = csv.writer(sys.stdout)
    writer.writerow(["metric", "step", "value", "time", "count"])
    for name, series in points_by_name.items():
        columns = (series.steps, series.values, series.times, series.counts)
        writer.writerows((name, *row) for row in zip(*(column.tolist() for column in columns), strict=True))


def _summary(stored_run: "StoredRun") -> Any:
    from trieye.process.terminal import TextTable

    table = TextTable("metric", right=("last", "min", "max", "step"), title=str(stored_run), is_ruled=False)
    for name, summary in stored_run.metrics.items():
        values = [summary.get(key) for key in ("last", "min", "max")]
        table.add_row(name, *map(_number, values), f"{summary['step']:,.0f}")
    if not stored_run.metrics:
        table.note("no metrics yet")
    return table


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.6g}"


def _table(name: str, series: "MetricPoints") -> Any:
    from datetime import datetime

    from trieye.process.terminal import TextTable

    table = TextTable(right=("step", "value", "events", "time"), title=name, is_ruled=False)
    columns = (series.steps, series.values, series.counts, series.times)
    for step, value, count, stamp in zip(*(column[-MAX_POINTS:].tolist() for column in columns), strict=True):
        table.add_row(
            f"{step:,}", f"{value:.6g}", f"{count:,}", f"{datetime.fromtimestamp(stamp).astimezone():%Y-%m-%d %H:%M:%S}"
        )
    if len(series) > MAX_POINTS:
        table.note(f"{len(series) - MAX_POINTS:,} earlier points: --csv or --json prints all")
    return table
