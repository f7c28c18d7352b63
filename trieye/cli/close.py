"""`trieye close`: end a run whose processes were killed.

Deliver what a killed run left in its journal to its sinks, and record the run as KILLED.

A run that is started again needs no closing: its next attempt delivers what the last one left. This is for those that
are not to go on. Nobody may be writing to the run.

Examples:
  trieye close first
  trieye close my_agent/first --timeout 30
"""

import argparse

from trieye.cli.arguments import add_run_argument, add_timeout


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_run_argument(parser)
    add_timeout(parser)


def run(options: argparse.Namespace) -> int:
    """Deliver what is left, and record how the run ended."""
    from trieye.cli.delivery import deliver, idle_run, is_delivered
    from trieye.cli.given_run import find_run, sinks_of

    run_dir = find_run(options.run_name, options.root)
    record, config = idle_run(run_dir)
    sinks = sinks_of(config)
    if is_delivered(run_dir, record, sinks):
        # by name: of the sinks that a program gives to `Run(sinks=...)` nobody else knows anything
        names = " and ".join(sinks) or "no sink"
        print(f"run {config.run_name!r} is recorded as {record.status}, and nothing is missing in {names}")
        return 0
    return deliver(config, options.timeout)
