"""Operations: parameters, tags, artifacts and media of a run, as records in the journal and the history."""

import math
import re

import msgspec

from trieye.stats.point import Point

_INTEGER = re.compile(r"[+-]?(?:0|[1-9][0-9]{0,299})")  # which a float represents, too
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][+-]?[0-9]+)?")


class _Operation(msgspec.Struct, frozen=True, tag=True):
    """Base of all operations; the class name is the tag in stored records."""


class LogParams(_Operation, frozen=True):
    """Record parameters, which never change, in the trackers."""

    params: dict[str, str]


def typed(param: str) -> float | str:
    """Parse a parameter as a bool, an int or a finite float, for sorting and filtering; return other text as is.

    The text must be a plain decimal number: Python would read a number in the run name `20261121_215857_3`, too.
    """
    if param.lower() in {"true", "false"}:
        return param.lower() == "true"
    if _INTEGER.fullmatch(param):
        return int(param)
    number = float(param) if _FLOAT.fullmatch(param) else math.inf
    return number if math.isfinite(number) else param


class SetTags(_Operation, frozen=True):
    """Record tags in the trackers; a later value replaces an earlier one."""

    tags: dict[str, str]


class LogArtifact(_Operation, frozen=True):
    """Send a file or a directory to the trackers; it must not change before delivery.

    Attributes:
        path: Path relative to the run directory, which may be moved.
        artifact_path: Directory within the artifacts of the run; None: their root.
    """

    path: str
    artifact_path: str | None = None


class _Medium(_Operation, frozen=True):
    """Base of media, which are shown at a step.

    Attributes:
        name: Name of the curve or the series.
        step: Global step.
        wall_time: Unix time in seconds.
    """

    name: str
    step: int
    wall_time: float


class LogHistogram(_Medium, frozen=True):
    """The distribution of some values at a step.

    Attributes:
        edges: `[bins + 1]` bin edges, ascending.
        counts: `[bins]` number of values per bin.
        total: Sum of the values.
        sum_squares: Sum of the squared values.
    """

    edges: list[float]
    counts: list[float]
    total: float
    sum_squares: float


class LogImage(_Medium, frozen=True):
    """An image at a step.

    Attributes:
        width: Pixels.
        height: Pixels.
        channels: 1, 3 or 4.
        png: The encoded image.
    """

    width: int
    height: int
    channels: int
    png: bytes


class LogText(_Medium, frozen=True):
    """A text at a step, Markdown where the sink shows it."""

    text: str


class LogVideo(_Medium, frozen=True):
    """A video at a step.

    Attributes:
        width: Pixels.
        height: Pixels.
        num_frames: Number of frames; a GIF stores consecutive equal frames as one.
        fps: Frames per second.
        format: `gif` or `mp4`.
        content: The encoded video.
    """

    width: int
    height: int
    num_frames: int
    fps: float
    format: str
    content: bytes


Cell = str | int | float | bool | None


class LogTable(_Medium, frozen=True):
    """A table at a step.

    Attributes:
        num_rows: Number of rows.
        json: `{"columns": [...], "data": [[...], ...]}`, one list per row.
    """

    num_rows: int
    json: bytes

    def rows(self) -> tuple[list[str], list[list[Cell]]]:
        """Return the column names and the rows."""
        table = msgspec.json.decode(self.json)
        return table["columns"], table["data"]


Medium = LogHistogram | LogImage | LogText | LogVideo | LogTable
Operation = LogParams | SetTags | LogArtifact | Medium
Item = Point | Operation
"""An element of the history of a run; its index is its position."""
