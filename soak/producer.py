"""A producer of events that appends the numbers of sent and acknowledged events to files, which survive its death."""

import os
import threading
import time
from pathlib import Path
from typing import Any, Literal

RANGE = 100_000_000
"""Steps reserved for one incarnation of a producer; a multiple of every window."""

BURST_S = 0.02


class Producer:
    """Logs events at a fixed rate and records how many were sent and acknowledged.

    Args:
        client: A run or a client of it.
        name: Name of the events.
        incarnation: Number of this incarnation, which determines its range of steps.
        directory: Directory of the counts.
        rate: Events per second.
    """

    def __init__(self, client: Any, name: str, incarnation: int, directory: str, rate: int) -> None:
        self._client, self._name, self._rate = client, name, rate
        self._first = incarnation * RANGE + 1
        self._file = Path(directory) / f"{name}_{incarnation}.json"
        self._stop = threading.Event()
        self._sent = 0
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def pid(self) -> int:
        """Return the process id."""
        return os.getpid()

    def stop(self) -> int:
        """Stop logging and return the number of events, all of them acknowledged."""
        self._stop.set()
        self._thread.join()
        self._confirm()
        return self._sent

    def _work(self) -> None:
        began = time.monotonic()
        while not self._stop.wait(BURST_S):
            due = int((time.monotonic() - began) * self._rate)
            self._record("sent", due)  # before the first of them is logged
            for number in range(self._sent, due):
                self._client.log(self._name, float(number), step=self._first + number)
            self._sent = due
            if due % 7 == 0:
                self._confirm()

    def _confirm(self) -> None:
        sent = self._sent
        self._client.flush()
        self._record("acknowledged", sent)

    def _record(self, kind: Literal["acknowledged", "sent"], number: int) -> None:
        # one appending write: a kill leaves either the old or the new number as the last complete line
        with self._file.with_suffix(f".{kind}").open("ab") as file:
            file.write(b"%d\n" % number)


def event_counts(directory: Path, name: str, incarnation: int) -> tuple[int, int]:
    """Return the numbers of acknowledged and sent events that an incarnation of a producer recorded."""

    def read(kind: Literal["acknowledged", "sent"]) -> int:
        file = directory / f"{name}_{incarnation}.{kind}"
        lines = file.read_text().split("\n")[:-1] if file.exists() else []  # without an incomplete last line
        return int(lines[-1]) if lines else 0

    return read("acknowledged"), read("sent")
