"""`trieye results`: tables, curves, comparisons and reports of many runs.

Make tables, curves, comparisons and reports of many runs.

PLACE is the name or the directory of a run, an app or a sweep, a TensorBoard directory of any program, or an SQLite
database of MLflow (sqlite:///mlflow.db); without one, the newest sweep below multirun/, or the only app. Seeds
are replicates; each figure says of how many runs it is made and how many are missing, and has a bootstrap interval
unless there is one run only.

Examples:
  trieye results table
  trieye results curve multirun/first --by agent -o curve.png
  trieye results curve multirun/first sb3_logs --metric eval/return,eval/mean_reward --x env_steps -o both.svg
  trieye results compare multirun/first --by agent
  trieye results sensitivity multirun/first --param agent.lr -o lr.png
  trieye results select multirun/first --rerun 10     runs the best config again, with fresh seeds
  trieye results report multirun/first -o report.html
  trieye results export multirun/first -o points.parquet
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from trieye.cli.arguments import AnyOrder, add_confirmed, add_json

if TYPE_CHECKING:
    from collections.abc import Callable

STATS = ("iqm", "mean", "median", "run_median", "optimality_gap")
AXES = ("step", "env_steps", "updates", "wall_time")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    actions = parser.add_subparsers(
        title="actions", metavar="ACTION", dest="action", required=True, parser_class=AnyOrder
    )
    for name, text in _TEXTS.items():
        action = actions.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False)
        action.add_argument(
            "places",
            nargs="*",
            metavar="PLACE",
            help="name or directory of runs, apps or sweeps, event files, a database (newest sweep, or only app)",
        )
        _add_choice(action)
        if name == "export":
            action.add_argument("--metric", metavar="NAME,...", help="only these metrics (default: all)")
        else:
            _add_scoring(action)
        _add_specific(action, name)
        add_json(action)


def _add_choice(action: argparse.ArgumentParser) -> None:
    group = action.add_argument_group("which runs")
    group.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="only these; also KEY>=VALUE, KEY<=VALUE, KEY!=VALUE, KEY=A,B; runs without KEY fit",
    )
    group.add_argument("--strict", action="store_true", help="runs that lack a KEY of --where do not fit")


def _add_scoring(action: argparse.ArgumentParser) -> None:
    group = action.add_argument_group("what of them")
    group.add_argument(
        "--metric", metavar="NAME", help="metric, or its names in several programs: A,B (default: loop.objective)"
    )
    group.add_argument("--by", default="", metavar="KEY,...", help="compare by these (default: what varies)")
    group.add_argument("--task", metavar="KEY", help="the parameter that tells environments apart, such as env.id")
    group.add_argument(
        "--range",
        action="append",
        default=[],
        metavar="TASK=LOW:HIGH",
        help="scores of a task that become 0 and 1, so that tasks can be put together",
    )
    group.add_argument("--stat", choices=STATS, default="iqm", help="the figure of many runs (iqm)")
    group.add_argument(
        "--last", default="10%", metavar="END", help="the end of a run that counts: a part, or steps (10%%)"
    )
    group.add_argument("--mode", choices=("max", "min"), help="whether higher or lower is better (default: loop.mode)")
    group.add_argument("--best", action="store_true", help="of each group only its best config, which flatters it")
    group.add_argument(
        "--include-unfinished", action="store_true", help="score failed, killed and running runs by their points so far"
    )
    group.add_argument(
        "--include-diverged",
        action="store_true",
        help="score diverged runs by their last finite points (default: no score, and they rank last)",
    )
    group.add_argument("--confidence", type=float, default=0.95, metavar="P", help="of the intervals (0.95)")


def _add_specific(action: argparse.ArgumentParser, name: str) -> None:
    """Add the arguments of one action only."""
    if name in _OUT:
        default, text = _OUT[name]
        action.add_argument(
            "-o", "--output", type=Path, default=default, required=name == "export", metavar="FILE", help=text
        )
    if name in {"curve", "report"}:
        action.add_argument("--x", choices=AXES, default="step", help="what the axis of curves counts (step)")
    if name == "curve":
        action.add_argument("--grid", type=int, default=200, metavar="N", help="points of a curve (200)")
        action.add_argument("--runs", action="store_true", help="show each run, too")
    elif name == "sensitivity":
        action.add_argument("--param", required=True, metavar="KEY", help="the parameter")
    elif name == "report":
        action.add_argument("--title", metavar="TEXT", help="title of the page")
    elif name == "select":
        action.add_argument("--rerun", type=int, metavar="N", help="run the best config again, with N fresh seeds")
        action.add_argument("--close", action="store_true", help="with --rerun: also those not told apart from it")
        action.add_argument("--dry-run", action="store_true", help="with --rerun: show the jobs, and start nothing")
        add_confirmed(action)
        action.set_defaults(when_interrupted="interrupted; the same command resumes what is not completed")


def run(options: argparse.Namespace) -> int:
    """Do what the action says."""
    from trieye.cli import results_actions

    action: Callable[[argparse.Namespace], int] = getattr(results_actions, options.action)
    return action(options)


_TEXTS = {
    "table": "figures of the end of each group of runs, with intervals",
    "curve": "learning curves with intervals",
    "compare": "which group is better, how surely and by how much",
    "sensitivity": "what a parameter matters, with the others at their best and on the average",
    "select": "the best config, those that cannot be told from it, and how it does on fresh seeds",
    "report": "one page with all of it that needs no network",
    "export": "the points of all runs as one table",
}
_OUT = {
    "table": (None, "picture of the intervals, too: .png, .svg or .pdf"),
    "curve": (None, "picture: .png, .svg or .pdf (default: in the terminal)"),
    "compare": (None, "picture of the performance profiles, too: .png, .svg or .pdf"),
    "sensitivity": (None, "picture, too: .png, .svg or .pdf"),
    "report": (Path("report.html"), "(report.html)"),
    "export": (None, "points of all runs: .parquet, .csv or .feather"),
}
"""The default of -o of each action, and its help."""
