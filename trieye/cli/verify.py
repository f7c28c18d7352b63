"""`trieye verify`: check the files of a run for damage.

Check the files of a run for damage, and show the progress of its sinks.

The command reads journal, history, checkpoints and buffers completely and changes nothing; the run may be alive.
The exit code is 0 if everything is intact, and 1 if something is damaged.

Examples:
  trieye verify first
  trieye verify my_agent/first --json
"""

import argparse
from dataclasses import asdict
from pathlib import Path

from trieye.cli.arguments import add_run
from trieye.cli.output import show

EXIT_DAMAGED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_run(parser)


def run(options: argparse.Namespace) -> int:
    """Verify the run; return 1 if something is damaged."""
    from trieye.cli.views import render_check
    from trieye.process.terminal import Terminal
    from trieye.runs import verify

    with Terminal(stderr=True).status(f"verifying {Path(options.run_name).name}"):
        check = verify(options.run_name, root=options.root)
    show(options, "verify", {**asdict(check), "is_whole": not check.damage}, [render_check(check)])
    return EXIT_DAMAGED if check.damage else 0
