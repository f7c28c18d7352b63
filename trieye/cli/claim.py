"""`trieye claim`: record the new directory of a moved run.

Record the directory of a run as the owner of its MLflow run and its mirror.

A run writes to its MLflow run and its mirror from one directory only, so that a copy cannot damage them. A renamed
directory is recognized. After a move to another file system or machine, this command declares the directory to be the
run itself, not a copy. It refuses a copy whose original still exists; use `trieye fork` to start an independent run
from the state of a copy.

Examples:
  trieye claim first
  trieye claim .trieye_data/my_agent/runs/*             all runs of an app
"""

import argparse

from trieye.cli.arguments import add_run
from trieye.cli.output import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_run(parser, count="+")


def run(options: argparse.Namespace) -> int:
    """Record the selected run directories as owners."""
    from trieye import runs

    directories = [runs.claim(name, root=options.root) for name in options.run_names]
    lines = (f"{run_dir} owns the MLflow run and the mirror of run {run_dir.name!r}" for run_dir in directories)
    show(options, "claim", {"run_dirs": directories}, lines)
    return 0
