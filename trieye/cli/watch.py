"""`trieye watch`: what a run is doing, in the terminal."""

import argparse
import contextlib
import sys
import time
from pathlib import Path

from trieye.cli.run_argument import add_run_argument, find_run

_EPILOG = """\
It reads what the run writes down once a second, from any process on the machine, and changes nothing. Ctrl-C ends it.

examples:
  trieye watch first
  trieye watch my_agent/first --once          one look, for scripts and pipes
"""
MIN_INTERVAL_S = 0.1


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `watch` to the commands of the parser."""
    parser = commands.add_parser(
        "watch",
        help="live view of a run: metrics, rates, sinks, checkpoints",
        description="Show metrics, rates, the last checkpoint and the sinks of a run, live.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_run_argument(parser)
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="S", help="seconds between two looks (default: 1)"
    )
    parser.add_argument("--once", action="store_true", help="one look; also what a pipe gets")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Show the run until Ctrl-C.

    Raises:
        ConfigurationError: There is no such run, or it was deleted.
    """
    run_dir = find_run(options.run_name, options.root)
    if options.once or not sys.stdout.isatty():
        _look_once(run_dir)
        return 0
    with contextlib.suppress(KeyboardInterrupt):  # the usual way to end it
        _look_on(run_dir, max(options.interval, MIN_INTERVAL_S))
    return 0


def _look_once(run_dir: Path) -> None:
    from rich.console import Console

    from trieye.cli.run_view import read_view, render

    Console().print(render(read_view(run_dir, None)))


def _look_on(run_dir: Path, interval_s: float) -> None:
    from rich.console import Console
    from rich.live import Live

    from trieye.cli.run_view import read_view, render

    console = Console()
    view = read_view(run_dir, None)
    with Live(render(view, console), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(interval_s)
            view = read_view(run_dir, view)
            live.update(render(view, console), refresh=True)
