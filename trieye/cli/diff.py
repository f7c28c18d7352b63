"""`trieye diff`: what two runs have not in common.

Compare two runs: values of the config, the commit, packages, and the metrics as they were at the end.

Of the first three only what differs is shown; metrics are those of either run, with the last value and the best one of
the objective.

Examples:
  trieye diff first second
  trieye diff my_agent/first others/first --json
"""

import argparse
from typing import TYPE_CHECKING

from trieye.cli.arguments import add_run

if TYPE_CHECKING:
    from trieye.process.terminal import Table
    from trieye.runs.comparing import RunDiff

MAX_METRICS = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_run(parser, count=2)


def run(options: argparse.Namespace) -> int:
    """Compare the runs."""
    from trieye.cli.output import print_json
    from trieye.process.terminal import Terminal
    from trieye.runs import diff

    found = diff(*options.run_names, root=options.root)
    both = found.first, found.second
    if options.json:
        forks = [run.record.forked_from for run in both]
        runs = [
            {"run": str(run), "run_dir": run.run_dir, "forked_from": None if fork is None else fork.model_dump()}
            for run, fork in zip(both, forks, strict=True)
        ]
        print_json("diff", {"runs": runs, **found.divergence.parts(), "metrics": found.metrics})
        return 0
    console = Terminal()
    for table in _tables(found):
        console.print(table)
    for run in both:
        if run.record.forked_from is not None:
            console.print(f"{run} was forked from {run.record.forked_from.line}")
        if run.provenance is None:
            console.print(f"of {run} commit and packages are not known", style="yellow")
    return 0


def _tables(found: "RunDiff") -> "list[Table]":
    from trieye.cli.restarting import lines_of
    from trieye.process.terminal import Table, Text

    tables = []
    for part, differences in {**found.divergence.parts(), "metrics": found.metrics}.items():
        table = Table(part, str(found.first), str(found.second), is_ruled=False)
        if part == "metrics":
            lines = [(name, *map(_number, pair)) for name, pair in differences.items()]
        else:
            lines = list(lines_of(differences))
        for line in lines[: MAX_METRICS if part == "metrics" else None]:
            table.add_row(*line)
        if not lines:
            table.add_row(Text("no difference" if part != "metrics" else "none", "dim"))
        elif part == "metrics" and len(lines) > MAX_METRICS:
            table.note(f"and {len(lines) - MAX_METRICS} more: --json has them all")
        tables.append(table)
    return tables


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
