"""A thread that works in rounds: every waiting thread wakes up, no matter how and when the worker ends."""

import signal
import threading

import pytest

from tests.waiting import wait_until
from trieye.process.worker import RoundWorker, Ticker


class Workshop:
    """Works in rounds that begin with `is_open`, and fails or stops on request."""

    def __init__(self, pause_s=60.0):
        self.num_done, self.num_rounds, self.error, self.ends = 0, 0, None, []
        self.is_open = threading.Event()
        self.worker = RoundWorker("workshop", self.work, lambda: pause_s, self.ends.append)
        self.worker.start()

    def work(self):
        self.num_rounds += 1
        if self.error is not None:
            raise self.error
        if not self.is_open.is_set():
            return False
        self.num_done += 1
        return True


@pytest.fixture
def workshop():
    created = Workshop()
    yield created
    created.worker.stop(RuntimeError("over"))
    created.worker.join()


def in_thread(call):
    results = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    return thread, results


def test_waiters_wake_up_when_the_worker_makes_progress(workshop):
    waits = [
        in_thread(lambda number=number: workshop.worker.wait_for(lambda: workshop.num_done >= number))
        for number in (1, 2, 3)
    ]
    wait_until(lambda: workshop.num_rounds)
    assert not any(results for _, results in waits)
    workshop.is_open.set()
    workshop.worker.wake()
    for thread, results in waits:
        thread.join(20)
        assert results == [True]


def test_wait_for_returns_immediately_if_true_and_times_out_if_false(workshop):
    assert workshop.worker.wait_for(lambda: True)
    assert workshop.num_rounds == 0
    assert not workshop.worker.wait_for(lambda: False, 0.01)


def test_rounds_repeat_after_the_pause():
    workshop = Workshop(pause_s=0.001)
    wait_until(lambda: workshop.num_rounds > 3)
    workshop.worker.stop(RuntimeError("over"))
    workshop.worker.join()


def test_next_round_waits_for_a_round_that_starts_after_the_call(workshop):
    workshop.is_open.set()
    for _ in range(100):
        before, is_over = workshop.num_rounds, workshop.worker.next_round()
        assert workshop.worker.wait_for(is_over, 20)
        assert workshop.num_rounds > before


@pytest.mark.parametrize("fails", [True, False])
def test_the_end_of_the_worker_ends_every_wait_and_is_reported_once(workshop, fails):
    thread, results = in_thread(lambda: workshop.worker.wait_for(lambda: False))
    wait_until(lambda: workshop.num_rounds)
    error = ValueError("broken" if fails else "stopped")
    if fails:
        workshop.error = error
        workshop.worker.wake()
    else:
        workshop.worker.stop(error)
    thread.join(20)
    assert results == [False]
    assert not workshop.worker.wait_for(lambda: False)
    workshop.worker.stop(RuntimeError("later"))
    workshop.worker.join()
    assert workshop.worker.failure is error
    assert workshop.ends == [error if fails else None]


def test_ctrl_c_while_waiting_leaves_nothing_locked(workshop):
    def interrupt():
        wait_until(lambda: workshop.num_rounds)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        workshop.worker.wait_for(lambda: False)
    workshop.is_open.set()
    assert workshop.worker.wait_for(lambda: workshop.num_done > 0, 20)


@pytest.mark.parametrize("interval_s", [1e10, float("inf")])
def test_a_ticker_takes_any_interval(interval_s):
    ticker = Ticker("ticker", lambda: None, interval_s)
    ticker._thread.join(0.05)
    assert ticker._thread.is_alive()
    ticker.stop()
