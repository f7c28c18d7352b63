"""`trieye rebuild`: rewrite the sinks of a run.

Rewrite the sinks of a run from its history and its journal.

TensorBoard's event files are deleted and rewritten. MLflow receives all items again and ignores those it already has; a
deleted store is filled again. Weights & Biases would show duplicates, so it is skipped unless selected with --sink.
The command requires that no process is writing to the run. A killed run is recorded as KILLED, as with `trieye close`.

Examples:
  trieye rebuild first                                 all sinks of the run
  trieye rebuild my_agent/first --sink tensorboard     only TensorBoard
"""

import argparse

from trieye.cli.arguments import add_repeatable, add_run, add_timeout


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_run(parser)
    add_repeatable(parser, "--sink", "NAME", "rewrite only this sink; repeatable", dest="sinks")
    add_timeout(parser)


def run(options: argparse.Namespace) -> int:
    """Rewrite the sinks and wait until they are complete."""
    from trieye.cli.delivering import show_delivery
    from trieye.runs import rebuild

    return show_delivery(options, "rebuild", rebuild, options.sinks)
