import asyncio
import queue
import threading
import time

import pytest

from trieye.exceptions import ProcessingError, SinkBusyError
from trieye.sinks.health import _MAX_MARKS, LONGEST_DELAY_S, Lag, Retry
from trieye.stats.point import Point


def failing(num, error):
    """Return a function whose first calls raise an error."""
    errors = [error] * num

    def call():
        if errors:
            raise errors.pop()

    return call


@pytest.fixture
def retry():
    return Retry("s", 1.0)


def test_a_failing_call_is_retried_with_exponential_backoff(retry):
    pauses = []

    def again(failures, delay_s):
        pauses.append(delay_s)
        return len(pauses) != 13

    assert retry.run(failing(12, OSError("away")), 1, again)
    assert retry.error is None
    for number, delay_s in enumerate(pauses):
        expected = min(LONGEST_DELAY_S, 2.0**number)
        assert 0.75 * expected <= delay_s <= 1.25 * expected
    assert not retry.run(failing(12, OSError("away")), 1, again)
    assert retry.error == "OSError: away"


def test_a_rejection_settles_only_calls_with_items(retry):
    for weight, error in ((5, None), (0, "ProcessingError: no")):
        is_settled = retry.run(failing(1, ProcessingError("no")), weight, lambda *_: False)
        assert (is_settled, retry.refused, retry.error) == (bool(weight), 5, error)


def test_a_busy_store_is_retried_soon_without_an_error(retry):
    seen = []

    def again(failures, delay_s):
        seen.append((failures, delay_s))
        return True

    assert retry.run(failing(20, SinkBusyError("locked")), 1, again)
    assert seen == [(0, 1.0)] * 20
    assert retry.error is None


def test_programming_errors_of_a_sink_are_reported_with_their_line(retry, caplog):
    def call():
        return Point("loss", 0.5, 1, 1.7e9).names

    assert not retry.run(call, 1, lambda *_: False)
    line = call.__code__.co_firstlineno + 1
    text = f"AttributeError: 'Point' object has no attribute 'names' (test_health.py, line {line})"
    assert text in caplog.text
    assert text in retry.error
    assert not retry.run(lambda: {}["lr"], 1, lambda *_: False)
    assert "KeyError: 'lr' (test_health.py, line" in retry.error
    for error, error_name in ((NotImplementedError(), "NotImplementedError"), (queue.Full(), "Full")):
        other = Retry(error_name)
        assert not other.run(failing(1, error), 1, lambda *_: False)
        assert other.error.startswith(f"{error_name} (test_health.py, line")
        assert f"sink '{error_name}' does not work: {other.error}\n" in caplog.text


class SpeechlessError(Exception):
    def __str__(self):
        raise ValueError


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), SpeechlessError()], ids=repr)
def test_any_error_of_a_sink_is_reported_and_retried(retry, caplog, error):
    assert not retry.run(failing(1, error), 1, lambda *_: False)
    assert retry.error.startswith(type(error).__name__)
    assert "sink 's' does not work" in caplog.text
    assert retry.run(failing(1, error), 1, lambda *_: True)
    assert retry.error is None


def test_a_sink_recovers_only_when_it_accepts_items(retry, caplog):
    assert not retry.run(failing(1, OSError("away")), 1, lambda *_: False)
    assert retry.run(failing(0, None), 0, lambda *_: False)  # closing does not prove that it accepts items
    assert retry.error == "OSError: away"
    assert "works again" not in caplog.text
    assert retry.run(failing(0, None), 1, lambda *_: False)
    assert retry.error is None
    assert "works again" in caplog.text


def pause():
    threading.Event().wait(0.02)


def test_lag_is_the_age_of_the_oldest_undelivered_item():
    lag, start = Lag(), time.monotonic()
    assert lag.seconds(0) == 0.0
    lag.note(5)
    pause()
    lag.note(9)
    first = lag.seconds(0)
    assert 0.02 <= first <= time.monotonic() - start
    assert lag.seconds(4) >= first
    assert lag.seconds(5) < first
    lag.note(9)
    assert lag.seconds(9) == 0.0


def test_lag_marks_stay_bounded_during_long_outages():
    lag = Lag()
    lag.note(1)
    pause()
    for end in range(2, 5 * _MAX_MARKS):
        lag.note(end)
    assert len(lag._end_times) == _MAX_MARKS
    assert lag.seconds(0) >= 0.02
    assert lag.seconds(5 * _MAX_MARKS - 2) > 0.0
    assert lag.seconds(5 * _MAX_MARKS - 1) == 0.0
