"""`trieye ui`: open MLflow, TensorBoard and trieye's report in the browser.

Show a run, an app or a sweep in MLflow, in TensorBoard and in the report of `trieye results`.

All servers run on this machine, accept only local connections, and stop with Ctrl-C. MLflow opens at the page of the
run, sweep or experiment. TensorBoard shows only the selected runs, including runs that start later. The report is
regenerated on each page load. If runs log to an MLflow server, the command links to it and starts no MLflow server.

Examples:
  trieye ui                                    all apps of the project that contains the working directory
  trieye ui my_agent/first
  trieye ui multirun/20260101_120000 --only tensorboard --port 6006
  ssh -L 8000:127.0.0.1:8000 server            in another terminal: tunnel to `trieye ui --port 8000` on the server
"""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from trieye.cli.arguments import add_root

if TYPE_CHECKING:
    from trieye.cli.pages import Page
    from trieye.process.local_servers import LocalServers

KINDS = ("mlflow", "tensorboard", "report")

CHECK_EVERY_S, REFRESH_EVERY_S = 0.5, 10.0
"""Interval between checks of the servers, and between searches for new runs."""

_HIGHEST_PORT = 65535


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    parser.add_argument(
        "reference",
        nargs="?",
        metavar="RUN|APP|SWEEP|DIR",
        help="run, app, sweep or directory to show (default: all apps of the project)",
    )
    parser.add_argument("--only", choices=KINDS, help="show only this page (default: all)")
    parser.add_argument(
        "--port",
        type=_port,
        metavar="N",
        help="port of the first server; the others use free ports (default: a free port)",
    )
    parser.add_argument("--no-browser", action="store_true", help="print the links without opening a browser")
    add_root(parser)


def run(options: argparse.Namespace) -> int:
    """Start the servers, print the links, and wait for Ctrl-C."""
    from trieye.cli.pages import PageSelection, pages_of
    from trieye.exceptions import ConfigurationError
    from trieye.process.local_servers import LocalServers
    from trieye.process.signals import LeaveOnSignal
    from trieye.runs.finding import roots_of

    if options.root is not None and not options.root.is_dir():
        raise ConfigurationError(f"--root {options.root}: no such directory")
    selection = PageSelection(options.reference, roots_of(options.root))
    with LeaveOnSignal("stopping the servers"), LocalServers() as servers:
        pages, notes = pages_of(selection, servers.directory, only=options.only)
        links = list(_links(pages, servers, options.port))
        if servers.names:
            _wait(servers)
        with contextlib.suppress(KeyboardInterrupt):  # the usual way to stop the servers
            _show(links, notes)
            if not options.no_browser and _has_browser():
                import webbrowser

                webbrowser.open(links[0][1])
            if servers.names:
                print("Ctrl-C stops " + " and ".join(servers.names), flush=True)
                _serve(servers, [page.refresh for page in pages if page.refresh is not None])
    return 0


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _HIGHEST_PORT:
        raise argparse.ArgumentTypeError(f"invalid port {text!r}; expected an integer from 1 to {_HIGHEST_PORT}")
    return int(text)


def _links(pages: "Sequence[Page]", servers: "LocalServers", port: int | None) -> Iterator[tuple[str, str]]:
    """Start the servers of the pages, and yield titles and links."""
    for page in pages:
        address = page.address
        if page.command is not None:
            address = servers.start(
                page.title, page.command, health=page.health, port=port, environment=page.environment
            )
            port = None
        yield page.title, f"{address}{page.fragment}"


def _wait(servers: "LocalServers") -> None:
    """Wait until the servers are ready, and show which ones are starting."""
    if not sys.stderr.isatty():
        from trieye.process.progress import say

        say(f"starting {' and '.join(servers.names)}")
        servers.wait(lambda _names, _waited_s: None)
        return
    from trieye.process.terminal import Terminal

    with Terminal(stderr=True).status("") as status:
        servers.wait(lambda names, waited_s: status.update(f"{' and '.join(names)}: starting, {waited_s:.0f} s"))


def _show(links: Sequence[tuple[str, str]], notes: Sequence[str]) -> None:
    from trieye.config.redaction import redacted_text

    width = max(len(title) for title, _ in links)
    for title, link in links:
        print(f"{title:<{width}}  {link}")
    sys.stdout.flush()
    for note in notes:
        print(f"note: {redacted_text(note)}", file=sys.stderr)


def _has_browser() -> bool:
    """Return whether the user would see a browser opened on this machine."""
    if not sys.stdout.isatty():
        return False
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return True
    return sys.platform in {"darwin", "win32"} and "SSH_CONNECTION" not in os.environ


def _serve(servers: "LocalServers", refreshes: Sequence[Callable[[], object]]) -> None:
    """Refresh the pages regularly until a server stops."""
    refreshed_at = time.monotonic()
    while True:
        time.sleep(CHECK_EVERY_S)
        servers.check()
        if time.monotonic() - refreshed_at >= REFRESH_EVERY_S:
            for refresh in refreshes:
                refresh()
            refreshed_at = time.monotonic()
