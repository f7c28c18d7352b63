import contextlib
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.forked import in_a_child
from tests.run.hub import Hub
from tests.waiting import wait_until
from trieye.config import RuntimeConfig
from trieye.exceptions import ProcessingError, RunClosedError
from trieye.run import flusher as flushers
from trieye.run.flusher import MAX_BATCH_EVENTS, MAX_LATEST_NAMES, MAX_PENDING_MEDIA, Flusher, flusher_of
from trieye.run.recorder import RunClient
from trieye.stats.operations import LogHistogram, LogImage, LogText


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
    hub.is_reachable.set()
    hub.closed_error = None
    for flusher in started:
        with contextlib.suppress(ProcessingError):
            flusher.close()


def test_close_sends_pending_values_in_order_and_in_batches(hub, start):
    flusher = start()
    flusher.pending.extend(rows(*range(2 * MAX_BATCH_EVENTS + 5)))
    flusher.submit(text())
    flusher.close()
    assert [len(batch) for batch in hub.batches] == [MAX_BATCH_EVENTS, MAX_BATCH_EVENTS, 5]
    assert hub.values() == list(map(float, range(2 * MAX_BATCH_EVENTS + 5)))
    assert hub.media == [text()]


def test_the_thread_sends_at_intervals_and_every_value_exactly_once_to_a_recovered_hub(hub, start):
    flusher = start(flush_interval_s=0.01)
    flusher.pending.extend(rows(0))
    assert hub.accepted.wait(10)
    hub.is_reachable.clear()
    flusher.pending.extend(rows(1, 2))
    flusher.submit(text())
    assert hub.rejected.wait(10)
    flusher.pending.extend(rows(3))
    hub.is_reachable.set()
    flusher.flush()
    assert hub.values() == [0.0, 1.0, 2.0, 3.0]
    assert hub.media == [text()]


def test_flush_raises_if_the_hub_is_unreachable_and_keeps_the_values(hub, start):
    flusher = start(ack_timeout_s=0.05)
    hub.is_reachable.clear()
    flusher.pending.extend(rows(1, 2))
    with pytest.raises(ProcessingError, match=r"accepted no values for 0.05 s: gone for now; 2 values stay queued"):
        flusher.flush()
    flusher.pending.extend(rows(3))
    hub.is_reachable.set()

    def is_sent():
        with contextlib.suppress(ProcessingError):
            flusher.flush()
        return not flusher.num_waiting

    wait_until(is_sent)
    assert hub.values() == [1.0, 2.0, 3.0]


def test_close_times_out_and_reports_the_number_of_lost_values(hub, start):
    flusher = start(ack_timeout_s=0.05)
    hub.is_reachable.clear()
    flusher.pending.extend(rows(1, 2, 3))
    with pytest.raises(ProcessingError, match="3 values are not logged"):
        flusher.close()
    hub.is_reachable.set()
    with pytest.raises(ProcessingError, match="closed"):
        flusher.flush()
    assert hub.values() == []


@pytest.mark.long
def test_flush_does_not_time_out_while_a_slow_hub_makes_progress(hub, start):
    flusher = start(ack_timeout_s=4)
    began = time.monotonic()
    send = hub.send

    def send_slowly(*content, **number):
        threading.Event().wait(0.25)
        send(*content, **number)

    hub.send = send_slowly
    for _ in range(18):
        flusher.submit(text())
    flusher.flush()
    assert time.monotonic() - began > 4
    assert len(hub.media) == 18


def test_a_closed_hub_is_an_error_of_each_call_with_one_message(hub, start, capfd):
    flusher = start(max_pending_events=1000)
    hub.closed_error = RunClosedError("run 'run' is closed")
    flusher.pending.extend(rows(1))
    for _ in range(2):
        with pytest.raises(ProcessingError, match="1 are not logged: run 'run' is closed"):
            flusher.flush()
    for _ in range(2):
        flusher.pending.extend(rows(*range(1000)))
        with pytest.raises(ProcessingError, match="closed"):
            flusher.make_room()
    with pytest.raises(ProcessingError):
        flusher.close()
    assert capfd.readouterr().err.count("accepts no further values") == 1


def test_a_full_queue_blocks_loggers_until_the_hub_recovers(hub, start, capfd):
    flusher = start(max_pending_events=1000)
    hub.is_reachable.clear()
    flusher.pending.extend(rows(*range(1000)))
    with ThreadPoolExecutor(4) as pool:
        flushing = pool.submit(flusher.flush)
        for _ in range(2):  # at the second failure, the flusher has handled the first
            assert hub.rejected.wait(20)
            hub.rejected.clear()
        flusher.pending.extend(rows(*range(1000, 2000)))
        waiting = [pool.submit(flusher.make_room) for _ in range(3)]
        assert not any(future.done() for future in waiting)
        hub.is_reachable.set()
        assert [future.result(20) for future in waiting] == [True] * 3
        flushing.result(20)
    flusher.flush()
    assert hub.values() == list(map(float, range(2000)))
    assert capfd.readouterr().err.count("too many values are queued for the hub (gone for now)") == 1


