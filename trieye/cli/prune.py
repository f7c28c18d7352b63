"""`trieye prune`: delete the old runs of an app.

Delete the runs of an app that ended long ago, but for the best or the newest ones.

A run counts from its end, or from its last sign of life if it was killed. The best runs are those with the best
objective (loop.objective); --metric takes another one, and --mode says which of its values are good. What is to be
deleted is shown with its size, and then you are asked. A run that is alive is never deleted.

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
    """Delete the runs that are old enough and not to be kept."""
    from trieye.cli.removal import best_first, carry_out, idle_runs

    runs = idle_runs(options.app, options.root)
    kept: set[Path] = set()
    for which, count in options.keep:
        ranked = runs[::-1] if which == "newest" else best_first(runs, options.metric, options.mode)
        kept |= {held.run_dir for held in ranked[:count]}
    before = time.time() - options.older_than
    return carry_out([held for held in runs if held.last_used <= before and held.run_dir not in kept], options)


def _kept(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"(best|newest):(\d+)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} says not which to keep; give best:N or newest:N, such as best:5")
    return match[1], int(match[2])
