"""ScalarWriterSink: points to a writer that the user made, such as a SummaryWriter."""

from collections.abc import Sequence
from typing import Any

from trieye.sinks.base import RunInfo, RunStatus
from trieye.stats.point import Point


class ScalarWriterSink:
    """Stands in for the `tensorboard` sink; where the writer writes to, and what is there already, is its own affair.

    Args:
        writer: An object with `add_scalar(name, value, step)`, `flush()` and `close()`.
        flush_interval_s: Seconds between two flushes.
    """

    name = "tensorboard"

    def __init__(self, writer: Any, flush_interval_s: float = 2.0) -> None:
        self.flush_interval_s = flush_interval_s
        self._writer = writer

    def open(self, run: RunInfo) -> None:
        """Do nothing: the writer is open."""

    def write(self, points: Sequence[Point]) -> None:
        """Hand each point to the writer."""
        for point in points:
            self._writer.add_scalar(point.metric, point.value, point.step)

    def flush(self) -> None:
        """Let the writer flush."""
        self._writer.flush()

    def close(self, status: RunStatus) -> None:  # noqa: ARG002 - a writer knows no status
        """Flush and close the writer."""
        self._writer.flush()
        self._writer.close()
