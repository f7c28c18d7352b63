import threading

import pytest

from trieye.config import RuntimeConfig
from trieye.exceptions import ProcessingError
from trieye.flusher import MAX_BATCH_EVENTS, Flusher


class Hub:
    """A hub that keeps what it gets; it can be made to fail."""

    def __init__(self):
        self.batches, self.dropped, self.failures, self.got = [], {}, 0, threading.Event()

    def log(self, batch):
        if self.failures:
            self.failures -= 1
            raise ConnectionError("gone for a moment")
        self.batches.append(batch)
        self.got.set()

    def count_dropped(self, reason, count):
        self.dropped[reason] = self.dropped.get(reason, 0) + count

    def values(self):
        return [value for batch in self.batches for value in batch.values.tolist()]


def rows(*values):
    return [("m", value, 1, 0.0, None) for value in values]


@pytest.fixture
def hub():
    return Hub()


def test_the_thread_sends_without_being_asked(hub):
    flusher = Flusher(hub, RuntimeConfig(flush_interval_s=0.01))
    flusher.pending.extend(rows(1.0, 2.0))
    assert hub.got.wait(10)
    flusher.close()
    assert hub.values() == [1.0, 2.0]
    assert flusher.latest == {"m": 2.0}


def test_close_sends_what_is_left_in_order_and_in_batches(hub):
    flusher = Flusher(hub, RuntimeConfig(flush_interval_s=60))
    flusher.pending.extend(rows(*map(float, range(2 * MAX_BATCH_EVENTS + 5))))
    flusher.close()
    assert [len(batch) for batch in hub.batches] == [MAX_BATCH_EVENTS, MAX_BATCH_EVENTS, 5]
    assert hub.values() == list(map(float, range(2 * MAX_BATCH_EVENTS + 5)))


def test_a_hub_that_is_gone_for_a_moment_gets_everything_once(hub):
    hub.failures = 2
    flusher = Flusher(hub, RuntimeConfig(flush_interval_s=60))
    flusher.pending.extend(rows(1.0, 2.0))
    flusher.flush()
    flusher.close()
    assert hub.values() == [1.0, 2.0]


def test_a_hub_that_stays_away_is_an_error_where_the_values_are_needed(hub, monkeypatch):
    monkeypatch.setattr("trieye.flusher.GIVE_UP_S", 0.0)
    hub.failures = 1_000
    flusher = Flusher(hub, RuntimeConfig(flush_interval_s=60))
    flusher.pending.extend(rows(1.0))
    with pytest.raises(ProcessingError, match="gone for a moment"):
        flusher.flush()
    with pytest.raises(ProcessingError):
        flusher.close()


def test_rows_that_no_batch_can_hold_are_counted_and_the_others_sent(hub):
    flusher = Flusher(hub, RuntimeConfig(flush_interval_s=60))
    flusher.pending.extend([*rows(1.0), ("m", 1.0, 1 << 80, 0.0, None), *rows(2.0)])
    flusher.close()
    assert hub.values() == [1.0, 2.0]
    assert hub.dropped == {"step_out_of_range": 1}
