"""Health and retries of a sink: refused points, the latest error, the backoff between retries, the lag."""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb

from trieye.config.redaction import redacted_text
from trieye.exceptions import ProcessingError, SinkBusyError, SinkGoneError
from trieye.process.waiting import Backoff

log = logging.getLogger("trieye.sinks")

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
_MAX_REPORTED_REFUSALS = 100
_SPREAD = 0.25
"""Jitter: the runs of a sweep must not retry simultaneously once a server recovers."""
_MAX_MARKS = 1000
_BUGS = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError)
"""Errors in the code of a sink rather than in its environment: their messages need a source position."""


@dataclass(frozen=True, slots=True)
class SinkHealth:
    """Health of a sink.

    Attributes:
        name: Name of the sink.
        error: The current error, or None if the sink works.
        backlog: Number of items of the history that the sink has not received.
        lag_s: Age in seconds of the oldest such item; 0.0 if there is none.
        refused: Number of points and other operations that the sink rejected permanently.
        is_gone: Whether the store was deleted: only the user can restore it.
    """

    name: str
    error: str | None
    backlog: int
    lag_s: float
    refused: int
    is_gone: bool = False


class Lag:
    """Records when the history reached each index.

    Not thread-safe: `SinkThread` holds its lock around each call.
    """

    def __init__(self) -> None:
        self._end_times: deque[tuple[int, float]] = deque()

    def note(self, end: int) -> None:
        """Record that the history now ends at this index."""
        end_times = self._end_times
        if end_times and end_times[-1][0] >= end:
            return
        if len(end_times) < _MAX_MARKS:
            end_times.append((end, time.monotonic()))
        else:  # a long outage: the oldest marks determine the lag
            end_times[-1] = (end, end_times[-1][1])

    def seconds(self, index: int) -> float:
        """Return the age in seconds of the oldest item from an index on; 0.0 if there is none."""
        end_times = self._end_times
        while end_times and end_times[0][0] <= index:
            end_times.popleft()
        return time.monotonic() - end_times[0][1] if end_times else 0.0


class Retry:
    """Calls one sink with retries, and records the latest error.

    Args:
        name: Name of the sink.
        first_delay_s: Seconds between the first failure and the first retry.

    Attributes:
        error: Error of the latest call, None if it succeeded.
        refused: Total weight of the operations that the sink rejected permanently.
        is_gone: Whether the latest call failed because the store was deleted.
    """

    def __init__(self, name: str, first_delay_s: float = FIRST_DELAY_S) -> None:
        self.error: str | None = None
        self.refused = 0
        self.is_gone = False
        self._name = name
        self._first_delay_s = first_delay_s
        self._reported_refusals: set[str] = set()
        self._is_busy = False

    def run(self, call: Callable[[], None], weight: int, wait_to_retry: Callable[[int, float], bool]) -> bool:
        """Repeat the call until the sink accepts or refuses it.

        Args:
            call: Calls the sink.
            weight: Number of points or operations to count as refused if the sink refuses the call; with 0, a refusal
                is retried like any other error.
            wait_to_retry: Called after each failure with the number of failures and the delay in seconds; waits, and
                returns whether to retry. A `SinkBusyError` does not count as a failure, and its delay stays short.

        Returns:
            True if the sink accepted or refused the call, False if `wait_to_retry` aborted it.
        """
        backoff = Backoff(self._first_delay_s, LONGEST_DELAY_S, spread=_SPREAD)
        has_failed = False
        while not self._try(call, weight, has_failed=has_failed):
            has_failed = True
            delay_s = self._first_delay_s if self._is_busy else backoff.failed()
            if not wait_to_retry(backoff.failures, delay_s):
                return False
        return True

    def _try(self, call: Callable[[], None], weight: int, *, has_failed: bool) -> bool:
        try:
            call()
        # the border to a sink: reported, retried, visible in the health; a library may raise SystemExit or a Rust panic
        except BaseException as error:  # noqa: BLE001
            if weight and isinstance(error, ProcessingError):
                self._refuse(error, weight)
                return True
            self._fail(error)
            return False
        if weight or has_failed:  # a successful close does not prove that the sink accepts points again
            self._recover()
        return True

    def _refuse(self, error: Exception, weight: int) -> None:
        self.refused += weight
        message = _message(error)
        if message not in self._reported_refusals and len(self._reported_refusals) < _MAX_REPORTED_REFUSALS:
            self._reported_refusals.add(message)
            log.warning("sink %r refuses: %s", self._name, message)

    def _fail(self, error: BaseException) -> None:
        is_new, self._is_busy = self.error is None, isinstance(error, SinkBusyError)
        self.is_gone = isinstance(error, SinkGoneError)
        reason = _message(error)
        is_bug = isinstance(error, _BUGS) or not isinstance(error, Exception) or not reason
        self.error = f"{type(error).__name__}{reason and f': {reason}'}{_location(error) if is_bug else ''}"
        if is_new:
            log.warning(
                "sink %r does not work: %s\n"
                "Training continues; the sink is retried, and points are buffered and delivered once it recovers.",
                self._name,
                self.error if is_bug else reason,
            )

    def _recover(self) -> None:
        if self.error is not None:
            self.error, self.is_gone = None, False
            log.warning("sink %r works again; the buffered points are being delivered", self._name)


def _message(error: BaseException) -> str:
    try:
        return redacted_text(str(error))
    except Exception as failure:  # noqa: BLE001 - the border to a sink, whose errors may have no text
        return f"its __str__ raised {type(failure).__name__}"


def _location(error: BaseException) -> str:
    """Return the file and line that raised."""
    frames = extract_tb(error.__traceback__)
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
