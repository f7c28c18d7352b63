"""Operations: what a run records besides points, as values that can wait in the journal and in the history."""

import msgspec

from trieye.stats.point import Point


class _Operation(msgspec.Struct, frozen=True, tag=True):
    """Base of all operations; the name of the class is its tag in the file."""


class LogParams(_Operation, frozen=True):
    """Record parameters, which never change, with the trackers."""

    params: dict[str, str]


class SetTags(_Operation, frozen=True):
    """Record tags, of which a later value replaces an earlier one, with the trackers."""

    tags: dict[str, str]


class LogArtifact(_Operation, frozen=True):
    """Hand a file or a directory to the trackers; it has to stay as it is until then.

    Attributes:
        path: Where it is, from the directory of the run, which may be moved.
        artifact_path: Folder among the artifacts of the run; None: their root.
    """

    path: str
    artifact_path: str | None = None


class _Medium(_Operation, frozen=True):
    """What is looked at, at a step.

    Attributes:
        name: Name of the curve, or of the series.
        step: Global step.
        wall_time: Unix time in seconds.
    """

    name: str
    step: int
    wall_time: float


class LogHistogram(_Medium, frozen=True):
    """The distribution of some values at a step.

    Attributes:
        edges: `[bins + 1]` borders of the bins, ascending.
        counts: `[bins]` values in each bin.
        total: Sum of the values.
        sum_squares: Sum of their squares.
    """

    edges: list[float]
    counts: list[float]
    total: float
    sum_squares: float


class LogImage(_Medium, frozen=True):
    """A picture at a step.

    Attributes:
        width: Pixels.
        height: Pixels.
        channels: 1, 3 or 4.
        png: The encoded picture.
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
        num_frames: How many frames it has; a GIF keeps equal ones that follow each other as one.
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
        num_rows: How many rows it has.
        json: `{"columns": [...], "data": [[...], ...]}`, a list for each row.
    """

    num_rows: int
    json: bytes

    def rows(self) -> tuple[list[str], list[list[Cell]]]:
        """Return the names of the columns, and the rows."""
        held = msgspec.json.decode(self.json)
        return held["columns"], held["data"]


Medium = LogHistogram | LogImage | LogText | LogVideo | LogTable
Operation = LogParams | SetTags | LogArtifact | Medium
Item = Point | Operation
"""What the history of a run is made of, in order, each with its index."""
