"""`trieye rm`: delete runs.

Delete runs: the directory, the copy in the mirror, and the run in MLflow, which its trash keeps until `mlflow gc`.

What is to be deleted is shown with its size, and then you are asked. A run that is alive is never deleted. Checkpoints
that another run went on from stay with that run.

Examples:
  trieye rm first
  trieye rm my_agent/first my_agent/second --dry-run
  trieye rm first second --yes                        without a question, for scripts
"""

import argparse

from trieye.cli.arguments import add_removal, add_root


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    parser.add_argument(
        "run_names", metavar="RUN", nargs="+", help="directories of runs, or names below --root: run or app/run"
    )
    add_root(parser)
    add_removal(parser)


def run(options: argparse.Namespace) -> int:
    """Delete the runs that were named, if all of them can be."""
    from trieye.cli.given_run import find_run
    from trieye.cli.removal import Removal, carry_out

    found = dict.fromkeys(find_run(name, options.root) for name in options.run_names)
    return carry_out([Removal.of(run_dir) for run_dir in found], options)
