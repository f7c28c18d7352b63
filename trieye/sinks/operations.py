"""What can be asked of a sink, as values that can wait in memory or in a file."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from trieye.exceptions import SerializationError
from trieye.sinks.base import MAX_POINTS_PER_WRITE, Sink, Tracker
from trieye.stats.point import Point


class Operation(Protocol):
    """One request to a sink.

    Attributes:
        weight: How many points it holds, 1 for anything else; what is left of a backlog is counted in these.
    """

    @property
    def weight(self) -> int:
        """Points that it holds, 1 for anything else."""
        ...

    def apply(self, sink: Sink) -> None:
        """Ask the sink; whatever the sink raises is raised."""
        ...

    def to_json(self) -> dict[str, object]:
        """Return the JSON object from which `from_line` makes the same operation."""
        ...


@dataclass(frozen=True, slots=True)
class WritePoints:
    """Write points."""

    points: tuple[Point, ...]

    @property
    def weight(self) -> int:
        """How many points there are."""
        return len(self.points)

    def apply(self, sink: Sink) -> None:
        """Write them."""
        sink.write(self.points)

    def to_json(self) -> dict[str, object]:
        """Return the points as rows."""
        return {"points": [[p.metric, p.value, p.step, p.wall_time, p.log_to, p.count] for p in self.points]}


@dataclass(frozen=True, slots=True)
class LogParams:
    """Record parameters with a tracker."""

    params: Mapping[str, str]
    weight: int = 1

    def apply(self, sink: Sink) -> None:
        """Record them."""
        cast("Tracker", sink).log_params(self.params)

    def to_json(self) -> dict[str, object]:
        """Return the parameters."""
        return {"params": dict(self.params)}


@dataclass(frozen=True, slots=True)
class SetTags:
    """Record tags with a tracker."""

    tags: Mapping[str, str]
    weight: int = 1

    def apply(self, sink: Sink) -> None:
        """Record them."""
        cast("Tracker", sink).set_tags(self.tags)

    def to_json(self) -> dict[str, object]:
        """Return the tags."""
        return {"tags": dict(self.tags)}


@dataclass(frozen=True, slots=True)
class LogArtifact:
    """Hand a file or a directory to a tracker; it has to stay where it is until then."""

    path: Path
    artifact_path: str | None = None
    weight: int = 1

    def apply(self, sink: Sink) -> None:
        """Hand it over."""
        cast("Tracker", sink).log_artifact(self.path, self.artifact_path)

    def to_json(self) -> dict[str, object]:
        """Return where the file is and where it goes."""
        return {"artifact": str(self.path), "artifact_path": self.artifact_path}


def split_points(points: Sequence[Point]) -> Iterator[WritePoints]:
    """Yield writes of at most `MAX_POINTS_PER_WRITE` points each."""
    for start in range(0, len(points), MAX_POINTS_PER_WRITE):
        yield WritePoints(tuple(points[start : start + MAX_POINTS_PER_WRITE]))


def to_line(operation: Operation) -> bytes:
    """Return the operation as one line of JSON with its newline."""
    return json.dumps(operation.to_json(), separators=(",", ":")).encode() + b"\n"


def from_line(line: bytes) -> Operation:
    """Return the operation that `to_line` wrote.

    Raises:
        SerializationError: The line is not whole.
    """
    try:
        return _from_json(json.loads(line))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SerializationError(f"not an operation of a sink: {line[:60]!r}") from error


def _point(metric: str, value: float, step: int, wall_time: float, log_to: list[str], count: int) -> Point:
    return Point(metric, value, step, wall_time, tuple(log_to), count)


def _from_json(data: dict[str, Any]) -> Operation:
    match data:
        case {"points": [*rows]}:
            return WritePoints(tuple(_point(*row) for row in rows))
        case {"params": dict(params)}:
            return LogParams(params)
        case {"tags": dict(tags)}:
            return SetTags(tags)
        case {"artifact": str(path)}:
            return LogArtifact(Path(path), data["artifact_path"])
        case _:
            raise ValueError("unknown operation")
