import threading
import time

from trieye.sinks.health import _MAX_MARKS, Lag


def pause():
    threading.Event().wait(0.02)


def test_who_has_everything_has_no_lag():
    lag = Lag()
    assert lag.seconds(0) == 0.0
    lag.note(5)
    assert lag.seconds(5) == 0.0


def test_lag_is_the_age_of_the_oldest_item_that_is_missing():
    lag, start = Lag(), time.monotonic()
    lag.note(5)
    pause()
    lag.note(9)
    first = lag.seconds(0)
    assert 0.02 <= first <= time.monotonic() - start
    assert lag.seconds(4) >= first
    assert lag.seconds(5) < first
    lag.note(9)
    assert lag.seconds(9) == 0.0


def test_one_that_is_away_for_long_takes_no_memory():
    lag = Lag()
    lag.note(1)
    pause()
    for end in range(2, 5 * _MAX_MARKS):
        lag.note(end)
    assert len(lag._marks) == _MAX_MARKS
    assert lag.seconds(0) >= 0.02
    assert lag.seconds(5 * _MAX_MARKS - 2) > 0.0
    assert lag.seconds(5 * _MAX_MARKS - 1) == 0.0
