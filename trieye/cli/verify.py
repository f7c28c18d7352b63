"""`trieye verify`: whether everything that a run keeps is whole.

Check that everything that a run keeps on the disk is whole, and say how far its sinks are.

It reads every byte of the run's journal, history, checkpoints and buffers, and changes nothing; the run may be alive.
The exit code is 0 if everything is whole, and 1 if something is damaged.

Examples:
  trieye verify first
  trieye verify my_agent/first --json
"""

import argparse
import json
from dataclasses import asdict

from trieye.cli.arguments import add_run_argument

EXIT_DAMAGED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_run_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")


def run(options: argparse.Namespace) -> int:
    """Check the run, say what was found, and return whether something is damaged."""
    from trieye.cli.given_run import find_run
    from trieye.cli.inspect import check_run
    from trieye.cli.views import render_check
    from trieye.process.terminal import Terminal

    run_dir = find_run(options.run_name, options.root)
    with Terminal(stderr=True).status(f"verifying {run_dir.name}"):
        found = check_run(run_dir)
    if options.json:
        print(json.dumps({**asdict(found), "run_dir": str(run_dir), "is_whole": not found.damage}, indent=2))
    else:
        Terminal().print(render_check(found))
    return EXIT_DAMAGED if found.damage else 0
