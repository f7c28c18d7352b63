import threading

import pytest

from trieye.exceptions import JournalFullError, RunClosedError, SequenceGapError
from trieye.hub.ledger import Ledger
from trieye.hub.logic import HubLogic
from trieye.run.flusher import EventSender
from trieye.stats.batch import EventBatch, EventRow
from trieye.stats.operations import LogText


class Journal:
    """A channel that accepts each number once, as a hub; it raises `answers` first, before or after accepting."""

    key, run_name = "hub", "run"

    def __init__(self, *answers):
        self.answers, self.calls, self.accepted, self.last_seq, self.keys = list(answers), [], [], {}, set()
        self.failed = threading.Event()

    def send(self, request, *content, **number):
        {Ledger.log_columns: self._log, Ledger.count_dropped: self._once, HubLogic.log_operation: self._once}[request](
            *content, **number
        )

    def _log(self, batch, *, client, seq):
        self.calls.append((batch, seq))
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, TimeoutError):  # accepted, but the acknowledgement is lost
            self._accept(batch, client, seq)
            raise ConnectionError("no answer") from answer
        if answer is not None:
            self.failed.set()
            raise answer
        self._accept(batch, client, seq)

    def _accept(self, batch, client, seq):
        expected = self.last_seq.get(client, 0) + 1
        if seq > expected:
            raise SequenceGapError(f"batch {expected} is missing", expected)
        if seq == expected:
            self.last_seq[client] = seq
            self.accepted += batch.values.tolist()

    def _once(self, *content, key):
        answer = self.answers.pop(0) if self.answers else None
        if key not in self.keys:
            self.keys.add(key)
            self.accepted.append(content)
        if answer is not None:
            raise answer


def batch(*values):
    return EventBatch.from_rows([EventRow("m", value, 1, 0.0) for value in values])


def test_each_sender_has_a_unique_name_and_numbers_its_batches_from_one():
    journal = Journal()
    first, second = EventSender(journal), EventSender(journal)
    for sender in (first, first, second):
        sender.log(batch(1.0))
    assert [seq for _, seq in journal.calls] == [1, 2, 1]
    assert first.client != second.client


@pytest.mark.parametrize("reason", [ConnectionError("gone for now"), JournalFullError("the disk is full")])
def test_a_batch_is_resent_unchanged_until_accepted_and_the_outage_is_reported_once(reason, capfd):
    journal = Journal(reason, reason)
    sender = EventSender(journal)
    sender.log(batch(1.0, 2.0))
    sender.log(batch(3.0))
    assert [seq for _, seq in journal.calls] == [1, 1, 1, 2]
    assert journal.calls[0][0] is journal.calls[2][0]
    assert journal.accepted == [1.0, 2.0, 3.0]
    messages = capfd.readouterr().err.splitlines()
    assert len(messages) == 2
    assert f"the hub does not accept values ({reason})" in messages[0]
    assert "accepts values again, after 0." in messages[1]
    assert sender.trouble is None


def test_calls_accepted_without_an_acknowledgement_count_once():
    journal = Journal(TimeoutError())
    sender = EventSender(journal)
    sender.log(batch(1.0))
    journal.answers = [ConnectionError("no answer"), None, ConnectionError("no answer")]
    sender.send(Ledger.count_dropped, [("overflow", "*", 5)])
    sender.send(HubLogic.log_operation, LogText("note", 1, 0.0, "hello"))
    assert journal.accepted == [1.0, ([("overflow", "*", 5)],), (LogText("note", 1, 0.0, "hello"),)]


def test_a_sender_continues_at_the_batch_number_that_the_hub_expects(capfd):
    journal = Journal()
    sender = EventSender(journal)
    for value in (1.0, 2.0, 3.0):
        sender.log(batch(value))
    journal.last_seq[sender.client] = 1
    for value in (4.0, 5.0):
        sender.log(batch(value))
    assert journal.accepted == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert [seq for _, seq in journal.calls] == [1, 2, 3, 4, 2, 3]
    assert "batches 2 to 3 of this process" in capfd.readouterr().err


def test_a_gap_error_for_the_expected_batch_is_raised():
    journal = Journal(SequenceGapError("batch 1 is missing", 1))
    with pytest.raises(SequenceGapError):
        EventSender(journal).log(batch(1.0))


def test_an_abandoned_sender_stops_retrying():
    journal = Journal(*[ConnectionError("gone for now")] * 1000)
    sender, ends = EventSender(journal), []

    def send():
        try:
            sender.log(batch(1.0))
        except RunClosedError as error:
            ends.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    assert journal.failed.wait(10)
    sender.abandon()
    thread.join(10)
    assert len(ends) == 1
    with pytest.raises(RunClosedError):
        sender.log(batch(2.0))


def test_a_closed_hub_is_not_retried():
    journal = Journal(RunClosedError("run 'run' is closed"))
    with pytest.raises(RunClosedError):
        EventSender(journal).log(batch(1.0))
    assert len(journal.calls) == 1
