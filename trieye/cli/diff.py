"""`trieye diff`: what two runs have not in common.

Compare two runs: values of the config, the commit, packages, and the metrics as they were at the end.

Of the first three only what differs is shown; metrics are those of either run, with the last value and the best one of
the objective.

Examples:
  trieye diff first second
  trieye diff my_agent/first others/first --json
"""

import argparse
import json
from typing import TYPE_CHECKING, Any

from trieye.cli.arguments import add_root

if TYPE_CHECKING:
    from trieye.cli.again import Made
    from trieye.process.terminal import Table

MAX_METRICS = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    parser.add_argument(
        "run_names", metavar="RUN", nargs=2, help="directories of runs, or names below --root: run or app/run"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    add_root(parser)


def run(options: argparse.Namespace) -> int:
    """Compare the runs."""
    from trieye.cli.again import Drift, Made, Side
    from trieye.cli.given_run import find_run
    from trieye.process.terminal import Terminal

    first, second = (Made.of(find_run(name, options.root)) for name in options.run_names)
    drift = Drift.between(Side.of(first), Side.of(second))
    metrics = _metrics(first, second)
    if options.json:
        runs = [
            {"run": made.name, "run_dir": str(made.run_dir), "forked_from": _fork(made)} for made in (first, second)
        ]
        print(json.dumps({"runs": runs, **drift.plain(), "metrics": metrics}))
        return 0
    console = Terminal()
    for table in _tables(first, second, drift.plain(), metrics):
        console.print(table)
    for made in (first, second):
        if made.record.forked_from is not None:
            console.print(f"{made.name} was forked from {made.record.forked_from.line}")
        if made.provenance is None:
            console.print(f"of {made.name} commit and packages are not known", style="yellow")
    return 0


def _fork(made: "Made") -> dict[str, Any] | None:
    fork = made.record.forked_from
    return None if fork is None else fork.model_dump()


def _metrics(first: "Made", second: "Made") -> dict[str, list[Any]]:
    """Return the last value of each metric in both runs, and the best one of an objective."""
    both = [made.final() for made in (first, second)]
    found: dict[str, list[Any]] = {}
    for made in (first, second):
        loop = made.config.get("loop") or {}
        name, mode = str(loop.get("objective")), loop.get("mode", "max")
        if any(name in seen for seen in both):
            found[f"best {name}"] = [seen.get(name, {}).get(mode) for seen in both]
    for name in sorted({name for seen in both for name in seen}):
        found[name] = [seen.get(name, {}).get("last") for seen in both]
    return found


def _tables(first: "Made", second: "Made", drift: dict[str, Any], metrics: dict[str, Any]) -> "list[Table]":
    from trieye.cli.again import lines_of
    from trieye.process.terminal import Table, Text

    tables = []
    for part, found in {**drift, "metrics": metrics}.items():
        table = Table(part, first.name, second.name, is_ruled=False)
        lines = (
            list(lines_of(found))
            if part != "metrics"
            else [(name, *map(_number, pair)) for name, pair in found.items()]
        )
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
