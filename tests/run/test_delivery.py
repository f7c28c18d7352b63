import threading

import pytest

from trieye.exceptions import JournalFullError, RunClosedError, SequenceGapError
from trieye.run.flusher import EventSender
from trieye.stats.batch import EventBatch, EventRow
from trieye.stats.operations import LogText


class Journal:
    """A channel that takes each number once, as a hub does; `answers` are raised first, after or before it took it."""

    key, run_name = "hub", "run"

    def __init__(self, *answers):
        self.answers, self.calls, self.taken, self.last_seq, self.keys = list(answers), [], [], {}, set()
        self.failed = threading.Event()

    def log(self, batch, *, client, seq):
        self.calls.append((batch, seq))
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, TimeoutError):  # it arrives, and nobody hears of it
            self._take(batch, client, seq)
            raise ConnectionError("no answer") from answer
        if answer is not None:
            self.failed.set()
            raise answer
        self._take(batch, client, seq)

    def _take(self, batch, client, seq):
        expected = self.last_seq.get(client, 0) + 1
        if seq > expected:
            raise SequenceGapError(f"batch {expected} is missing", expected)
        if seq == expected:
            self.last_seq[client] = seq
            self.taken += batch.values.tolist()

    def count_dropped(self, reason, count, *, key):
        self._once(key, (reason, count))

    def log_operation(self, operation, *, key):
        self._once(key, operation)

    def _once(self, key, what):
        answer = self.answers.pop(0) if self.answers else None
        if key not in self.keys:
            self.keys.add(key)
            self.taken.append(what)
        if answer is not None:
            raise answer


def batch(*values):
    return EventBatch.from_rows([EventRow("m", value, 1, 0.0) for value in values])


def test_batches_are_numbered_from_one_and_each_sender_has_its_own_name():
    journal = Journal()
    one, other = EventSender(journal), EventSender(journal)
    for delivery in (one, one, other):
        delivery.log(batch(1.0))
    assert [seq for _, seq in journal.calls] == [1, 2, 1]
    assert one.client != other.client


@pytest.mark.parametrize("reason", [ConnectionError("gone for now"), JournalFullError("the disk is full")])
def test_a_batch_is_repeated_as_it_is_until_it_is_taken_and_the_user_is_told_once(reason, capfd):
    journal = Journal(reason, reason)
    delivery = EventSender(journal)
    delivery.log(batch(1.0, 2.0))
    delivery.log(batch(3.0))
    assert [seq for _, seq in journal.calls] == [1, 1, 1, 2]
    assert journal.calls[0][0] is journal.calls[2][0]
    assert journal.taken == [1.0, 2.0, 3.0]
    told = capfd.readouterr().err.splitlines()
    assert len(told) == 2
    assert f"the hub does not accept values ({reason})" in told[0]
    assert "accepts values again, after 0." in told[1]
    assert delivery.trouble is None


def test_what_was_taken_but_not_confirmed_counts_once():
    journal = Journal(TimeoutError())
    delivery = EventSender(journal)
    delivery.log(batch(1.0))
    journal.answers = [ConnectionError("no answer"), None, ConnectionError("no answer")]
    delivery.count_dropped("overflow", 5)
    delivery.log_operation(LogText("note", 1, 0.0, "hello"))
    assert journal.taken == [1.0, ("overflow", 5), LogText("note", 1, 0.0, "hello")]


def test_a_hub_that_forgot_is_asked_for_the_number_that_it_expects(capfd):
    journal = Journal()
    delivery = EventSender(journal)
    for value in (1.0, 2.0, 3.0):
        delivery.log(batch(value))
    journal.last_seq[delivery.client] = 1
    for value in (4.0, 5.0):
        delivery.log(batch(value))
    assert journal.taken == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert [seq for _, seq in journal.calls] == [1, 2, 3, 4, 2, 3]
    assert "batches 2 to 3 of this process" in capfd.readouterr().err


def test_a_hub_that_contradicts_itself_is_an_error():
    journal = Journal(SequenceGapError("batch 1 is missing", 1))
    with pytest.raises(SequenceGapError):
        EventSender(journal).log(batch(1.0))


def test_a_sender_that_gave_up_stops_repeating():
    journal = Journal(*[ConnectionError("gone for now")] * 1000)
    delivery, ends = EventSender(journal), []

    def send():
        try:
            delivery.log(batch(1.0))
        except RunClosedError as error:
            ends.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    assert journal.failed.wait(10)
    delivery.abandon()
    thread.join(10)
    assert len(ends) == 1
    with pytest.raises(RunClosedError):
        delivery.log(batch(2.0))


def test_a_hub_that_is_closed_is_not_asked_again():
    journal = Journal(RunClosedError("run 'run' is closed"))
    with pytest.raises(RunClosedError):
        EventSender(journal).log(batch(1.0))
    assert len(journal.calls) == 1
