import contextlib
import signal
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.forked import in_a_child
from tests.waiting import wait_until
from trieye.config import RuntimeConfig
from trieye.exceptions import ProcessingError, RunClosedError
from trieye.run import flusher as flushers
from trieye.run.flusher import MAX_BATCH_EVENTS, MAX_LATEST_NAMES, MAX_PENDING_MEDIA, Flusher, flusher_of
from trieye.run.recorder import RunClient
from trieye.stats.operations import LogHistogram, LogImage, LogText


class Hub:
    """A hub that stores its input; it can be unreachable temporarily or permanently."""

    run_name, works_at_exit = "run", True

    def __init__(self, key="hub"):
        self.key = key
        self.batches, self.numbers, self.dropped, self.media = [], Counter(), {}, []
        self.is_there, self.got, self.missed, self.dead = threading.Event(), threading.Event(), threading.Event(), None
        self.is_there.set()

    def _answer(self):
        if self.dead is not None:
            raise self.dead
        if not self.is_there.is_set():
            self.missed.set()
            raise ConnectionError("gone for now")

    def log(self, batch, *, client, seq):
        self._answer()
        assert seq == self.numbers[client] + 1
        self.numbers[client] = seq
        self.batches.append(batch)
        self.got.set()

    def count_dropped(self, reason, count, *, key):
        self._answer()
        self.dropped[reason] = self.dropped.get(reason, 0) + count

    def log_operation(self, operation, *, key):
        self._answer()
        self.media.append(operation)

    def values(self):
        return [value for batch in self.batches for value in batch.values.tolist()]


class Owner:
    """An object that logs through a flusher."""

    def __init__(self):
        self.num_ends = 0

    def end(self):
        self.num_ends += 1


def rows(*values):
    return [("m", float(value), 1, 0.0, None) for value in values]


def text(content="hello"):
    return LogText("note", 1, 0.0, content)


@pytest.fixture
def hub():
    return Hub()


@pytest.fixture
def start(hub):
    """Return a function that creates a flusher, which by default sends on request only."""
    started = []

    def make(**settings):
        flusher = Flusher(hub, RuntimeConfig(**{"flush_interval_s": 60, "ack_timeout_s": 20, **settings}))
        started.append(flusher)
        return flusher

    yield make
    hub.is_there.set()
    hub.dead = None
    for flusher in started:
        with contextlib.suppress(ProcessingError):
            flusher.close()


def test_the_thread_sends_without_being_asked(hub, start):
    flusher = start(flush_interval_s=0.01)
    flusher.pending.extend(rows(1, 2))
    assert hub.got.wait(10)
    flusher.close()
    assert hub.values() == [1.0, 2.0]
    assert flusher.latest == {"m": 2.0}


def test_close_sends_what_is_left_in_order_and_in_batches(hub, start):
    flusher = start()
    flusher.pending.extend(rows(*range(2 * MAX_BATCH_EVENTS + 5)))
    flusher.submit(text())
    flusher.close()
    assert [len(batch) for batch in hub.batches] == [MAX_BATCH_EVENTS, MAX_BATCH_EVENTS, 5]
    assert hub.values() == list(map(float, range(2 * MAX_BATCH_EVENTS + 5)))
    assert hub.media == [text()]


def test_a_hub_that_was_away_gets_everything_once(hub, start):
    flusher = start(flush_interval_s=0.01)
    hub.is_there.clear()
    flusher.pending.extend(rows(1, 2))
    flusher.submit(text())
    assert hub.missed.wait(10)
    flusher.pending.extend(rows(3))
    hub.is_there.set()
    flusher.flush()
    assert hub.values() == [1.0, 2.0, 3.0]
    assert hub.media == [text()]


def test_a_hub_that_stays_away_is_an_error_where_the_values_are_needed_and_nothing_is_lost_by_it(hub, start):
    flusher = start(ack_timeout_s=0.05)
    hub.is_there.clear()
    flusher.pending.extend(rows(1, 2))
    with pytest.raises(ProcessingError, match=r"accepted no values for 0.05 s: gone for now; 2 values stay queued"):
        flusher.flush()
    flusher.pending.extend(rows(3))
    hub.is_there.set()

    def is_sent():
        with contextlib.suppress(ProcessingError):
            flusher.flush()
        return not flusher.num_waiting

    wait_until(is_sent)
    assert hub.values() == [1.0, 2.0, 3.0]


def test_close_gives_up_after_a_while_and_says_how_much_is_lost(hub, start):
    flusher = start(ack_timeout_s=0.05)
    hub.is_there.clear()
    flusher.pending.extend(rows(1, 2, 3))
    with pytest.raises(ProcessingError, match="3 values are not logged"):
        flusher.close()
    hub.is_there.set()
    with pytest.raises(ProcessingError, match="closed"):
        flusher.flush()
    assert hub.values() == []


