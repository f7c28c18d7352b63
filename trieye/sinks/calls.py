"""Calls: items of the history as the calls that a sink gets."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, cast, get_args

from trieye.config.metric import LogTarget
from trieye.exceptions import ProcessingError
from trieye.sinks.base import Media, Sink, Tracker
from trieye.stats.operations import Item, LogArtifact, LogParams, Medium, SetTags
from trieye.stats.point import Point

_TARGETS: frozenset[str] = frozenset(get_args(LogTarget))


class Call(NamedTuple):
    """One call of a sink.

    Attributes:
        make: Makes it.
        weight: How many points it brings; 1 for anything else.
        end: Everything before this index has arrived when it was made; None: that is not known before a later call.
    """

    make: Callable[[], None]
    weight: int
    end: int | None


class Calls:
    """What a sink gets of what a run records.

    A sink named like a `LogTarget` gets the points whose `log_to` names it, any other one every point. What it has no
    method for it does not get.

    Args:
        sink: The sink.
        run_dir: Where the files of the run are now.
    """

    def __init__(self, sink: Sink, run_dir: Path = Path()) -> None:
        self._sink, self._run_dir = sink, run_dir
        self._target = sink.name if sink.name in _TARGETS else None
        self._tracker = sink if isinstance(sink, Tracker) else None
        self._media = sink if isinstance(sink, Media) else None

    def meant(self, points: Sequence[Point]) -> Sequence[Point]:
        """Return the points that are meant for the sink."""
        target = self._target
        return points if target is None else [point for point in points if target in point.log_to]

    def of(self, items: Sequence[Item], start: int, after: int) -> list[Call]:
        """Return the calls for items in order: one for points that follow each other, one for each operation.

        Args:
            items: What the history holds from `start` on, except what is superseded.
            start: Index at which they were read.
            after: Index to go on with.
        """
        made: list[tuple[int, int, Callable[[], None]]] = []
        place = start
        for kind, group in groupby(items, key=type):
            alike = list(group)
            if kind is Point:
                points = self.meant(cast("list[Point]", alike))
                if points:
                    made.append((place, len(points), partial(self._sink.write, points)))
            else:
                for number, operation in enumerate(alike, place):
                    if (make := self._of_operation(operation)) is not None:
                        made.append((number, 1, make))
            place += len(alike)
        # an item has its place as its index, unless something before it was left out
        starts: list[int | None] = [first if place == after else None for first, _, _ in made]
        ends = [*starts[1:], after]
        return [Call(make, weight, end) for (_, weight, make), end in zip(made, ends, strict=False)]

    def _of_operation(self, operation: Item) -> Callable[[], None] | None:
        tracker = self._tracker
        if isinstance(operation, Medium):
            return None if self._media is None else partial(self._media.log_media, operation)
        if tracker is None:
            return None
        match operation:
            case LogParams():
                return partial(tracker.log_params, operation.params)
            case SetTags():
                return partial(tracker.set_tags, operation.tags)
            case LogArtifact():
                return partial(self._log_artifact, tracker, operation)
        return None

    def _log_artifact(self, tracker: Tracker, operation: LogArtifact) -> None:
        path = self._run_dir / operation.path
        # a journal that somebody else made must not hand the user's own files to a tracker
        if not path.resolve().is_relative_to(self._run_dir.resolve()):
            raise ProcessingError(f"artifact {operation.path} lies outside of {self._run_dir}; it is left out")
        tracker.log_artifact(path, operation.artifact_path)
