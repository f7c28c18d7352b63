"""`trieye import`: runs of other programs as runs of an app.

Make runs of what other programs have logged, so that `trieye results` and `trieye ui` show them beside today's.

KIND is tensorboard (a directory with event files below it, a run each), mlflow (its database, or a directory mlruns)
or wandb-offline (a directory wandb, or one of its files). Numbers come with their steps and times, and parameters as
far as they were recorded; pictures and files stay where they are. What is there is never changed. A run that was
imported before is left as it is, and one that was interrupted is imported anew.

Examples:
  trieye import tensorboard runs                     each directory with event files, as a run of the app `runs`
  trieye import mlflow mlruns/mlflow.db --app old    every run that is in the database
  trieye import wandb-offline wandb                  what wandb wrote with WANDB_MODE=offline
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from trieye.cli.arguments import DEFAULT_ROOT, add_json, add_root

EXIT_FAILED = 1
KINDS = ("tensorboard", "mlflow", "wandb-offline")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    parser.add_argument("kind", metavar="KIND", choices=KINDS, help=f"what wrote them: {', '.join(KINDS)}")
    parser.add_argument("path", metavar="PATH", type=Path, help="where they are")
    parser.add_argument("--app", metavar="NAME", help="name of the app (default: what the other program calls it)")
    add_root(parser, Path(DEFAULT_ROOT))
    add_json(parser)
    parser.set_defaults(when_interrupted="interrupted; the same command goes on with the runs that are left")


def run(options: argparse.Namespace) -> int:
    """Import the runs one by one, say what came of each, and return whether something was left out."""
    from trieye.cli.output import print_json
    from trieye.exceptions import TrieyeError
    from trieye.integrations.importing import import_run, runs_at
    from trieye.results.runs import Problems

    problems, imported = Problems(), list[dict[str, Any]]()
    found = runs_at(options.kind, options.path, problems)
    for number, one in enumerate(found, 1):
        try:
            made = import_run(one, root=options.root, app=options.app)
        except TrieyeError as error:
            problems.leave_out(one.path, error)
            continue
        imported.append({"path": one.path, "run_dir": made.directory, **made._asdict()})
        del imported[-1]["directory"]
        lost = f", {made.num_left_out:,} that are NaN or infinite left out" if made.num_left_out else ""
        told = f"{made.num_metrics} metrics, {made.num_points:,} points{lost}" if made.is_new else "was imported before"
        if not options.json:
            print(f"[{number}/{len(found)}] {one.path} -> {made.directory}: {told}", flush=True)
    if options.json:
        print_json("import", {"runs": imported, "problems": list(problems.texts)})
        return EXIT_FAILED if problems.num_left_out else 0
    for text in problems.texts:
        print(f"note: {text}", file=sys.stderr)
    apps = sorted({str(Path(options.root) / (options.app or one.app)) for one in found})
    print(f"`trieye results table {' '.join(apps)}` compares them")
    return EXIT_FAILED if problems.num_left_out else 0
