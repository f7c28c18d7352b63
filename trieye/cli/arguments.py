"""Arguments that several commands have; importing them loads nothing, so that `--help` is there at once."""

import argparse
from pathlib import Path

DEFAULT_ROOT = ".trieye_data"
DEFAULT_TIMEOUT_S = 300.0


def add_run_argument(parser: argparse.ArgumentParser) -> None:
    """Add RUN and --root to a command."""
    parser.add_argument("run_name", metavar="RUN", help="directory of a run, or its name below --root: run or app/run")
    add_root(parser)


def add_root(parser: argparse.ArgumentParser) -> None:
    """Add --root to a command."""
    parser.add_argument(
        "--root",
        type=Path,
        default=Path(DEFAULT_ROOT),
        metavar="DIR",
        help=f"directory of all apps (default: {DEFAULT_ROOT})",
    )


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """Add --timeout to a command that delivers, and what the command says when it is interrupted."""
    parser.add_argument(
        "--timeout",
        type=float,
        default=DEFAULT_TIMEOUT_S,
        metavar="S",
        help=f"give up after this many seconds in which no sink takes anything (default: {DEFAULT_TIMEOUT_S:.0f})",
    )
    parser.set_defaults(when_interrupted="interrupted; nothing is lost: `trieye close` delivers the rest")


def add_removal(parser: argparse.ArgumentParser) -> None:
    """Add what all commands have that delete."""
    parser.add_argument("--dry-run", action="store_true", help="show what would be deleted, and delete nothing")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.set_defaults(when_interrupted="interrupted; what was not deleted yet is still there")
