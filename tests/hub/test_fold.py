from trieye.hub.fold import PendingEvents
from trieye.stats.batch import EventBatch, EventRow


def batch(*values):
    return EventBatch.from_rows([EventRow("m", value, 1, 0.0) for value in values])


def test_take_returns_batches_in_order_and_joins_consecutive_rows():
    pending = PendingEvents()
    pending.add_rows(batch(1.0))
    pending.add_rows(batch(2.0))
    pending.add_batch(batch(3.0, 4.0))
    pending.add_rows(batch(5.0))
    assert len(pending) == 5
    assert [queued.values.tolist() for queued in pending.take()] == [[1.0, 2.0], [3.0, 4.0], [5.0]]
    assert len(pending) == 0
    assert pending.take() == []
