"""`trieye close`: finish a run whose processes were killed.

Deliver the pending events in the journal of a killed run to its sinks, and record the run as KILLED.

Use it for a run that you do not resume: when a run resumes, its next attempt delivers the pending events. The command
requires that no process is writing to the run.

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
    """Deliver the pending events and record the final status."""
    from trieye.cli.delivering import show_delivery
    from trieye.runs import close

    return show_delivery(options, "close", close)
