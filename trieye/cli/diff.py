"""`trieye diff`: compare two runs.

Compare two runs: config values, commit, package versions, and final metrics.

For config, commit and packages, only differences are shown. Metrics of either run are shown with their last value; the
objective is shown with its best value.

Examples:
  trieye diff first second
  trieye diff my_agent/first others/first --json
"""

import argparse
from typing import TYPE_CHECKING

from trieye.cli.arguments import add_run
from trieye.cli.output import Parts, show

if TYPE_CHECKING:
    from trieye.runs.comparing import RunDiff

MAX_METRICS = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_run(parser, count=2)


def run(options: argparse.Namespace) -> int:
    """Compare the runs."""
    from trieye.runs import diff

    comparison = diff(*options.run_names, root=options.root)
    forks = [(run, run.record.forked_from) for run in (comparison.first, comparison.second)]
    runs = [{"run": str(run), "run_dir": run.run_dir, "forked_from": fork and fork.model_dump()} for run, fork in forks]
    document = {"runs": runs, **comparison.divergence.parts(), "metrics": comparison.metrics}
    show(options, "diff", document, _parts(comparison))
    return 0


def _parts(comparison: "RunDiff") -> Parts:
    from trieye.cli.restarting import lines_of
    from trieye.process.terminal import Text, TextTable

    for part, differences in {**comparison.divergence.parts(), "metrics": comparison.metrics}.items():
        table = TextTable(part, str(comparison.first), str(comparison.second), is_ruled=False)
        if part == "metrics":
            lines = [(name, *map(_number, pair)) for name, pair in differences.items()]
        else:
            lines = list(lines_of(differences))
        for line in lines[: MAX_METRICS if part == "metrics" else None]:
            table.add_row(*line)
        if not lines:
            table.add_row(Text("no difference" if part != "metrics" else "none", "dim"))
        elif part == "metrics" and len(lines) > MAX_METRICS:
            table.note(f"{len(lines) - MAX_METRICS} more; --json lists all")
        yield table
    for run in (comparison.first, comparison.second):
        if run.record.forked_from is not None:
            yield f"{run} was forked from {run.record.forked_from.line}"
        if run.provenance is None:
            yield Text(f"{run}: commit and packages were not recorded", "yellow")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
