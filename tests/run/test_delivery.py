from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.run.hub import Hub
from trieye.exceptions import JournalFullError, RunClosedError, SequenceGapError
from trieye.hub.ledger import Ledger
from trieye.hub.logic import HubLogic
from trieye.run.flusher import EventSender
from trieye.stats.batch import EventBatch, EventRow
from trieye.stats.operations import LogText


def batch(*values):
    return EventBatch.from_rows([EventRow("m", value, 1, 0.0) for value in values])


def test_each_sender_has_a_unique_name_and_numbers_its_batches_from_one():
    hub = Hub()
    first, second = EventSender(hub), EventSender(hub)
    for sender in (first, first, second):
        sender.log(batch(1.0))
    assert [seq for _, seq in hub.calls] == [1, 2, 1]
    assert first.client != second.client


@pytest.mark.parametrize("reason", [ConnectionError("gone for now"), JournalFullError("the disk is full")])
def test_a_batch_is_resent_unchanged_until_accepted_and_the_outage_is_reported_once(reason, capfd):
    hub = Hub(reason, reason)
    sender = EventSender(hub)
    sender.log(batch(1.0, 2.0))
    sender.log(batch(3.0))
    assert [seq for _, seq in hub.calls] == [1, 1, 1, 2]
    assert hub.calls[0][0] is hub.calls[2][0]
    assert hub.values() == [1.0, 2.0, 3.0]
    messages = capfd.readouterr().err.splitlines()
    assert len(messages) == 2
    assert f"the hub does not accept values ({reason})" in messages[0]
    assert "accepts values again, after 0." in messages[1]
    assert sender.trouble is None


def test_calls_accepted_without_an_acknowledgement_count_once():
    hub = Hub(TimeoutError())
    sender = EventSender(hub)
    sender.log(batch(1.0))
    hub.answers = [TimeoutError(), None, TimeoutError()]
    sender.send(Ledger.count_dropped, [("overflow", "*", 5)])
    sender.send(HubLogic.log_operation, LogText("note", 1, 0.0, "hello"))
    assert (hub.values(), hub.dropped, hub.media) == ([1.0], {"overflow": 5}, [LogText("note", 1, 0.0, "hello")])


def test_a_sender_continues_at_the_batch_number_that_the_hub_expects(capfd):
    hub = Hub()
    sender = EventSender(hub)
    for value in (1.0, 2.0, 3.0):
        sender.log(batch(value))
    hub.last_seq[sender.client] = 1
    for value in (4.0, 5.0):
        sender.log(batch(value))
    assert hub.values() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert [seq for _, seq in hub.calls] == [1, 2, 3, 4, 2, 3]
    assert "batches 2 to 3 of this process" in capfd.readouterr().err


@pytest.mark.parametrize("error", [RunClosedError("run 'run' is closed"), SequenceGapError("batch 1 is missing", 1)])
def test_an_error_that_a_repetition_cannot_fix_is_raised_at_once(error):
    hub = Hub(error)
    with pytest.raises(type(error)):
        EventSender(hub).log(batch(1.0))
    assert len(hub.calls) == 1


def test_an_abandoned_sender_stops_retrying():
    hub = Hub(*[ConnectionError("gone for now")] * 1000)
    sender = EventSender(hub)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(sender.log, batch(1.0))
        assert hub.rejected.wait(10)
        sender.abandon()
        with pytest.raises(RunClosedError):
            sending.result(10)
    with pytest.raises(RunClosedError):
        sender.log(batch(2.0))