def test_a_hub_that_is_slow_is_not_one_that_is_away(hub, start):
    flusher = start(ack_timeout_s=4)
    began = time.monotonic()
    log_operation = hub.log_operation

    def log_slowly(operation, **key):
        threading.Event().wait(0.25)
        log_operation(operation, **key)

    hub.log_operation = log_slowly
    for _ in range(18):
        flusher.submit(text())
    flusher.flush()
    assert time.monotonic() - began > 4
    assert len(hub.media) == 18


def test_a_hub_that_is_dead_is_an_error_at_once(hub, start, capfd):
    flusher = start()
    hub.dead = RunClosedError("run 'run' is closed")
    flusher.pending.extend(rows(1))
    for _ in range(2):
        with pytest.raises(ProcessingError, match="1 are not logged: run 'run' is closed"):
            flusher.flush()
    with pytest.raises(ProcessingError):
        flusher.close()
    assert capfd.readouterr().err.count("accepts no further values") == 1


def test_a_full_queue_stops_those_that_log_until_the_hub_is_back(hub, start, capfd):
    flusher = start(max_pending_events=1000)
    hub.is_there.clear()
    flusher.pending.extend(rows(*range(1000)))
    flushing = threading.Thread(target=flusher.flush)
    flushing.start()
    for _ in range(2):  # at the second failure, the flusher has handled the first
        assert hub.missed.wait(20)
        hub.missed.clear()
    flusher.pending.extend(rows(*range(1000, 2000)))
    rooms = []
    threads = [threading.Thread(target=lambda: rooms.append(flusher.make_room())) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert not rooms
    hub.is_there.set()
    for thread in [*threads, flushing]:
        thread.join(20)
    assert rooms == [True, True, True]
    flusher.flush()
    assert hub.values() == list(map(float, range(2000)))
    assert capfd.readouterr().err.count("too many values are queued for the hub (gone for now)") == 1


def test_a_full_queue_that_is_never_emptied_is_an_error(hub, start):
    flusher = start(max_pending_events=1000)
    hub.dead = RunClosedError("run 'run' is closed")
    flusher.pending.extend(rows(*range(1000)))
    with pytest.raises(ProcessingError, match="closed"):
        flusher.make_room()
    flusher.pending.extend(rows(*range(1000)))
    with pytest.raises(ProcessingError, match="closed"):
        flusher.make_room()


def test_what_is_dropped_is_counted_and_the_training_goes_on(hub, start):
    flusher = start(max_pending_events=1000, overflow="drop")
    hub.is_there.clear()
    assert not any(flusher.make_room() for _ in range(7))
    for _ in range(MAX_PENDING_MEDIA + 3):
        flusher.submit(text())
    hub.is_there.set()
    flusher.flush()
    assert hub.dropped == {"overflow": 10}
    assert len(hub.media) == MAX_PENDING_MEDIA


def test_large_pictures_wait_for_room(hub, start):
    flusher = start()
    for number in range(10):
        flusher.submit(LogImage("big", number, 0.0, 1, 1, 1, bytes(20 << 20)))
        assert flusher.num_waiting <= 5
    flusher.flush()
    assert [image.step for image in hub.media] == list(range(10))


def test_rows_that_no_batch_can_hold_are_counted_and_the_others_sent(hub, start):
    flusher = start()
    flusher.pending.extend([*rows(1), ("m", 1.0, 1 << 80, 0.0, None), *rows(2)])
    flusher.flush()
    assert hub.values() == [1.0, 2.0]
    assert hub.dropped == {"step_out_of_range": 1}


def test_the_last_value_of_each_name_is_known_and_there_is_an_end_to_it(start):
    flusher = start()
    flusher.pending.extend([("a", 1.0, 1, 0.0, None), ("b", 2.0, 1, 0.0, None), ("a", 3.0, 1, 0.0, None)])
    flusher.flush()
    assert flusher.latest == {"a": 3.0, "b": 2.0}
    flusher.pending.extend((f"name {number}", 1.0, 1, 0.0, None) for number in range(2 * MAX_LATEST_NAMES))
    flusher.pending.append(("a", 4.0, 1, 0.0, None))
    flusher.flush()
    assert len(flusher.latest) == MAX_LATEST_NAMES
    assert flusher.latest["a"] == 4.0


def test_ctrl_c_while_waiting_loses_and_doubles_nothing(hub, start):
    flusher = start(max_pending_events=1000)
    hub.is_there.clear()
    flusher.pending.extend(rows(*range(1000)))

    def interrupt():
        assert hub.missed.wait(10)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    for wait in (flusher.flush, flusher.make_room):
        hub.missed.clear()
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            wait()
        flusher.pending.extend(rows(*range(1000)))
    hub.is_there.set()
    flusher.flush()
    assert hub.values() == list(map(float, range(1000))) * 3


def test_ctrl_c_while_closing_ends_it_and_says_how_much_is_lost(hub, start, capfd):
    before = set(threading.enumerate())
    flusher = start()
    hub.is_there.clear()
    flusher.pending.extend(rows(1, 2))

    def interrupt():
        assert hub.missed.wait(10)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        flusher.close()
    wait_until(lambda: set(threading.enumerate()) <= before)
    assert "2 values are not logged" in capfd.readouterr().err


def test_flush_covers_what_was_logged_before_it_while_others_go_on(hub, start):
    flusher, stop = start(max_pending_events=1000), threading.Event()

    def log():
        while not stop.is_set():
            if len(flusher.pending) < 1000 or flusher.make_room():
                flusher.pending.extend(rows(-1))

    others = [threading.Thread(target=log) for _ in range(2)]
    for thread in others:
        thread.start()
    for value in range(20):
        flusher.pending.extend(rows(value))
        flusher.flush()
        assert float(value) in hub.values()
    stop.set()
    for thread in others:
        thread.join()


def test_owners_are_told_of_the_end_and_not_kept_alive(start):
    flusher, owner, gone = start(), Owner(), Owner()
    flusher.attach(owner.end)
    flusher.attach(gone.end)
    del gone
    flusher.close()
    flusher.close()
    assert owner.num_ends == 1


def test_a_process_has_one_flusher_for_each_hub():
    runtime = RuntimeConfig()
    one, again, other = (flusher_of(Hub(key), runtime) for key in ("a", "a", "b"))
    assert one is again
    assert one is not other
    one.close()
    new = flusher_of(Hub("a"), runtime)
    assert new is not one
    for flusher in (new, other):
        flusher.close()


def test_what_cannot_be_sent_at_exit_is_said(hub, start, capfd):
    flusher, owner = flusher_of(hub, RuntimeConfig(flush_interval_s=60)), Owner()
    flusher.attach(owner.end)
    flusher.pending.extend(rows(1))
    flusher.close_at_exit()
    assert hub.values() == [1.0]
    hub.works_at_exit = False
    flusher = flusher_of(hub, RuntimeConfig(flush_interval_s=60))
    flusher.pending.extend(rows(2, 3))
    flusher.close_at_exit()
    assert hub.values() == [1.0]
    assert "2 values of this process were not sent" in capfd.readouterr().err


def test_a_forked_child_forgets_the_flushers_of_its_parent(hub):
    flusher, owner = flusher_of(hub, RuntimeConfig()), Owner()
    flusher.attach(owner.end)
    is_new = in_a_child(lambda: owner.num_ends == 1 and flusher_of(hub, RuntimeConfig()) is not flusher)
    assert is_new == 1
    assert owner.num_ends == 0
    flusher.close()


def test_whoever_attaches_while_a_flusher_ends_is_told(start):
    flusher = start(flush_interval_s=0.01)
    owners = [Owner() for _ in range(400)]
    switched = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            attached = [pool.submit(flusher.attach, owner.end) for owner in owners]
            pool.submit(flusher.detach_all)
        assert all(future.result() for future in attached)
    finally:
        sys.setswitchinterval(switched)
    assert [owner.num_ends for owner in owners] == [1] * len(owners)


def test_a_flusher_that_nobody_uses_any_more_ends_and_the_next_client_gets_another(hub, monkeypatch):
    monkeypatch.setattr(flushers, "IDLE_S", 0.0)
    runtime, owner = RuntimeConfig(flush_interval_s=0.01), Owner()
    flusher = flusher_of(hub, runtime)
    assert flusher.attach(owner.end)
    flusher.pending.extend(rows(1))
    flusher.flush()
    assert flusher_of(hub, runtime) is flusher
    flusher.detach(owner.end)
    wait_until(lambda: flusher_of(hub, runtime) is not flusher)
    assert not flusher.attach(owner.end)
    with RunClient(hub, runtime) as client:
        client.log("m", 2.0)
    assert hub.values() == [1.0, 2.0]
    assert owner.num_ends == 0


def test_pending_histograms_are_bounded_by_their_bytes(hub, start):
    flusher = start(overflow="drop")
    hub.is_there.clear()
    for step in range(100):
        flusher.submit(LogHistogram("h", step, 0.0, [0.0] * 100_001, [0.0] * 100_000, 0.0, 0.0))
    assert flusher.num_waiting * 200_000 * 8 < 64 << 20
