"""`trieye import`: import runs that other programs logged to TensorBoard, MLflow or wandb.

Import runs that other programs logged, so that `trieye results` and `trieye ui` show them together with trieye runs.

KIND is tensorboard (a directory tree with event files; each directory becomes a run), mlflow (its database, or an
mlruns directory) or wandb-offline (a wandb directory, or one of its files). Scalars are imported with their steps and
times, and recorded parameters; images and artifacts are not imported. The source files are never changed. Runs that
were already imported are skipped; an interrupted import of a run starts again.

Examples:
  trieye import tensorboard runs                     each directory with event files becomes a run of the app `runs`
  trieye import mlflow mlruns/mlflow.db --app old    all runs in the database
  trieye import wandb-offline wandb                  runs recorded with WANDB_MODE=offline
"""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from trieye.cli.arguments import DEFAULT_ROOT, add_json, add_root

EXIT_FAILED = 1
KINDS = ("tensorboard", "mlflow", "wandb-offline")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    parser.add_argument("kind", metavar="KIND", choices=KINDS, help=f"source format: {', '.join(KINDS)}")
    parser.add_argument("path", metavar="PATH", type=Path, help="directory, database or file to import from")
    parser.add_argument(
        "--app", metavar="NAME", help="app of the imported runs (default: experiment, project or directory name)"
    )
    add_root(parser, Path(DEFAULT_ROOT))
    add_json(parser)
    parser.set_defaults(when_interrupted="interrupted; the same command imports the remaining runs")


def run(options: argparse.Namespace) -> int:
    """Import the runs one by one, report each one, and return 1 if any was skipped because of an error."""
    from trieye.cli.output import print_json
    from trieye.exceptions import TrieyeError
    from trieye.integrations.importing import import_run, runs_at
    from trieye.results.runs import Problems

    problems, imported_runs = Problems(), list[dict[str, Any]]()
    foreign_runs = runs_at(options.kind, options.path, problems)
    for index, foreign_run in enumerate(foreign_runs, 1):
        try:
            result = import_run(foreign_run, root=options.root, app=options.app, problems=problems)
        except TrieyeError as error:
            problems.leave_out(foreign_run.path, error)
            continue
        imported_runs.append({"path": foreign_run.path, "run_dir": result.directory, **result._asdict()})
        del imported_runs[-1]["directory"]
        summary = f"{result.num_metrics} metrics, {result.num_points:,} points" if result.is_new else "already imported"
        if result.is_new and result.num_left_out:
            summary += f", {result.num_left_out:,} NaN or infinite values skipped"
        line = f"[{index}/{len(foreign_runs)}] {foreign_run.path} -> {result.directory}: {summary}"
        print(line, file=sys.stderr if options.json else sys.stdout, flush=True)
    for text in problems.texts:
        print(f"note: {text}", file=sys.stderr)
    apps = sorted({str(Path(options.root) / run["run_dir"].parents[1].name) for run in imported_runs})
    if options.json:
        print_json("import", {"runs": imported_runs, "problems": list(problems.texts)})
    elif apps:
        print(f"compare them: trieye results table {shlex.join(apps)}")
    return EXIT_FAILED if problems.num_left_out else 0
