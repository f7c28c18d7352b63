"""`trieye checkpoints`: list the checkpoints of a run.

List the checkpoints of a run, and replay buffers saved by the trieye 0.1.5 API.

A run resumes from the checkpoint marked `latest`. To return to an earlier one, start the run once with
persistence.load_checkpoint_path=best or persistence.load_checkpoint_path=step:1200. Another run starts from the best
checkpoint of run `first` with persistence.load_checkpoint_path=first:best, and from its state at an error, which is
listed, too, with persistence.load_checkpoint_path=first:crash-1200.
Without --verify, only names and sizes are checked. The exit code is 1 if a checkpoint is damaged and not quarantined.

Examples:
  trieye checkpoints first
  trieye checkpoints my_agent/first --verify --json
"""

import argparse
from pathlib import Path

from trieye.cli.arguments import add_run
from trieye.cli.output import show

EXIT_DAMAGED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_run(parser)
    parser.add_argument("--verify", action="store_true", help="read every file and compare it with its checksum")


def run(options: argparse.Namespace) -> int:
    """List the checkpoints; return 1 if one is damaged and not quarantined."""
    from trieye.cli.views import render_saved
    from trieye.process.terminal import Terminal
    from trieye.runs import checkpoints

    with Terminal(stderr=True).status(f"reading {Path(options.run_name).name}"):
        files = checkpoints(options.run_name, root=options.root, checksums=options.verify)
    show(options, "checkpoints", files, [render_saved(files)])
    return EXIT_DAMAGED if any(row.is_broken for row in [*files.checkpoints, *files.buffers, *files.crashes]) else 0
