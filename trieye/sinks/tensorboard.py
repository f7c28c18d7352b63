"""TensorboardSink: points in event files, written by tensorboard's own protobufs."""

import itertools
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from trieye.sinks.base import RunInfo, RunStatus
from trieye.sinks.event_records import frame
from trieye.stats.point import Point

_file_numbers = itertools.count()
_MAX_VALUES_PER_EVENT = 64


class TensorboardSink:
    """Writes one new event file for each attempt of a run.

    Points that share step and wall time share one event, which is several times cheaper than an event for each.

    Args:
        flush_interval_s: Seconds that points may stay in memory.
        writer: An object with `add_scalar(name, value, step)`, `flush()` and `close()` that is used instead of a file.
    """

    name = "tensorboard"

    def __init__(self, flush_interval_s: float = 2.0, writer: Any = None) -> None:
        self.flush_interval_s = flush_interval_s
        self._writer = writer

    def open(self, run: RunInfo) -> None:
        """Create the event file, unless a writer was given."""
        if self._writer is None:
            self._writer = EventFile(run.tensorboard_dir)

    def write(self, points: Sequence[Point]) -> None:
        """Take points; they are in the file after the next flush."""
        if isinstance(self._writer, EventFile):
            self._writer.add(points)
            return
        for point in points:
            self._writer.add_scalar(point.metric, point.value, point.step)

    def flush(self) -> None:
        """Hand everything to the file system."""
        self._writer.flush()

    def close(self, status: RunStatus) -> None:  # noqa: ARG002 - event files hold no status
        """Flush and close."""
        self._writer.flush()
        self._writer.close()


class EventFile:
    """An event file that is being written.

    Writing goes to memory and a failed flush leaves the rest there, so that neither is ever half done twice.
    """

    def __init__(self, directory: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._event, self._summary, self._value = Event, Summary, Summary.Value
        self._pending = bytearray()
        self._file = _create(directory)
        self._pending += frame([Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString()])
        self.flush()

    def add(self, points: Sequence[Point]) -> None:
        """Add points; those that share step and wall time come together, at the place of the first."""
        limit = _MAX_VALUES_PER_EVENT
        groups: dict[tuple[int, float], list[Any]] = {}
        for point in points:
            try:
                value = self._value(tag=point.metric, simple_value=point.value)
            except UnicodeEncodeError:  # a lone surrogate, as file names that are no UTF-8 have
                tag = point.metric.encode("utf-8", "backslashreplace").decode()
                value = self._value(tag=tag, simple_value=point.value)
            groups.setdefault((point.step, point.wall_time), []).append(value)
        events = (
            self._event(step=step, wall_time=wall_time, summary=self._summary(value=values[start : start + limit]))
            for (step, wall_time), values in groups.items()
            for start in range(0, len(values), limit)
        )
        self._pending += frame([event.SerializeToString() for event in events])

    def flush(self) -> None:
        """Hand everything to the file system.

        Raises:
            OSError: The disk is full, for example; the rest stays in memory.
        """
        while self._pending:
            del self._pending[: self._file.write(self._pending)]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _create(directory: Path) -> BinaryIO:
    directory.mkdir(parents=True, exist_ok=True)
    for number in _file_numbers:
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{number}"
        try:
            return (directory / name).open("xb", buffering=0)
        except FileExistsError:  # an attempt in another container, with the same process id
            continue
    raise AssertionError("unreachable")
