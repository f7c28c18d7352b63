"""`trieye checkpoints`: what a run has saved.

List the checkpoints of a run, and the buffers that the drop-in API saved with them.

A run goes on from the checkpoint marked `latest`. To go back, start it once with
persistence.load_checkpoint_path=best or persistence.load_checkpoint_path=step:1200; another run starts from it with
persistence.load_checkpoint_path=first:best.
Without --verify only names and sizes are looked at. The exit code is 1 if something is damaged that was not set aside.

Examples:
  trieye checkpoints first
  trieye checkpoints my_agent/first --verify --json
"""

import argparse
from pathlib import Path

from trieye.cli.arguments import add_run

EXIT_DAMAGED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_run(parser)
    parser.add_argument("--verify", action="store_true", help="read every byte and compare it with its checksum")


def run(options: argparse.Namespace) -> int:
    """List what was saved, and return whether something is damaged."""
    from trieye.cli.output import print_json
    from trieye.cli.views import render_saved
    from trieye.process.terminal import Terminal
    from trieye.runs import checkpoints

    with Terminal(stderr=True).status(f"reading {Path(options.run_name).name}"):
        saved = checkpoints(options.run_name, root=options.root, checksums=options.verify)
    if options.json:
        print_json("checkpoints", saved)
    else:
        Terminal().print(render_saved(saved))
    return EXIT_DAMAGED if any(row.is_broken for row in [*saved.checkpoints, *saved.buffers]) else 0
