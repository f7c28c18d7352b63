"""`trieye watch`: what a run is doing, in the terminal.

Show metrics, rates, the last checkpoint and the sinks of a run, live.

It reads what the run writes down once a second, from any process on the machine, and changes nothing. Ctrl-C ends it.

Examples:
  trieye watch first
  trieye watch my_agent/first --once          one look, for scripts and pipes
"""

import argparse
import contextlib
import sys
import time

from trieye.cli.arguments import add_run

MIN_INTERVAL_S = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_run(parser)
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="S", help="seconds between two updates (default: 1)"
    )
    parser.add_argument("--once", action="store_true", help="print the state once, as into a pipe")


def run(options: argparse.Namespace) -> int:
    """Show the run until Ctrl-C."""
    from rich.live import Live

    from trieye.cli.output import print_json
    from trieye.cli.views import document_of, read_view, render_run
    from trieye.process.terminal import Terminal
    from trieye.runs import run_directory

    run_dir, console = run_directory(options.run_name, root=options.root), Terminal(soft_wrap=False)
    if options.once or options.json or not sys.stdout.isatty():
        view = read_view(run_dir, None)
        if options.json:
            print_json("watch", document_of(view))
        else:
            console.print(render_run(view))
        return 0
    with contextlib.suppress(KeyboardInterrupt):  # the usual way to end it
        view = read_view(run_dir, None)
        with Live(render_run(view, console), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(max(options.interval, MIN_INTERVAL_S))
                view = read_view(run_dir, view)
                live.update(render_run(view, console), refresh=True)
    return 0