def test_overflow_drop_discards_and_counts_values_and_media(hub, start):
    flusher = start(max_pending_events=1000, overflow="drop")
    hub.is_reachable.clear()
    assert not any(flusher.make_room() for _ in range(7))
    for _ in range(MAX_PENDING_MEDIA + 3):
        flusher.submit(text())
    hub.is_reachable.set()
    flusher.flush()
    assert hub.dropped == {"overflow": 10}
    assert len(hub.media) == MAX_PENDING_MEDIA


def test_large_images_wait_until_the_queue_has_room(hub, start):
    flusher = start()
    for number in range(10):
        flusher.submit(LogImage("big", number, 0.0, 1, 1, 1, bytes(20 << 20)))
        assert flusher.num_waiting <= 5
    flusher.flush()
    assert [image.step for image in hub.media] == list(range(10))


def test_rows_that_fit_no_batch_are_counted_as_dropped_and_others_are_sent(hub, start):
    flusher = start()
    flusher.pending.extend([*rows(1), *[("m", 1.0, 1 << 80, 0.0, None)] * 2, *rows(2)])
    flusher.flush()
    assert hub.values() == [1.0, 2.0]
    assert hub.dropped == {"step_out_of_range": 2}


def test_the_latest_value_of_each_name_is_kept_up_to_a_limit(start):
    flusher = start()
    flusher.pending.extend([("a", 1.0, 1, 0.0, None), ("b", 2.0, 1, 0.0, None), ("a", 3.0, 1, 0.0, None)])
    flusher.flush()
    assert flusher.latest == {"a": 3.0, "b": 2.0}
    flusher.pending.extend((f"name {number}", 1.0, 1, 0.0, None) for number in range(2 * MAX_LATEST_NAMES))
    flusher.pending.append(("a", 4.0, 1, 0.0, None))
    flusher.flush()
    assert len(flusher.latest) == MAX_LATEST_NAMES
    assert flusher.latest["a"] == 4.0


def press_ctrl_c_during(call, hub):
    """Press Ctrl-C during a call, after the hub, which is unreachable, has rejected a batch."""

    def interrupt():
        assert hub.rejected.wait(10)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    hub.is_reachable.clear()
    hub.rejected.clear()
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        call()


def test_ctrl_c_while_waiting_neither_loses_nor_duplicates_values(hub, start):
    flusher = start(max_pending_events=1000)
    flusher.pending.extend(rows(*range(1000)))
    for wait in (flusher.flush, flusher.make_room):
        press_ctrl_c_during(wait, hub)
        flusher.pending.extend(rows(*range(1000)))
    hub.is_reachable.set()
    flusher.flush()
    assert hub.values() == list(map(float, range(1000))) * 3


def test_ctrl_c_ends_close_and_reports_the_number_of_lost_values(hub, start, capfd):
    before = set(threading.enumerate())
    flusher = start()
    flusher.pending.extend(rows(1, 2))
    press_ctrl_c_during(flusher.close, hub)
    wait_until(lambda: set(threading.enumerate()) <= before)
    assert "2 values are not logged" in capfd.readouterr().err


def test_flush_covers_values_logged_before_it_while_other_threads_log(hub, start):
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


def test_a_live_owner_is_notified_of_the_end_once(start):
    flusher, owner, deleted_owner = start(), Owner(), Owner()
    flusher.attach(owner.end)
    flusher.attach(deleted_owner.end)
    del deleted_owner
    flusher.close()
    flusher.close()
    assert owner.num_ends == 1


def test_a_process_has_one_flusher_per_hub():
    first, same, other = (flusher_of(Hub(key=key), RuntimeConfig()) for key in ("a", "a", "b"))
    assert first is same is not other
    for flusher in (first, other):
        flusher.close()
    with contextlib.closing(flusher_of(Hub(key="a"), RuntimeConfig())) as new:
        assert new is not first


def test_values_not_sent_at_exit_are_reported(hub, start, capfd):
    for is_connected, values in ((True, (1,)), (False, (2, 3))):
        hub.works_at_exit, flusher = is_connected, start()
        flusher.pending.extend(rows(*values))
        flusher.close_at_exit()
        assert hub.values() == [1.0]
    assert "2 values of this process were not sent" in capfd.readouterr().err


def test_a_forked_child_discards_the_flushers_of_its_parent(hub):
    flusher, owner = flusher_of(hub, RuntimeConfig()), Owner()
    flusher.attach(owner.end)
    is_new = in_a_child(lambda: owner.num_ends == 1 and flusher_of(hub, RuntimeConfig()) is not flusher)
    assert is_new == 1
    assert owner.num_ends == 0
    flusher.close()


def test_owners_attached_while_a_flusher_ends_are_notified_once(start):
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


def test_an_unused_flusher_ends_and_the_next_client_gets_a_new_one(hub, monkeypatch):
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
    hub.is_reachable.clear()
    edges, counts = [0.0] * 100_001, [0.0] * 100_000
    for step in range(100):
        flusher.submit(LogHistogram("h", step, 0.0, edges, counts, 0.0, 0.0))
    assert flusher.num_waiting * 200_000 * 8 < 64 << 20
