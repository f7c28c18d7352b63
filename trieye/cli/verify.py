"""`trieye verify`: whether everything that a run keeps is whole.

Check that everything that a run keeps on the disk is whole, and say how far its sinks are.

It reads every byte of the run's journal, history, checkpoints and buffers, and changes nothing; the run may be alive.
The exit code is 0 if everything is whole, and 1 if something is damaged.

Examples:
  trieye verify first
  trieye verify my_agent/first --json
"""

import argparse
from dataclasses import asdict
from pathlib import Path

from trieye.cli.arguments import add_run

EXIT_DAMAGED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_run(parser)


def run(options: argparse.Namespace) -> int:
    """Verify the run, and return whether something is damaged."""
    from trieye.cli.output import print_json
    from trieye.cli.views import render_check
    from trieye.process.terminal import Terminal
    from trieye.runs import verify

    with Terminal(stderr=True).status(f"verifying {Path(options.run_name).name}"):
        check = verify(options.run_name, root=options.root)
    if options.json:
        print_json("verify", {**asdict(check), "is_whole": not check.damage})
    else:
        Terminal().print(render_check(check))
    return EXIT_DAMAGED if check.damage else 0
