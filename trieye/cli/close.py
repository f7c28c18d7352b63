"""`trieye close`: end a run whose processes were killed."""

import argparse
import sys
import time
from typing import TYPE_CHECKING

from trieye.cli.run_argument import add_run_argument, find_run

if TYPE_CHECKING:
    from trieye.cli.offline_hub import OfflineHub

_EPILOG = """\
A run that is started again needs no closing: its next attempt delivers what the last one left. This is for those that
are not to go on. Nobody may be writing to the run.

examples:
  trieye close first
  trieye close my_agent/first --timeout 30
"""
DEFAULT_TIMEOUT_S = 300.0
EXIT_MISSING = 1
WHEN_INTERRUPTED = "interrupted; nothing is lost: `trieye close` delivers the rest"


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `close` to the commands of the parser."""
    parser = commands.add_parser(
        "close",
        help="deliver what a killed run left, and record it as KILLED",
        description="Deliver what a killed run left in its journal to its sinks, and record the run as KILLED.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_run_argument(parser)
    add_timeout(parser)
    parser.set_defaults(run=run, when_interrupted=WHEN_INTERRUPTED)


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """Add --timeout to a command that waits for sinks."""
    parser.add_argument(
        "--timeout",
        type=float,
        default=DEFAULT_TIMEOUT_S,
        metavar="S",
        help=f"give up after this many seconds in which no sink takes anything (default: {DEFAULT_TIMEOUT_S:.0f})",
    )


def run(options: argparse.Namespace) -> int:
    """Deliver what is left, and record how the run ended.

    Raises:
        ConfigurationError: There is no such run, or its config cannot be read.
        RunLockedError: It is alive.
    """
    from trieye.cli.offline_hub import OfflineHub

    hub = OfflineHub(find_run(options.run_name, options.root))
    if hub.is_done():
        print(f"run {hub.config.run_name!r} is recorded as {hub.status}, and its sinks have everything")
        return 0
    return deliver(hub, options.timeout)


def deliver(hub: "OfflineHub", timeout_s: float) -> int:
    """Deliver with a progress bar, say what came of it, and return the exit code."""
    began = time.monotonic()
    _open_and_wait(hub, timeout_s)
    for finding in hub.findings:
        print(f"warning: {finding}", file=sys.stderr)
    for sink, count in hub.refused().items():
        print(f"warning: {sink} refused {count:,} items; the log of the run says why", file=sys.stderr)
    missing = hub.missing()
    for sink, what in missing.items():
        print(f"error: {sink}: {what}", file=sys.stderr)
    if missing:
        print("`trieye close` goes on where this ended", file=sys.stderr)
        return EXIT_MISSING
    took_s = time.monotonic() - began
    names = ", ".join(hub.sinks()) or "no sink"
    print(f"run {hub.config.run_name!r}: {names}: all {hub.num_items:,} items, in {took_s:.1f} s; {hub.status}")
    return 0


def _open_and_wait(hub: "OfflineHub", timeout_s: float) -> None:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"delivering {hub.config.run_name}", total=None)
        with hub:
            hub.wait(timeout_s, lambda done, total: bar.update(task, completed=done, total=total))
