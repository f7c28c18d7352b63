"""The batches that a writer sends and retains."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    outbox = outbox_of(3)
    for _ in range(3):
        batch = outbox.next()
        outbox.answered(batch, Ack(batch.end))
    assert outbox.oldest == 0
    outbox.put(block_of(6, 7))
    outbox.answered(outbox.next(), Ack(8, saved=4))
    assert outbox.oldest == 4
    assert outbox.kept_bytes == 2 * 16
    assert [list(block.rows().by_key()["x"]) for block in outbox.spare] == [[0, 1], [2, 3]]


def test_keep_bytes_limits_the_retained_batches():
    outbox = outbox_of(4, keep_bytes=40)
    for _ in range(4):
        batch = outbox.next()
        outbox.answered(batch, Ack(batch.end))
    assert outbox.kept_bytes == 32
    assert outbox.oldest == 4


def test_after_a_loss_sending_resumes_at_the_oldest_retained_batch():
    outbox = outbox_of(3, keep_bytes=16)
    for _ in range(3):
        batch = outbox.next()
        outbox.answered(batch, Ack(batch.end))
    outbox.go_back(Ack(1))
    assert (outbox.num_resent, outbox.num_waiting, outbox.num_gone) == (1, 2, 3)
    assert outbox.next().first == outbox.oldest == 4


def test_rows_without_any_copy_are_counted_as_gone():
    outbox = outbox_of(1, keep_bytes=0)
    outbox.answered(outbox.next(), Ack(2))
    outbox.go_back(Ack(0))
    assert (outbox.num_waiting, outbox.num_gone) == (0, 2)


class Ring:
    """A server that may lose calls and answers, refuse batches, and restart from an older snapshot."""

    def __init__(self):
        self.counts, self.rows = AcknowledgedCounts(), []
        self.snapshot = (self.counts.state_dict(), [])

    def add(self, first, oldest, rows, refused):
        if self.counts.judge("w", first, oldest) == "next" and not refused:
            self.rows += rows.by_key()["x"].tolist()
            self.counts.record("w", first, len(rows))
        return self.ack(refused)

    def ack(self, refused=""):
        return self.counts.ack("w", refused)

    def save(self):
        self.snapshot = (self.counts.state_dict(), list(self.rows))
        self.counts.are_saved(self.snapshot[0]["ends"])

    def die(self):
        self.counts = AcknowledgedCounts()
        self.counts.load_state_dict(self.snapshot[0])
        self.rows = list(self.snapshot[1])


class Journey:
    """A writer's outbox and a server, with random events between them."""

    def __init__(self, seed, **options):
        self.dice, self.ring, self.outbox = random.Random(seed), Ring(), Outbox(**options)
        self.in_flight, self.num_rows = [], 0

    def step(self):
        act = self.dice.choice(["put", "put", "send", "send", "send", "save", self.dice.choice(["send", "die"])])
        getattr(self, act)()
        if self.in_flight and self.dice.random() < 0.5:
            self.hear()
        if self.outbox.is_held_up:
            self.outbox.go_back(self.ring.ack())

    def put(self):
        count = self.dice.randint(1, 4)
        self.outbox.put(block_of(*range(self.num_rows, self.num_rows + count)))
        self.num_rows += count

    def send(self):
        if (batch := self.outbox.next()) is not None:
            fate = self.dice.choice(["well", "well", "well", "lost", "unheard", "refused"])
            ack = None if fate == "lost" else self.deliver(batch, refused=fate == "refused")
            self.in_flight.append((batch, None if fate == "unheard" else ack))

    def save(self):
        self.ring.save()

    def die(self):
        self.ring.die()

    def deliver(self, batch, *, refused=False):
        return self.ring.add(batch.first, self.outbox.oldest, batch.rows, "full" if refused else "")

    def hear(self):
        batch, ack = self.in_flight.pop(0)
        if ack is None:
            self.outbox.failed()
        else:
            self.outbox.answered(batch, ack)

    def end(self):
        while self.in_flight:
            self.hear()
        self.outbox.go_back(self.ring.ack())
        while (batch := self.outbox.next()) is not None:
            self.outbox.answered(batch, self.deliver(batch))


@given(seed=st.integers(0, 1 << 30), keep_bytes=st.sampled_from([0, 64, 1 << 20]), inflight=st.integers(1, 4))
def test_rows_arrive_once_and_in_order_despite_losses(seed, keep_bytes, inflight):
    journey = Journey(seed, max_inflight=inflight, keep_bytes=keep_bytes)
    for _ in range(200):
        journey.step()
    journey.end()
    rows = journey.ring.rows
    assert rows == sorted(set(rows))
    assert journey.outbox.num_waiting == 0
    missing = journey.num_rows - len(rows)
    assert journey.outbox.num_gone >= missing
    if keep_bytes == 1 << 20:
        assert missing == 0


@pytest.mark.parametrize(
    ("first", "oldest", "verdict"), [(5, 0, "next"), (4, 0, "duplicate"), (7, 5, "early"), (7, 7, "next")]
)
def test_batches_are_classified_by_the_number_of_their_first_row(first, oldest, verdict):
    counts = AcknowledgedCounts()
    counts.record("a", 0, 5)
    assert counts.judge("a", first, oldest) == verdict
