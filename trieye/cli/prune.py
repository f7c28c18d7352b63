"""`trieye prune`: delete old runs of an app.

Delete runs of an app that ended before a given age, except the best or newest runs.

The age of a run counts from its end, or, if it was killed, from the last change of its files. The best runs have the
best objective (loop.objective); --metric selects another metric, and --mode whether higher or lower is better. With
--keep best:N, runs without an objective are kept too; of equally good runs, those used last are kept. The command lists
runs with objectives and sizes, and sweeps whose jobs are deleted, and why it keeps the other runs, then asks for
confirmation. It never deletes a run that is alive, and never follows a symbolic link.

Examples:
  trieye prune my_agent --older-than 30d --dry-run
  trieye prune my_agent --older-than 12h --keep best:5 --keep newest:3
  trieye prune my_agent --older-than 0s --keep best:1 --metric loss --mode min --yes
"""

import argparse
import re

from trieye.cli.arguments import add_rating, add_removal, add_repeatable, age


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    parser.add_argument("app", metavar="APP", help="name of the app below --root, or its directory")
    parser.add_argument(
        "--older-than",
        required=True,
        type=age,
        metavar="AGE",
        help="delete runs that ended, or last showed a sign of life, longer ago: a number with s, m, h, d or w, such "
        "as 30d",
    )
    text = "keep N of all runs of the app: best:N or newest:N; best prefers those used last among equally good ones"
    add_repeatable(parser, "--keep", "WHICH:N", text, type=_keep)
    mode = "max: higher values are better; min: lower values (default for the objective: loop.mode)"
    add_rating(parser, "metric that ranks the runs (default: loop.objective)", mode)
    add_removal(parser)


def run(options: argparse.Namespace) -> int:
    """Delete the old runs that --keep does not protect."""
    from trieye.cli.removal import carry_out
    from trieye.runs import prune

    num_kept = {which: max(n for name, n in options.keep if name == which) for which, _ in options.keep}
    plan = prune(
        options.app,
        older_than_s=options.older_than,
        keep_best=num_kept.get("best"),
        keep_newest=num_kept.get("newest", 0),
        metric=options.metric,
        mode=options.mode,
        root=options.root,
        dry_run=True,
    )
    return carry_out(plan.removals, options, "prune", plan.retained)


def _keep(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"(best|newest):(\d+)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"invalid value {text!r}; expected best:N or newest:N, such as best:5")
    return match[1], int(match[2])
