"""`trieye results`: create tables, curves, comparisons and reports from many runs.

Create tables, curves, comparisons and reports from many runs.

SOURCE is the name or directory of a run, an app or a sweep, the sweep or output directory of any Hydra program, a
TensorBoard directory, an MLflow store (sqlite:///mlflow.db or mlruns), or a Parquet file of `trieye results export`.
Without SOURCE, the newest sweep below multirun/ is used, or else the only app. Seeds are replicates. Each figure has
its sample size, the number of missing runs, and, for two or more runs, a bootstrap confidence interval.

Examples:
  trieye results table
  trieye results table multirun/first --metric val_loss --mode min -o scores.tex
  trieye results curve multirun/first --by agent -o curve.png
  trieye results curve multirun/first sb3_logs --metric eval/return,eval/mean_reward --x env_steps -o both.svg
  trieye results compare multirun/first --by agent -o pairs.tex
  trieye results sensitivity multirun/first --param agent.lr -o lr.png
  trieye results importance multirun/first -o parallel.png
  trieye results select multirun/first --rerun 10     rerun the best config with 10 fresh seeds
  trieye results report multirun/first -o report.html
  trieye results export multirun/first -o points.parquet
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from trieye.cli.arguments import add_action, add_actions, add_confirmed, add_json, add_output, add_repeatable

if TYPE_CHECKING:
    from collections.abc import Callable

STATS = ("iqm", "mean", "median", "run_median", "optimality_gap")
AXES = ("step", "env_steps", "updates", "wall_time")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    actions = add_actions(parser)
    for name, text in _TEXTS.items():
        action = add_action(actions, name, text, allow_abbrev=False)
        action.add_argument(
            "sources",
            nargs="*",
            metavar="SOURCE",
            help="run, app, sweep, Hydra output, event files, MLflow store (default: newest sweep, else the only app)",
        )
        _add_choice(action)
        if name == "export":
            action.add_argument("--metric", metavar="NAME,...", help="export only these metrics (default: all)")
        else:
            _add_scoring(action)
        _add_specific(action, name)
        add_json(action)


def _mark(text: str) -> tuple[float, str]:
    """Parse a position and a label, such as `40_000:resumed`."""
    position, _, label = text.partition(":")
    try:
        return float(position), label or position
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not X:TEXT, such as 40_000:resumed") from None


def _add_choice(action: argparse.ArgumentParser) -> None:
    group = action.add_argument_group("run selection")
    add_repeatable(
        group,
        "--where",
        "KEY=VALUE",
        "select runs by config value: KEY=VALUE, KEY>=VALUE, KEY<=VALUE, KEY!=VALUE, KEY=A,B, or KEY!=A,B for "
        "neither; repeatable; keeps runs that lack KEY, unless --strict",
    )
    group.add_argument("--strict", action="store_true", help="exclude runs that lack a KEY of --where")


def _add_scoring(action: argparse.ArgumentParser) -> None:
    group = action.add_argument_group("scores and groups")
    group.add_argument(
        "--metric",
        metavar="NAME",
        help="metric to score; A,B if programs name it differently: the first that a run logs counts (default: "
        "loop.objective, or the returned number)",
    )
    group.add_argument("--by", default="", metavar="KEY,...", help="group runs by these keys (default: all that vary)")
    group.add_argument("--task", metavar="KEY", help="config key that identifies the task, such as env.id")
    text = "normalize scores of TASK: LOW becomes 0, HIGH becomes 1, so that tasks can be combined"
    add_repeatable(group, "--range", "TASK=LOW:HIGH", text)
    group.add_argument("--stat", choices=STATS, default="iqm", help="statistic over the runs of a group (default: iqm)")
    group.add_argument(
        "--last",
        default="10%",
        metavar="END",
        help="a run's score is the mean of its last END%% of points or last END steps (default: 10%%)",
    )
    group.add_argument("--mode", choices=("max", "min"), help="whether higher or lower is better (default: loop.mode)")
    group.add_argument(
        "--best", action="store_true", help="show only the best config of each group, whose score is optimistic"
    )
    group.add_argument(
        "--include-unfinished",
        action="store_true",
        help="score failed, killed and running runs by their points so far, and show their curves",
    )
    group.add_argument(
        "--include-diverged",
        action="store_true",
        help="score diverged runs by their last finite points (default: diverged runs have no score and rank last)",
    )
    group.add_argument(
        "--confidence", type=float, default=0.95, metavar="P", help="confidence level of the intervals (default: 0.95)"
    )


def _add_specific(action: argparse.ArgumentParser, name: str) -> None:
    """Add the arguments that only this action has."""
    if name in _OUT:
        default = Path("report.html") if name == "report" else None
        add_output(action, "FILE", _OUT[name], default, required=name == "export")
    if name in {"curve", "report"}:
        action.add_argument(
            "--x",
            choices=AXES,
            default="step",
            help="x axis of the curves (default: step, in the unit that the runs count, such as env_steps)",
        )
    if name == "curve":
        action.add_argument("--grid", type=int, default=200, metavar="N", help="points per curve (default: 200)")
        action.add_argument("--runs", action="store_true", help="draw the curve of each run too")
        text = "draw a vertical line at X in the picture, with TEXT in the legend; repeatable"
        add_repeatable(action, "--mark", "X:TEXT", text, type=_mark)
    elif name == "sensitivity":
        action.add_argument("--param", required=True, metavar="KEY", help="config key whose values are compared")
    elif name == "report":
        action.add_argument("--title", metavar="TEXT", help="title of the page (default: metric and sources)")
    elif name == "select":
        action.add_argument("--rerun", type=int, metavar="N", help="rerun the best config with N fresh seeds")
        action.add_argument(
            "--close",
            action="store_true",
            help="with --rerun: also rerun the configs that are statistically indistinguishable from the best",
        )
        action.add_argument("--dry-run", action="store_true", help="with --rerun: list the jobs without starting them")
        add_confirmed(action)
        action.set_defaults(when_interrupted="interrupted; the same command resumes unfinished jobs")


def run(options: argparse.Namespace) -> int:
    """Run the selected action."""
    from trieye.cli import results_actions

    action: Callable[[argparse.Namespace], int] = getattr(results_actions, options.action)
    return action(options)


_TEXTS = {
    "table": "show final scores of each group of runs with confidence intervals",
    "curve": "plot learning curves with confidence intervals",
    "compare": "show which group is better, with probability and difference",
    "sensitivity": "show scores over the values of a hyperparameter, with the others at their best and on average",
    "importance": "show how much each varying key alone affects the score; -o plots parallel coordinates",
    "select": "show the best config and configs not distinguishable from it; optionally rerun them with fresh seeds",
    "report": "write an HTML page with all results that needs no network",
    "export": "export the points of all runs as one table",
}
_OUT = {
    "table": "also write the table to a .csv, .md or .tex file, or plot its intervals to a .png, .svg or .pdf",
    "curve": "plot to this file: .png, .svg or .pdf (default: plot in the terminal)",
    "compare": "also write the pairs to a .csv, .md or .tex file, or plot performance profiles to a .png, .svg or .pdf",
    "sensitivity": "also plot to this file: .png, .svg or .pdf",
    "importance": "also plot the configs as parallel coordinates to this file: .png, .svg or .pdf",
    "report": "file of the page (default: report.html)",
    "export": "file of the table: .parquet, .csv or .feather",
}
"""Help text of -o for each action."""
