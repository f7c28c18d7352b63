"""`trieye rm`: delete runs.

Delete runs: the directory, the copy in the mirror, and the run in MLflow, which its trash keeps until `mlflow gc`.

The command lists directories and sizes, then asks for confirmation. It never deletes a run that is alive. A copy of a
run does not own the MLflow run and the mirror of the original, so only its directory is deleted. Below --root,
directories without run.json (of a program that was interrupted at once) can be deleted, too. Checkpoints that another
run started from stay with that run.

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
        "run_names", metavar="RUN", nargs="+", help="directories of runs, or names below --root: run or app/run"
    )
    add_removal(parser)


def run(options: argparse.Namespace) -> int:
    """Delete the named runs, if all of them can be deleted."""
    from trieye.cli.removal import carry_out
    from trieye.runs import remove

    removals = [remove(name, root=options.root, dry_run=True) for name in options.run_names]
    return carry_out(list({removal.run_dir: removal for removal in removals}.values()), options, "rm")
