"""`trieye watch`: show the state of a run in the terminal, live.

Show metrics, rates, the last checkpoint and the sinks of a run, live.

The command reads the status that the run publishes once a second, and changes nothing. It works from any process on the
machine. On a terminal, it ends with the run, after the final state, or at Ctrl-C; a LOST run is watched further, since
it may resume. In a pipe or with --json, it prints the state once.

Examples:
  trieye watch first
  trieye watch first --wait                   before the training is started
  trieye watch my_agent/first --once          print the state once, for scripts and pipes
"""

import argparse
import contextlib
import sys
import time
from pathlib import Path

from trieye.cli.arguments import add_run, seconds
from trieye.cli.output import show

MIN_INTERVAL_S = 0.1
_STARTING_POLL_S = 0.3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_run(parser)
    parser.add_argument(
        "--interval", type=seconds, default=1.0, metavar="S", help="seconds between updates (default: 1)"
    )
    parser.add_argument("--wait", action="store_true", help="wait for the first status of the run, instead of failing")
    parser.add_argument("--once", action="store_true", help="print the state once and exit (default in a pipe)")


def run(options: argparse.Namespace) -> int:
    """Show the run until it ends or Ctrl-C."""
    from rich.live import Live

    from trieye.cli.views import document_of, read_view, render_run
    from trieye.process.terminal import Terminal

    is_live = not (options.once or options.json) and sys.stdout.isatty()
    run_dir = _started(options, is_live=is_live)
    view = read_view(run_dir, None)
    if not is_live:
        while options.wait and view.run.is_alive and not view.status:
            time.sleep(_STARTING_POLL_S)
            view = read_view(run_dir, None)
        show(options, "watch", document_of(view), [render_run(view)])
        return 0
    console = Terminal(soft_wrap=False)
    with (
        contextlib.suppress(KeyboardInterrupt),  # the usual way to stop
        Live(render_run(view, console), console=console, auto_refresh=False) as live,
    ):
        while view.run.status in {"RUNNING", "LOST"}:
            time.sleep(max(options.interval, MIN_INTERVAL_S))
            view = read_view(run_dir, view)
            live.update(render_run(view, console), refresh=True)
    return 0


def _started(options: argparse.Namespace, *, is_live: bool) -> Path:
    """Return the directory of the run; wait for its start with --wait, or if it is starting and the view is live."""
    from trieye.process.progress import say
    from trieye.runs import run_directory
    from trieye.runs.finding import RunMissingError, RunStartingError

    is_reported = False
    while True:
        try:
            return run_directory(options.run_name, root=options.root)
        except RunMissingError as error:
            if not (options.wait or (is_live and isinstance(error, RunStartingError))):
                raise RunMissingError(f"{error}; to wait for its start, add --wait") from None
            if not is_reported:
                say(f"waiting for the start of run {options.run_name!r}; Ctrl-C stops")
            is_reported = True
            time.sleep(_STARTING_POLL_S)
