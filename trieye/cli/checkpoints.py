"""`trieye checkpoints`: what a run has saved."""

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trieye.cli.run_argument import add_run_argument, find_run
from trieye.files.run_files import BUFFER_PREFIX, BUFFERS, CHECKPOINT_PREFIX, CHECKPOINTS, RUN_RECORD

if TYPE_CHECKING:
    from trieye.cli.saved_files import Saved

_EPILOG = """\
A run goes on from the checkpoint marked `latest`. To go back, start it once with
persistence.load_checkpoint_path=best or persistence.load_checkpoint_path=step:1200; another run starts from it with
persistence.load_checkpoint_path=first:best.
Without --verify only names and sizes are looked at. The exit code is 1 if something is damaged that was not set aside.

examples:
  trieye checkpoints first
  trieye checkpoints my_agent/first --verify --json
"""
EXIT_DAMAGED = 1
DIRECTORIES = (CHECKPOINTS, BUFFERS)


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `checkpoints` to the commands of the parser."""
    parser = commands.add_parser(
        "checkpoints",
        help="list what a run has saved",
        description="List the checkpoints of a run, and the buffers that the drop-in API saved with them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_run_argument(parser)
    parser.add_argument("--verify", action="store_true", help="read every byte and compare it with its checksum")
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """List what was saved, and return whether something is damaged.

    Raises:
        ConfigurationError: There is no such run.
    """
    from rich.console import Console

    from trieye.cli.saved_files import disk_bytes

    run_dir = find_run(options.run_name, options.root, marks=(RUN_RECORD, *DIRECTORIES))
    with Console(stderr=True).status(f"reading {run_dir.name}"):
        checkpoints, buffers, directories = _saved_of(run_dir, checksums=options.verify)
        size_bytes = sum(disk_bytes(directory) for directory in directories)
    if options.json:
        rows = {"checkpoints": _plain(checkpoints), "buffers": _plain(buffers)}
        print(json.dumps({"run_dir": str(run_dir), "disk_bytes": size_bytes, **rows}, indent=2))
    else:
        from trieye.cli.saved_view import render_saved

        Console().print(render_saved(run_dir, checkpoints, buffers, size_bytes))
    return (
        EXIT_DAMAGED if any(saved.state in {"partial", "damaged", "link"} for saved in [*checkpoints, *buffers]) else 0
    )


def _saved_of(run_dir: Path, *, checksums: bool) -> tuple[list["Saved"], list["Saved"], list[Path]]:
    from trieye.cli.run_config import recorded_config
    from trieye.cli.saved_files import saved_in
    from trieye.config import PersistenceConfig
    from trieye.exceptions import ConfigurationError

    try:
        names = recorded_config(run_dir).persistence
    except ConfigurationError:  # it is damaged, or of trieye 0.1.5; `trieye verify` says so
        names = PersistenceConfig()
    directories = [run_dir / names.checkpoint_save_dir_name, run_dir / names.buffer_save_dir_name]
    checkpoints = saved_in(directories[0], CHECKPOINT_PREFIX, checksums=checksums)
    buffers = saved_in(directories[1], BUFFER_PREFIX, checksums=checksums)
    return _marked(checkpoints), buffers, directories


def _marked(found: list["Saved"]) -> list["Saved"]:
    """Mark what `load_checkpoint_path=latest` and `=best` mean; a run decides the same when it starts."""
    usable = [saved for saved in found if saved.is_usable]
    if not usable:
        return found
    latest = usable[-1]
    sign = 1 if latest.mode == "max" else -1
    rated = [saved for saved in usable if saved.objective is not None] or [s for s in usable if s.is_rated]
    best = max(rated, key=lambda saved: (sign * (saved.objective or 0.0), saved.sequence), default=None)
    marks = {latest.name: ("latest",)}
    if best is not None:
        marks[best.name] = ("best", *marks.get(best.name, ()))
    return [replace(saved, marks=marks.get(saved.name, ())) for saved in found]


def _plain(rows: list["Saved"]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]
