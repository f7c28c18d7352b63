"""The batches that a writer sends and retains."""

import pytest

from trieye.replay.remote.courier import Outbox
from trieye.replay.remote.messages import Ack, Block
from trieye.replay.remote.replay_server import AcknowledgedCounts
from trieye.replay.rows.schema import Column


def block_of(*values):
    block = Block(len(values), [Column.from_value("x", 0, rows=False)])
    for value in values:
        block.add({"x": value}, 0, None)
    return block


def outbox_of(num_blocks, **options):
    outbox = Outbox(**{"max_inflight": 2, "keep_bytes": 1 << 20, **options})
    for number in range(num_blocks):
        outbox.put(block_of(2 * number, 2 * number + 1))
    return outbox


def acknowledged(num_blocks, **options):
    outbox = outbox_of(num_blocks, **options)
    for _ in range(num_blocks):
        batch = outbox.next()
        outbox.answered(batch, Ack(batch.end))
    return outbox


def test_at_most_max_inflight_batches_are_in_flight():
    outbox = outbox_of(3)
    batches = [outbox.next(), outbox.next(), outbox.next()]
    assert [batch and batch.first for batch in batches] == [0, 2, None]
    outbox.answered(batches[0], Ack(2))
    assert outbox.num_pending == 2
    assert outbox.next().first == 4


def test_after_a_rejection_batches_are_resent_once_all_calls_are_answered():
    outbox = outbox_of(3)
    first, second = outbox.next(), outbox.next()
    outbox.answered(first, Ack(0, refused="full"))
    assert outbox.next() is None
    assert not outbox.is_held_up
    outbox.answered(second, Ack(0))
    assert outbox.is_held_up
    outbox.go_back(Ack(0))
    assert [outbox.next().first, outbox.next().first] == [0, 2]


def test_a_batch_that_arrived_without_an_acknowledgement_is_not_resent():
    outbox = outbox_of(2)
    outbox.next()
    outbox.failed()
    outbox.go_back(Ack(2))
    assert outbox.num_pending == 1
    assert outbox.next().first == 2
    assert outbox.num_waiting == 2


def test_acknowledged_batches_are_retained_until_they_are_saved():
    outbox = acknowledged(3)
    assert outbox.oldest == 0
    outbox.put(block_of(6, 7))
    outbox.answered(outbox.next(), Ack(8, saved=4))
    assert outbox.oldest == 4
    assert outbox.kept_bytes == 2 * 16
    assert [list(block.rows().by_key()["x"]) for block in outbox.spare] == [[0, 1], [2, 3]]


def test_keep_bytes_limits_the_retained_batches():
    outbox = acknowledged(4, keep_bytes=40)
    assert outbox.kept_bytes == 32
    assert outbox.oldest == 4


def test_after_a_loss_sending_resumes_at_the_oldest_retained_batch():
    outbox = acknowledged(3, keep_bytes=16)
    outbox.go_back(Ack(1))
    assert (outbox.num_resent, outbox.num_waiting, outbox.num_gone) == (1, 2, 3)
    assert outbox.next().first == outbox.oldest == 4


@pytest.mark.parametrize(
    ("first", "oldest", "verdict"), [(5, 0, "next"), (4, 0, "duplicate"), (7, 5, "early"), (7, 7, "next")]
)
def test_batches_are_classified_by_the_number_of_their_first_row(first, oldest, verdict):
    counts = AcknowledgedCounts()
    counts.record("a", 0, 5)
    assert counts.judge("a", first, oldest) == verdict
