"""`trieye verify`: whether everything that a run keeps is whole."""

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from trieye.cli.run_argument import add_run_argument, find_run

if TYPE_CHECKING:
    from trieye.cli.run_check import RunCheck

_EPILOG = """\
It reads every byte of the run's journal, history, checkpoints and buffers, and changes nothing; the run may be alive.
The exit code is 0 if everything is whole, and 1 if something is damaged.

examples:
  trieye verify first
  trieye verify my_agent/first --json
"""
EXIT_DAMAGED = 1


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `verify` to the commands of the parser."""
    parser = commands.add_parser(
        "verify",
        help="check that everything of a run is whole",
        description="Check that everything that a run keeps on the disk is whole, and say how far its sinks are.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_run_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Check the run, say what was found, and return whether something is damaged.

    Raises:
        ConfigurationError: There is no such run.
    """
    from rich.console import Console

    from trieye.cli.run_check import check_run

    run_dir = find_run(options.run_name, options.root)
    with Console(stderr=True).status(f"verifying {run_dir.name}"):
        found = check_run(run_dir)
    if options.json:
        print(json.dumps(_plain(found), indent=2))
    else:
        from trieye.cli.check_view import render_check

        Console().print(render_check(found))
    return EXIT_DAMAGED if found.damage else 0


def _plain(found: "RunCheck") -> dict[str, Any]:
    return {**asdict(found), "run_dir": str(found.run_dir), "is_whole": not found.damage}
