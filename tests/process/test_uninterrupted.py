"""Signals do not interrupt the calls of the main thread."""

import os
import signal
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.forked import in_a_child
from trieye.process.worker import uninterrupted


class AlarmError(Exception):
    pass


@pytest.fixture
def alarms():
    """Return a list that grows by one with each SIGALRM, whose handler then raises."""
    received = []

    def handle(signum, frame):
        received.append(signum)
        raise AlarmError

    old_handler = signal.signal(signal.SIGALRM, handle)
    yield received
    signal.signal(signal.SIGALRM, old_handler)


def send_alarm(alarms):
    count = len(alarms)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)
    while len(alarms) == count:
        pass


def test_the_exception_of_a_signal_handler_follows_the_end_of_the_call(alarms):
    ended = []

    def call():
        send_alarm(alarms)
        ended.append(True)

    with pytest.raises(AlarmError):
        uninterrupted(call)
    assert ended == [True]
    assert uninterrupted(lambda: "next") == "next"


@pytest.mark.parametrize(("is_patient", "num_alarms"), [(True, 2), (False, 1)])
def test_a_second_exception_or_the_first_of_an_impatient_call_does_not_wait(alarms, is_patient, num_alarms):
    may_end = threading.Event()

    def call():
        for _ in range(num_alarms):
            send_alarm(alarms)
        may_end.wait(10)

    with pytest.raises(AlarmError):
        uninterrupted(call, is_patient=is_patient)
    assert not may_end.is_set()
    assert uninterrupted(lambda: "next") == "next"
    may_end.set()


def test_a_signal_handler_may_make_calls(alarms):
    results = []
    signal.signal(signal.SIGALRM, lambda *_: results.append(uninterrupted(lambda: alarms.append(1))))
    uninterrupted(lambda: send_alarm(alarms))
    assert results == [None]


def test_errors_keep_their_traceback():
    def call():
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong") as error:
        uninterrupted(call)
    assert traceback.extract_tb(error.value.__traceback__)[-1].name == "call"


def test_calls_of_forked_children_and_other_threads_return():
    assert uninterrupted(os.getpid) == os.getpid()
    assert in_a_child(lambda: uninterrupted(os.getpid) != os.getpid()) == 0
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(uninterrupted, threading.get_ident).result() == pool.submit(threading.get_ident).result()
