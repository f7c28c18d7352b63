"""Calls: items of the history as the calls that a sink gets, and each call repeated until it works."""

import logging
import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, cast, get_args

from trieye.config.metric import LogTarget
from trieye.config.redaction import redacted_text
from trieye.exceptions import ProcessingError
from trieye.sinks.base import Media, Sink, Tracker
from trieye.stats.operations import Item, LogArtifact, LogParams, Medium, SetTags
from trieye.stats.point import Point

log = logging.getLogger("trieye.sinks")

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
_MAX_REFUSALS_TOLD = 100
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


class Retry:
    """Makes calls of one sink.

    Args:
        name: Name of the sink.
        first_delay_s: Seconds of the first pause after a failure.

    Attributes:
        error: Why the newest call failed, None if it worked.
        refused: Weight of the operations that the sink refused for good.
    """

    def __init__(self, name: str, first_delay_s: float = FIRST_DELAY_S) -> None:
        self.error: str | None = None
        self.refused = 0
        self._name = name
        self._first_delay_s = first_delay_s
        self._told: set[str] = set()

    def until_it_works(self, call: Callable[[], None], weight: int, again: Callable[[int, float], bool]) -> bool:
        """Repeat the call until it works or is refused.

        Args:
            call: What to do.
            weight: How much is refused, if it is refused; 0 if a refusal makes no sense and means "not now".
            again: Called after each failure, with the number of failures and the seconds to wait; waits, and tells
                whether to try again.

        Returns:
            Whether the call is settled; False if given up.
        """
        failures = 0
        while not self._try(call, weight):
            failures += 1
            if not again(failures, self._delay_s(failures)):
                return False
        return True

    def _try(self, call: Callable[[], None], weight: int) -> bool:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - the border to a sink: reported, retried, visible in the health
            if weight and isinstance(error, ProcessingError):
                self._refuse(error, weight)
                return True
            self._fail(error)
            return False
        self._recover()
        return True

    def _refuse(self, error: Exception, weight: int) -> None:
        self.refused += weight
        message = redacted_text(str(error))
        if message not in self._told and len(self._told) < _MAX_REFUSALS_TOLD:
            self._told.add(message)
            log.warning("sink %r refuses: %s", self._name, message)

    def _fail(self, error: Exception) -> None:
        is_new = self.error is None
        reason = redacted_text(str(error))
        self.error = f"{type(error).__name__}: {reason}"
        if is_new:
            log.warning(
                "sink %r does not work: %s\n"
                "The training goes on; the points are kept and sent as soon as it works, it is tried again and again.",
                self._name,
                reason,
            )

    def _recover(self) -> None:
        if self.error is not None:
            self.error = None
            log.warning("sink %r works again; the points kept so far are sent now", self._name)

    def _delay_s(self, failures: int) -> float:
        # the jitter keeps the runs of a sweep from hitting a server that comes back all at once
        delay_s = min(LONGEST_DELAY_S, self._first_delay_s * 2.0 ** min(failures - 1, 16))
        return delay_s * random.uniform(0.75, 1.25)  # noqa: S311 - no secret
