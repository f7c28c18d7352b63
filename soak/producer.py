"""A producer of events that writes down, outside its process's memory, what it sent and what was acknowledged."""

import os
import threading
import time
from pathlib import Path
from typing import Any

RANGE = 100_000_000
"""Steps of one life of a producer; a multiple of every window."""

BURST_S = 0.02


class Producer:
    """Logs event after event, and writes down what was acknowledged.

    Args:
        client: A run or a client of it.
        name: Name of the events.
        life: Number of this life; the steps of each have a range of their own.
        directory: Where the figures are written.
        rate: Events a second.
    """

    def __init__(self, client: Any, name: str, life: int, directory: str, rate: int) -> None:
        self._client, self._name, self._rate = client, name, rate
        self._first = life * RANGE + 1
        self._file = Path(directory) / f"{name}_{life}.json"
        self._stop = threading.Event()
        self._sent = 0
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def pid(self) -> int:
        """Return the process."""
        return os.getpid()

    def stop(self) -> int:
        """Log no more and return how many events there were, all of them acknowledged."""
        self._stop.set()
        self._thread.join()
        self._confirm()
        return self._sent

    def _work(self) -> None:
        began = time.monotonic()
        while not self._stop.wait(BURST_S):
            due = int((time.monotonic() - began) * self._rate)
            self._note("sent", due)  # before the first of them is logged
            for number in range(self._sent, due):
                self._client.log(self._name, float(number), step=self._first + number)
            self._sent = due
            if due % 7 == 0:
                self._confirm()

    def _confirm(self) -> None:
        sent = self._sent
        self._client.flush()
        self._note("acknowledged", sent)

    def _note(self, what: str, number: int) -> None:
        # in one write, and without emptying the file first: a kill leaves the old number or the new one
        with self._file.with_suffix(f".{what}").open("ab") as file:
            file.write(b"%d\n" % number)


def figures(directory: Path, name: str, life: int) -> tuple[int, int]:
    """Return what a producer wrote down: acknowledged, sent."""

    def read(what: str) -> int:
        file = directory / f"{name}_{life}.{what}"
        lines = (
            file.read_text().split("\n")[:-1] if file.exists() else []
        )  # a last one that is not whole does not count
        return int(lines[-1]) if lines else 0

    return read("acknowledged"), read("sent")
