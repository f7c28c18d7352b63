"""`trieye attempts`: list the attempts of a run and restore superseded points.

List the attempts of a run: the step of the checkpoint that each one resumed from, and its points, shown and superseded,
with their first and last step; or restore the superseded points of an attempt.

An attempt begins when the program starts, and when a process reopens or restores the run. An attempt that repeats steps
supersedes older points, which stay in the history. --restore N makes the superseded points of attempt N visible again.
For each metric, they supersede the points of other attempts from the same step on; these can be restored likewise.
The command rewrites TensorBoard's event files. It requires that no process is writing to the run.

Examples:
  trieye attempts first
  trieye attempts my_agent/first --restore 1
"""

import argparse
import shlex
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trieye.cli.arguments import add_run, add_timeout
from trieye.exceptions import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trieye.process.terminal import TextTable
    from trieye.runs import AttemptRow

HEADINGS = (
    "attempt", "started", "from step", "first step", "last step", "points shown", "superseded", "superseded metrics",
)  # fmt: skip
MAX_METRICS, MIN_METRICS_WIDTH = 3, 16
PADDING = 2


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
        return 0
    terminal = Terminal()
    table = _table(run_dir, attempts, terminal.width)
    # a narrower terminal folds whole lines; rich would fold numbers
    terminal.width = max(terminal.width, terminal.measure(table, options=terminal.options.update(width=10_000)).maximum)
    terminal.print(table)
    with suppress(ConfigurationError):  # a damaged run.json, which `trieye why` and `verify` report
        if runs.get(run_dir).status == "LOST":
            command = shlex.join(["trieye", "close", str(run_dir)])
            terminal.print(f"its process was killed: `{command}` adds points that only its journal has")
    return 0


def _table(run_dir: Path, attempts: "Sequence[AttemptRow]", limit: int) -> "TextTable":
    from trieye.process.terminal import TextTable

    rows = [_cells(row) for row in attempts]
    table = TextTable(title=run_dir.name, is_ruled=False)
    for heading, width in zip(HEADINGS, _widths(list(zip(HEADINGS, *rows, strict=True)), limit), strict=True):
        table.add_column(heading, width=width)
    for cells in rows:
        table.add_row(*cells)
    return table


def _widths(columns: "Sequence[Sequence[str]]", limit: int) -> list[int]:
    """Return the widths of the columns; where they do not fit, all are folded between words, and metrics anywhere."""
    widths = [max(map(len, cells)) for cells in columns]
    limit -= PADDING * len(columns)
    if sum(widths) <= limit:
        return widths
    folded = [max(len(word) for cell in cells for word in cell.split()) for cells in columns[:-1]]
    return [*folded, min(widths[-1], max(limit - sum(folded), MIN_METRICS_WIDTH))]


def _cells(row: "AttemptRow") -> tuple[str, ...]:
    omitted_text = f" and {len(row.metrics) - MAX_METRICS} more" if len(row.metrics) > MAX_METRICS else ""
    superseded_steps = _step(row.superseded_first_step), _step(row.superseded_last_step)
    return (
        str(row.number),
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.started)),
        _step(row.resumed_step),
        _step(row.first_step),
        _step(row.last_step),
        f"{row.shown:,}",
        f"{row.superseded:,}" + (f" ({'-'.join(dict.fromkeys(superseded_steps))})" if row.superseded else ""),
        ", ".join(row.metrics[:MAX_METRICS]) + omitted_text,
    )


def _step(step: int | None) -> str:
    return "" if step is None else f"{step:,}"
