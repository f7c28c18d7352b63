"""How a sink is: what it refused, why its newest call failed and when that call is repeated, how far it is behind."""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from traceback import extract_tb

from trieye.config.base import did_you_mean
from trieye.config.redaction import redacted_text
from trieye.exceptions import ProcessingError, SinkBusyError, SinkGoneError
from trieye.process.waiting import Backoff
from trieye.stats.point import Point

log = logging.getLogger("trieye.sinks")

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
_MAX_REFUSALS_TOLD = 100
_SPREAD = 0.25
"""Keeps the runs of a sweep from hitting a server that comes back all at once."""
_MAX_MARKS = 1000
_MISTAKES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Of the code of a sink rather than of the world around it: their texts alone say too little."""


@dataclass(frozen=True, slots=True)
class SinkHealth:
    """How a sink is.

    Attributes:
        name: Name of the sink.
        error: Why the sink does not work at the moment, or None.
        backlog: Items of the history that the sink has not got.
        lag_s: Age of the oldest of these items, seconds; 0.0 if there are none.
        refused: Points, and other operations, that the sink refused for good.
        is_gone: Whether it does not work because what it wrote to was deleted: only the user can bring that back.
    """

    name: str
    error: str | None
    backlog: int
    lag_s: float
    refused: int
    is_gone: bool = False


class Lag:
    """Remembers when the history reached which index.

    Not safe to use from several threads at once: `SinkThread` holds its lock around each call.
    """

    def __init__(self) -> None:
        self._marks: deque[tuple[int, float]] = deque()

    def note(self, end: int) -> None:
        """Note that the history ends at this index now."""
        marks = self._marks
        if marks and marks[-1][0] >= end:
            return
        if len(marks) < _MAX_MARKS:
            marks.append((end, time.monotonic()))
        else:  # of a sink that is away for long the beginning counts
            marks[-1] = (end, marks[-1][1])

    def seconds(self, index: int) -> float:
        """Return for how long the oldest item from an index on has been there; 0.0 if there is none."""
        marks = self._marks
        while marks and marks[0][0] <= index:
            marks.popleft()
        return time.monotonic() - marks[0][1] if marks else 0.0


class Retry:
    """Makes the calls of one sink, and remembers why the newest one failed.

    Args:
        name: Name of the sink.
        first_delay_s: Seconds of the first pause after a failure.

    Attributes:
        error: Why the newest call failed, None if it worked.
        refused: Weight of the operations that the sink refused for good.
        is_gone: Whether the newest call failed because what the sink wrote to was deleted.
    """

    def __init__(self, name: str, first_delay_s: float = FIRST_DELAY_S) -> None:
        self.error: str | None = None
        self.refused = 0
        self.is_gone = False
        self._name = name
        self._first_delay_s = first_delay_s
        self._told: set[str] = set()
        self._is_busy = False

    def until_it_works(self, call: Callable[[], None], weight: int, again: Callable[[int, float], bool]) -> bool:
        """Repeat the call until it works or is refused.

        Args:
            call: Calls the sink.
            weight: How many points or operations count as refused if the sink refuses the call; 0: a refusal means "not
                now".
            again: Called after each failure, with the number of failures and the seconds to wait; waits, and tells
                whether to try again. A `SinkBusyError` is no failure: it does not count, and the pause stays short.

        Returns:
            Whether the sink took or refused the call; False if `again` gave it up.
        """
        backoff = Backoff(self._first_delay_s, LONGEST_DELAY_S, spread=_SPREAD)
        has_failed = False
        while not self._try(call, weight, has_failed=has_failed):
            has_failed = True
            delay_s = self._first_delay_s if self._is_busy else backoff.failed()
            if not again(backoff.failures, delay_s):
                return False
        return True

    def _try(self, call: Callable[[], None], weight: int, *, has_failed: bool) -> bool:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - the border to a sink: reported, retried, visible in the health
            if weight and isinstance(error, ProcessingError):
                self._refuse(error, weight)
                return True
            self._fail(error)
            return False
        if weight or has_failed:  # that it can be closed says nothing of the points that it did not take
            self._recover()
        return True

    def _refuse(self, error: Exception, weight: int) -> None:
        self.refused += weight
        message = redacted_text(str(error))
        if message not in self._told and len(self._told) < _MAX_REFUSALS_TOLD:
            self._told.add(message)
            log.warning("sink %r refuses: %s", self._name, message)

    def _fail(self, error: Exception) -> None:
        is_new, self._is_busy = self.error is None, isinstance(error, SinkBusyError)
        self.is_gone = isinstance(error, SinkGoneError)
        reason = redacted_text(str(error))
        is_mistake = isinstance(error, _MISTAKES) or not reason
        self.error = f"{type(error).__name__}{reason and f': {reason}'}{_where(error) if is_mistake else ''}"
        if is_new:
            log.warning(
                "sink %r does not work: %s\n"
                "The training goes on; the points are kept and sent as soon as it works, it is tried again and again.",
                self._name,
                self.error if is_mistake else reason,
            )

    def _recover(self) -> None:
        if self.error is not None:
            self.error, self.is_gone = None, False
            log.warning("sink %r works again; the points kept so far are sent now", self._name)


def _where(error: Exception) -> str:
    """Return what helps the author of a sink to mend it: the line that raised, and what a point has."""
    frames = extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    if not (isinstance(error, AttributeError) and isinstance(error.obj, Point)):
        return place
    names = [field.name for field in fields(Point)]
    return f"{place}; a Point has {', '.join(names)}{did_you_mean(str(error.name), names)}"
