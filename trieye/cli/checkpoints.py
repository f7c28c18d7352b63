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
import json
from dataclasses import asdict

from trieye.cli.arguments import add_run_argument

EXIT_DAMAGED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_run_argument(parser)
    parser.add_argument("--verify", action="store_true", help="read every byte and compare it with its checksum")
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")


def run(options: argparse.Namespace) -> int:
    """List what was saved, and return whether something is damaged."""
    from trieye.cli.given_run import SAVED_DIRECTORIES, find_run, recorded_config
    from trieye.cli.saved import disk_bytes, marked, saved_in
    from trieye.cli.views import render_saved
    from trieye.config import PersistenceConfig
    from trieye.exceptions import ConfigurationError
    from trieye.files.run_files import BUFFER_PREFIX, CHECKPOINT_PREFIX, RUN_RECORD
    from trieye.process.terminal import Terminal

    run_dir = find_run(options.run_name, options.root, marks=(RUN_RECORD, *SAVED_DIRECTORIES))
    try:
        names = recorded_config(run_dir).persistence
    except ConfigurationError:  # it is damaged, or of trieye 0.1.5; `trieye verify` says so
        names = PersistenceConfig()
    directories = [run_dir / names.checkpoint_save_dir_name, run_dir / names.buffer_save_dir_name]
    with Terminal(stderr=True).status(f"reading {run_dir.name}"):
        checkpoints = marked(saved_in(directories[0], CHECKPOINT_PREFIX, checksums=options.verify))
        buffers = saved_in(directories[1], BUFFER_PREFIX, checksums=options.verify)
        size_bytes = disk_bytes(*directories)
    if options.json:
        rows = {"checkpoints": [asdict(row) for row in checkpoints], "buffers": [asdict(row) for row in buffers]}
        print(json.dumps({"run_dir": str(run_dir), "disk_bytes": size_bytes, **rows}, indent=2))
    else:
        Terminal().print(render_saved(run_dir, checkpoints, buffers, size_bytes))
    return EXIT_DAMAGED if any(saved.is_broken for saved in [*checkpoints, *buffers]) else 0
