"""`trieye close`: end a run whose processes were killed.

Deliver what a killed run left in its journal to its sinks, and record the run as KILLED.

A run that is started again needs no closing: its next attempt delivers what the last one left. This is for those that
are not to go on. Nobody may be writing to the run.

Examples:
  trieye close first
  trieye close my_agent/first --timeout 30
"""

import argparse

from trieye.cli.arguments import add_run, add_timeout


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_run(parser)
    add_timeout(parser)


def run(options: argparse.Namespace) -> int:
    """Deliver what is left, and record how the run ended."""
    from trieye.cli.delivering import show_delivery
    from trieye.runs import close

    return show_delivery(options, "close", close)
