"""`trieye prune`: delete the old runs of an app.

Delete the runs of an app that ended long ago, except the best or the newest ones.

The age of a run counts from its end, or from its last sign of life if it was killed. The best runs have the best
objective (loop.objective); --metric selects another metric, and --mode whether lower or higher is better. With
--keep best, runs whose objective is unknown are kept. The command lists directories and sizes, then asks for
confirmation. It never deletes a run that is alive, and never follows a symbolic link.

Examples:
  trieye prune my_agent --older-than 30d --dry-run
  trieye prune my_agent --older-than 12h --keep best:5 --keep newest:3
  trieye prune my_agent --older-than 0s --keep best:1 --metric loss --mode min --yes
"""

import argparse
import re
import time
from pathlib import Path

from trieye.cli.arguments import add_removal, add_root, age


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    parser.add_argument("app", metavar="APP", help="name of the app below --root, or its directory")
    parser.add_argument(
        "--older-than", required=True, type=age, metavar="AGE", help="a number with s, m, h, d or w, such as 30d"
    )
    parser.add_argument(
        "--keep", action="append", default=[], type=_kept, metavar="WHICH:N", help="leave the best:N or the newest:N"
    )
    parser.add_argument("--metric", metavar="NAME", help="what the best runs are judged by (default: loop.objective)")
    parser.add_argument(
        "--mode",
        choices=("max", "min"),
        help="whether more or less of it is better (default: loop.mode, for the objective)",
    )
    add_root(parser)
    add_removal(parser)


def run(options: argparse.Namespace) -> int:
    """Delete the runs that are old enough, except those to keep."""
    from trieye.cli.removal import best_first, carry_out, idle_runs

    runs = idle_runs(options.app, options.root)
    kept: set[Path] = set()
    for which, count in options.keep:
        if which == "newest":
            kept |= {run.run_dir for run in runs[::-1][:count]}
            continue
        ranked = best_first(runs, options.metric, options.mode)
        kept |= {run.run_dir for run in ranked[:count]}
        for unknown in (run for run in runs if run not in ranked):
            print(f"keeping {unknown.name}: its objective is unknown")
            kept.add(unknown.run_dir)
    before = time.time() - options.older_than
    return carry_out([run for run in runs if run.last_used <= before and run.run_dir not in kept], options)


def _kept(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"(best|newest):(\d+)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} says not which to keep; give best:N or newest:N, such as best:5")
    return match[1], int(match[2])
