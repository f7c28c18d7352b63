"""What `trieye ui` starts to show the report of `trieye results` in the browser, made anew each time that it is loaded.

    python -m trieye.cli.report_server PORT HERE PLACE

The directory HERE is where the user stands, from which PLACE and what the page says of paths count.
"""

import html
import os
import shlex
import sys
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from trieye.process.local_servers import HOST

if TYPE_CHECKING:
    from argparse import Namespace

HEALTH = "/health"

_STYLE = "<style>:root{color-scheme:light dark}body{font:1rem/1.5 sans-serif;max-width:50rem;margin:3rem auto}</style>"


def server_command(port: int, here: str, place: str) -> list[str]:
    """Return the words that start the server."""
    return [sys.executable, "-m", __name__, str(port), here, place]


class _Handler(BaseHTTPRequestHandler):
    """Answers with the page of one place; `place` is set by `main`."""

    place = ""
    _one_at_a_time = threading.Lock()  # what draws keeps its style in variables of the process

    def do_GET(self) -> None:
        """Answer with the page, or with why there is none."""
        if _host_of(self.headers.get("Host", "")) not in {
            HOST,
            "localhost",
        }:  # DNS rebinding: the page has another name
            self._answer(HTTPStatus.FORBIDDEN, "")
        elif self.path == HEALTH:
            self._answer(HTTPStatus.OK, "")
        elif self.path.partition("?")[0] != "/":
            self._answer(HTTPStatus.NOT_FOUND, "")
        else:
            with self._one_at_a_time:
                status, page = _page(self.place)
            self._answer(status, page)

    def _answer(self, status: HTTPStatus, page: str) -> None:
        body = page.encode("utf-8", "backslashreplace")
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)


def _host_of(header: str) -> str | None:
    """Return the name in a Host header, which has a port unless that is 80."""
    try:
        return urlsplit(f"//{header}").hostname
    except ValueError:  # half an IPv6 address
        return None


def _page(place: str) -> tuple[HTTPStatus, str]:
    from trieye.cli.results_actions import page_of
    from trieye.cli.results_asked import Asked
    from trieye.exceptions import TrieyeError

    words = ["results", "report", place]
    try:
        return HTTPStatus.OK, page_of(Asked(_options(words)), beside=None)
    except TrieyeError as error:
        title = f"<!DOCTYPE html><html lang=en><meta charset=utf-8><title>no report</title>{_STYLE}<h1>No report</h1>"
        advice = f"By <code>{html.escape(shlex.join(['trieye', *words]))}</code> you can say more."
        return HTTPStatus.OK, f"{title}<p>{html.escape(str(error))}<p>{advice}"


def _options(words: Sequence[str]) -> "Namespace":
    import argparse

    from trieye.cli import results

    parser = argparse.ArgumentParser()
    results.add_arguments(parser)
    return parser.parse_args(words[1:], argparse.Namespace(typed=words))


def main(port: str, here: str, place: str) -> None:
    """Serve until the process is ended."""
    os.chdir(here)  # not at once: modules would be looked for where the user's are
    _Handler.place = place
    ThreadingHTTPServer((HOST, int(port)), _Handler).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
