"""`trieye rm`: delete runs.

Delete runs: the run directory, the copy in the mirror, and the MLflow run (`mlflow gc` empties MLflow's trash).

The command lists directories and sizes, then asks for confirmation. It never deletes a run that is alive. A copy of a
run does not own the MLflow run and the mirror of the original, so only its directory is deleted. Below --root,
directories without run.json (left by a program that was interrupted during startup) can be deleted too. If a deletion
is interrupted, repeat the command. A run that was forked from a deleted run retains the checkpoint it started from.

Examples:
  trieye rm first
  trieye rm my_agent/first my_agent/second --dry-run
  trieye rm first second --yes                        without confirmation, for scripts
"""

import argparse

from trieye.cli.arguments import add_removal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    parser.add_argument(
        "run_names", metavar="RUN", nargs="+", help="run directories, or run names below --root: run or app/run"
    )
    add_removal(parser)


def run(options: argparse.Namespace) -> int:
    """Delete all selected runs, or none if a run cannot be deleted."""
    from trieye.cli.removal import carry_out
    from trieye.runs import remove

    removals = [remove(name, root=options.root, dry_run=True) for name in options.run_names]
    return carry_out(list({removal.run_dir: removal for removal in removals}.values()), options, "rm")
