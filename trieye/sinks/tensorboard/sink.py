"""TensorboardSink: writes event files in which every point appears exactly once, even after crashes."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from trieye.exceptions import SinkGoneError
from trieye.files.atomic import write_atomic
from trieye.sinks.base import RunInfo, RunStatus
from trieye.sinks.tensorboard import summaries as events
from trieye.sinks.tensorboard.files import EventFiles, FilePosition, frame
from trieye.sinks.tensorboard.reading import params_of
from trieye.stats.operations import Medium
from trieye.stats.point import Point

PARAMS_FILE = "events.out.tfevents.0000000000.trieye.hparams"
"""TensorBoard uses the first parameters that it reads, and this name sorts before all other event files."""


class _Position(msgspec.Struct, frozen=True):
    """The position stored in a cursor; the field name is part of the stored format."""

    place: FilePosition = FilePosition()


class ParamsFile:
    """The parameters of a run in a separate event file, which is replaced when one changes.

    Args:
        run: The run.
    """

    def __init__(self, run: RunInfo) -> None:
        self._run, self._path = run, run.tensorboard_dir / PARAMS_FILE
        params, _ = params_of([self._path])
        self._params = {name: str(value) for name, value in params.items()}
        self._is_saved = True

    def update(self, params: Mapping[str, str]) -> None:
        """Set parameters, overwriting earlier values; the next `save` writes them to the file."""
        self._is_saved &= {**self._params, **params} == self._params
        self._params.update(params)

    def save(self) -> None:
        """Rewrite the file if a parameter has changed.

        Raises:
            OSError: The file cannot be written.
        """
        if not self._is_saved:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(
                self._path, frame([*events.header(restarted=False), *events.session_start(self._params, self._run)])
            )
            self._is_saved = True

    def clear(self) -> None:
        """Discard the parameters, and remove the file."""
        self._path.unlink(missing_ok=True)
        self._params, self._is_saved = {}, True


class TensorboardSink:
    """Writes event files, a new one for each attempt of a run, and can return to the position of an earlier attempt.

    Points that share step and wall time share one event, which is several times cheaper than one event per point.
    The HParams dashboard shows the newest value of each parameter; a running TensorBoard shows the values from its
    first read of the run.

    Args:
        flush_interval_s: Maximum seconds that points stay in memory.
    """

    name = "tensorboard"

    def __init__(self, flush_interval_s: float = 2.0) -> None:
        self.flush_interval_s = flush_interval_s

    def open(self, run: RunInfo) -> None:
        """Prepare the files; the first flush with data creates one."""
        self._files = EventFiles(run.tensorboard_dir, run.run_dir)
        self._params = ParamsFile(run)

    @property
    def is_empty(self) -> bool:
        """Whether the event files contain nothing of the run."""
        return self._files.is_empty

    def write(self, points: Sequence[Point]) -> None:
        """Add points; the next flush writes them to the file."""
        self._files.add(events.scalars(points))

    def log_media(self, medium: Medium) -> None:
        """Add a histogram, an image or another medium; the next flush writes it to the file."""
        self._files.add(events.media(medium))

    def log_params(self, params: Mapping[str, str]) -> None:
        """Set parameters; the next flush writes them to their file."""
        self._params.update(params)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Do nothing: TensorBoard does not support tags."""

    def flush(self) -> None:
        """Write all buffered data to the file system."""
        self._params.save()
        self._files.flush()

    def position(self) -> str:
        """Flush, and return the position in the files."""
        self._params.save()
        return msgspec.json.encode(_Position(self._files.flush())).decode()

    def resume(self, position: str | None) -> bool:
        """Return to a position, or return False if the file is missing or changed before the position."""
        try:
            target = _Position() if position is None else msgspec.json.decode(position, type=_Position)
        except msgspec.MsgspecError:  # the format of another version of trieye
            return False
        return self._files.go_back(target.place)

    def clear(self) -> None:
        """Remove the output of all attempts; event files of other writers stay."""
        self._files.clear()
        self._params.clear()

    def close(self, status: RunStatus) -> None:  # noqa: ARG002 - event files have no status
        """Flush and close."""
        try:
            self.flush()
        except SinkGoneError:  # a retry cannot succeed
            self._files.close()
            raise
        self._files.close()


class ScalarWriterSink:
    """Replaces the `tensorboard` sink by a writer of the user, who manages the writer's files and their contents.

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
        """Pass each point to the writer."""
        for point in points:
            self._writer.add_scalar(point.metric, point.value, point.step)

    def flush(self) -> None:
        """Flush the writer."""
        self._writer.flush()

    def close(self, status: RunStatus) -> None:  # noqa: ARG002 - a writer has no status
        """Flush and close the writer."""
        self._writer.flush()
        self._writer.close()
