"""TensorboardSink: a run as TensorBoard shows it, every point exactly once whatever happens to the process."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from trieye.exceptions import SinkGoneError
from trieye.sinks.base import RunInfo, RunStatus
from trieye.sinks.tensorboard import summaries as events
from trieye.sinks.tensorboard.files import EventFiles, Place
from trieye.sinks.tensorboard.params import ParamsFile
from trieye.stats.operations import Medium
from trieye.stats.point import Point


class _Position(msgspec.Struct, frozen=True):
    """Where the files are."""

    place: Place = Place()


class TensorboardSink:
    """Writes event files, a new one for each attempt of a run; each can go back to where an earlier attempt was.

    Points that share step and wall time share one event, which is several times cheaper than an event for each.
    Parameters are shown in the HParams dashboard, the newest value of each; a TensorBoard that is running shows those
    that were there when it first read of the run.

    Args:
        flush_interval_s: Seconds that points may stay in memory.
    """

    name = "tensorboard"

    def __init__(self, flush_interval_s: float = 2.0) -> None:
        self.flush_interval_s = flush_interval_s

    def open(self, run: RunInfo) -> None:
        """Prepare; the first file is made by the first flush that has something to write."""
        self._files = EventFiles(run.tensorboard_dir, run.run_dir)
        self._params = ParamsFile(run)

    @property
    def is_empty(self) -> bool:
        """Whether it shows nothing of the run."""
        return self._files.is_empty

    def write(self, points: Sequence[Point]) -> None:
        """Take points; they are in the file after the next flush."""
        self._files.add(events.scalars(points))

    def log_media(self, medium: Medium) -> None:
        """Take a histogram, a picture or another medium; it is in the file after the next flush."""
        self._files.add(events.media(medium))

    def log_params(self, params: Mapping[str, str]) -> None:
        """Take parameters; they are in their file after the next flush."""
        self._params.update(params)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Do nothing: TensorBoard has no place for tags."""

    def log_artifact(self, path: Path, artifact_path: str | None) -> None:
        """Do nothing: TensorBoard has no place for files."""

    def flush(self) -> None:
        """Hand everything to the file system."""
        self._params.save()
        self._files.flush()

    def position(self) -> str:
        """Return where the files are, everything flushed."""
        self._params.save()
        return msgspec.json.encode(_Position(self._files.flush())).decode()

    def resume(self, position: str | None) -> bool:
        """Go back to a position, or return False if the file is gone or is not what it was there."""
        try:
            found = _Position() if position is None else msgspec.json.decode(position, type=_Position)
        except msgspec.MsgspecError:  # of another version of trieye
            return False
        return self._files.go_back(found.place)

    def clear(self) -> None:
        """Take back everything that any attempt wrote; event files of others stay."""
        self._files.clear()
        self._params.clear()

    def close(self, status: RunStatus) -> None:  # noqa: ARG002 - event files hold no status
        """Flush and close."""
        try:
            self.flush()
        except SinkGoneError:  # nobody can write to the file any more
            self._files.close()
            raise
        self._files.close()


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
