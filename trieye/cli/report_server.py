"""HTTP server that `trieye ui` starts for the report of `trieye results`; regenerates the report on each page load.

    python -m trieye.cli.report_server PORT WORKING_DIR SOURCE

WORKING_DIR is the user's working directory; SOURCE and the paths on the page are relative to it.
"""

import html
import os
import re
import shlex
import sys
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from trieye.process.local_servers import HOST

if TYPE_CHECKING:
    from argparse import Namespace

HEALTH = "/health"

_OWN_HOST = re.compile(rf"({re.escape(HOST)}|localhost)(:\d+)?", re.IGNORECASE)
_STYLE = "<style>:root{color-scheme:light dark}body{font:1rem/1.5 sans-serif;max-width:50rem;margin:3rem auto}</style>"


def server_command(working_dir: str, source: str, port: int) -> list[str]:
    """Return the command line of the server."""
    return [sys.executable, "-m", __name__, str(port), working_dir, source]


class _Handler(BaseHTTPRequestHandler):
    """Serves the report of one source; `main` sets `source`."""

    source = ""
    _lock = threading.Lock()  # one page at a time: matplotlib keeps its style in process-wide variables

    def do_GET(self) -> None:
        """Answer with the report, or with a page that gives the error."""
        # against DNS rebinding, where the Host header has the attacker's name
        if not _OWN_HOST.fullmatch(self.headers.get("Host", "")):
            self._answer(HTTPStatus.FORBIDDEN, "")
        elif self.path == HEALTH:
            self._answer(HTTPStatus.OK, "")
        elif self.path.partition("?")[0] != "/":
            self._answer(HTTPStatus.NOT_FOUND, "")
        else:
            with self._lock:
                status, page = _page(self.source)
            self._answer(status, page)

    def _answer(self, status: HTTPStatus, page: str) -> None:
        body = page.encode("utf-8", "backslashreplace")
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)


def _page(source: str) -> tuple[HTTPStatus, str]:
    from trieye.cli.results_actions import page_of
    from trieye.cli.run_selection import RunSelection
    from trieye.config.packages import explaining
    from trieye.exceptions import TrieyeError

    words = ["results", "report", source]
    try:
        with explaining("the report"):
            return HTTPStatus.OK, page_of(RunSelection(_options(words)), directory=None)
    except TrieyeError as error:
        title = f"<!DOCTYPE html><html lang=en><meta charset=utf-8><title>no report</title>{_STYLE}<h1>No report</h1>"
        advice = (
            f"<code>{html.escape(shlex.join(['trieye', *words]))}</code> accepts further options, such as --metric."
        )
        return HTTPStatus.OK, f"{title}<p>{html.escape(str(error))}<p>{advice}"


def _options(words: Sequence[str]) -> "Namespace":
    import argparse

    from trieye.cli import results

    parser = argparse.ArgumentParser()
    results.add_arguments(parser)
    return parser.parse_args(words[1:], argparse.Namespace(typed=words))


def main(port: str, working_dir: str, source: str) -> None:
    """Serve until the process is terminated."""
    os.chdir(working_dir)  # after the imports, or `python -m` would import the user's modules
    _Handler.source = source
    ThreadingHTTPServer((HOST, int(port)), _Handler).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
