"""`trieye attempts`: list the attempts of a run and restore superseded points.

List the attempts of a run: the step of the checkpoint that each one resumed from, and the number of points that it
logged; or restore the superseded points of an attempt.

An attempt begins when the program starts, and when a process reopens or restores the run. An attempt that repeats steps
supersedes older points, which stay in the history. --restore N makes the superseded points of attempt N visible again.
For each metric, they supersede the points of other attempts from the same step on; these can be restored likewise.
The command rewrites TensorBoard's event files. It requires that no process is writing to the run.

Examples:
  trieye attempts first
  trieye attempts my_agent/first --restore 1
"""

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trieye.cli.arguments import add_run, add_timeout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trieye.process.terminal import TextTable
    from trieye.runs import AttemptRow

MAX_METRICS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_run(parser)
    parser.add_argument("--restore", type=int, metavar="N", help="restore the superseded points of attempt N")
    add_timeout(parser)


def run(options: argparse.Namespace) -> int:
    """List the attempts, or restore the points of one attempt."""
    from trieye import runs
    from trieye.cli.delivering import show_delivery
    from trieye.cli.output import print_json
    from trieye.process.terminal import Terminal

    if options.restore is not None:
        return show_delivery(options, "attempts.restore", runs.restore_attempt, options.restore)
    run_dir = runs.run_directory(options.run_name, root=options.root)
    attempts = runs.attempts(run_dir)
    if options.json:
        print_json("attempts", {"run_dir": run_dir, "attempts": attempts})
    else:
        Terminal().print(_table(run_dir, attempts))
    return 0


def _table(run_dir: Path, attempts: "Sequence[AttemptRow]") -> "TextTable":
    from trieye.process.terminal import TextTable

    columns = ("attempt", "started", "from step", "points shown", "superseded", "metrics")
    table = TextTable(*columns, title=run_dir.name, is_ruled=False)
    for row in attempts:
        more = f" and {len(row.metrics) - MAX_METRICS} more" if len(row.metrics) > MAX_METRICS else ""
        metrics = ", ".join(row.metrics[:MAX_METRICS]) + more
        started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.started))
        origin = "" if row.resumed_step is None else f"{row.resumed_step:,}"
        table.add_row(str(row.number), started, origin, f"{row.shown:,}", f"{row.superseded:,}", metrics)
    return table
