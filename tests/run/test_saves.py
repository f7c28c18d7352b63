import os
import signal
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from trieye.exceptions import CheckpointError
from trieye.hub.saved_states import Saved
from trieye.run.saves import PendingSaves


class Writer:
    """Returns futures that the test completes."""

    def __init__(self):
        self.begun = []

    def begin(self, step):
        def start():
            future = Future()
            self.begun.append((step, future))
            return future

        return start

    def end(self, index=-1, error=None):
        step, future = self.begun[index]
        if error is None:
            future.set_result(Saved(f"/run/checkpoint_step_{step}"))
        else:
            future.set_exception(error)


@pytest.fixture
def writer():
    return Writer()


def add(saves, writer, step, *, rated=False, parts=()):
    saves.make_room(rated=rated)
    handle = saves.add(step, writer.begin(step), parts=parts, rated=rated)
    saves.report(wait=False, exclude=handle)
    return handle


def test_a_handle_tells_when_its_save_is_done(writer):
    handle = add(PendingSaves("run"), writer, 5)
    assert not handle.done
    assert handle.path is None
    with pytest.raises(TimeoutError):
        handle.wait(0.01)
    writer.end()
    assert handle.done
    assert handle.wait() == handle.path
    assert handle.path.name == "checkpoint_step_5"
    assert "of step 5, done" in repr(handle)


def test_a_failed_save_is_raised_by_its_handle_and_by_the_next_one(writer):
    saves = PendingSaves("run")
    handle = add(saves, writer, 5)
    writer.end(error=OSError("disk full"))
    with pytest.raises(CheckpointError, match="a checkpoint of run 'run' was not saved: disk full"):
        handle.wait()
    assert handle.done
    assert handle.path is None
    with pytest.raises(CheckpointError, match="disk full"):
        add(saves, writer, 6)
    assert add(saves, writer, 6).step == 6  # reported once


def test_a_save_that_cannot_even_begin_raises_at_once_and_only_once():
    def begin():
        raise ConnectionError("the hub is gone")

    saves = PendingSaves("run")
    with pytest.raises(ConnectionError):
        saves.add(1, begin, parts=(), rated=False)
    saves.report(wait=True)


def test_in_a_queue_the_third_save_waits_for_the_first(writer):
    saves = PendingSaves("run", "queue")
    first, _ = add(saves, writer, 1), add(saves, writer, 2)
    with ThreadPoolExecutor(1) as pool:
        third = pool.submit(add, saves, writer, 3)
        with pytest.raises(TimeoutError):
            third.result(0.05)
        writer.end(0)
        assert third.result(10).step == 3
    assert first.done
    assert [step for step, _ in writer.begun] == [1, 2, 3]


def test_coalescing_saves_replace_the_one_that_was_not_begun(writer):
    saves = PendingSaves("run", "coalesce")
    handles = [add(saves, writer, step) for step in (1, 2, 3, 4)]
    assert [step for step, _ in writer.begun] == [1]
    assert [handle.superseded for handle in handles] == [False, True, True, False]
    writer.end()
    assert [step for step, _ in writer.begun] == [1, 4]
    assert not handles[1].done
    writer.end()
    assert [handle.wait().name for handle in handles[1:]] == ["checkpoint_step_4"] * 3
    saves.report(wait=True)


def test_a_save_that_says_how_good_it_is_is_never_replaced(writer):
    saves = PendingSaves("run", "coalesce")
    add(saves, writer, 1)
    rated = add(saves, writer, 2, rated=True)
    with ThreadPoolExecutor(1) as pool:
        third = pool.submit(add, saves, writer, 3)
        with pytest.raises(TimeoutError):
            third.result(0.05)
        writer.end(0)
        third.result(10)
    writer.end(1)
    assert rated.wait().name == "checkpoint_step_2"
    assert [step for step, _ in writer.begun] == [1, 2, 3]


def test_a_save_that_comes_between_the_end_of_one_and_the_begin_of_the_next_replaces_neither(writer):
    saves = PendingSaves("run", "coalesce")
    first = add(saves, writer, 1)
    rated = add(saves, writer, 2, rated=True)
    first._outcome.add_done_callback(lambda _: add(saves, writer, 3))  # done before `rated` is started
    writer.end(0)
    writer.end(1)
    assert rated.wait(10).name == "checkpoint_step_2"
    writer.end(2)
    assert [step for step, _ in writer.begun] == [1, 2, 3]


def test_a_waiting_save_that_cannot_begin_is_reported(writer):
    def begin():
        raise ConnectionError("the hub is gone")

    saves = PendingSaves("run", "coalesce")
    add(saves, writer, 1)
    late = saves.add(2, begin, parts=(), rated=False)
    writer.end()
    with pytest.raises(CheckpointError, match="the hub is gone"):
        saves.report(wait=True)
    assert late.done


def test_parts_are_known_when_their_checkpoint_is_safe(writer):
    saves = PendingSaves("run")
    saves.restored({"a"})
    assert saves.known_parts == {"a"}
    add(saves, writer, 1, parts=("a", "b"))
    assert saves.known_parts == {"a"}
    writer.end()
    assert saves.known_parts == {"a", "b"}
    add(saves, writer, 2, parts=("b", "c"))
    writer.end(error=OSError())
    assert saves.known_parts == set()


def test_a_failed_save_keeps_nobody_from_waiting_for_the_others(writer):
    saves = PendingSaves("run", "coalesce")
    add(saves, writer, 1)
    last = add(saves, writer, 2)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(saves.report, wait=True)
        writer.end(0, error=OSError("disk full"))
        with pytest.raises(TimeoutError):
            closing.result(0.05)
        writer.end(1)
        with pytest.raises(CheckpointError, match="disk full"):
            closing.result(10)
    assert last.path is not None


def test_waiting_that_is_interrupted_forgets_no_save(writer):
    saves = PendingSaves("run")
    add(saves, writer, 1)
    add(saves, writer, 2)
    for wait in (lambda: saves.make_room(rated=False), lambda: saves.report(wait=True)):
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            wait()
    writer.end(0, error=OSError("disk full"))
    with pytest.raises(CheckpointError, match="disk full"):
        saves.report(wait=False)


def test_a_save_that_comes_as_another_one_ends_never_overtakes_it(writer):
    saves = PendingSaves("run", "coalesce")
    first, second = add(saves, writer, 1), add(saves, writer, 2)
    with saves._lock:  # the first save ends just before the next save checks
        ending = threading.Thread(target=writer.end, args=(0,))
        ending.start()
        first.wait(10)
        third = add(saves, writer, 3)
    ending.join()
    assert [step for step, _ in writer.begun] == [1, 3]
    assert second.superseded
    writer.end(1)
    assert third.wait(10) == second.wait(10)


def test_whoever_waits_for_a_save_that_is_replaced_gets_its_successor(writer):
    saves = PendingSaves("run", "coalesce")
    add(saves, writer, 1)
    replaced = add(saves, writer, 2)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(replaced.wait)
        with pytest.raises(TimeoutError):
            waiting.result(0.05)
        add(saves, writer, 3)
        writer.end(0)
        writer.end(1)
        assert waiting.result(10).name == "checkpoint_step_3"


def test_a_waiting_save_that_cannot_begin_lets_the_next_one_begin(writer):
    released = threading.Event()

    def begin():
        released.wait(10)
        raise ConnectionError("the hub is gone")

    saves = PendingSaves("run", "coalesce")
    add(saves, writer, 1)
    saves.add(2, begin, parts=(), rated=True)
    ending = threading.Thread(target=writer.end)
    ending.start()
    third = saves.add(3, writer.begin(3), parts=(), rated=False)
    released.set()
    ending.join()
    writer.end()
    assert third.wait(10).name == "checkpoint_step_3"


def test_parts_that_a_save_under_way_leaves_behind_are_not_known(writer):
    saves = PendingSaves("run")
    saves.restored({"a", "b"})
    add(saves, writer, 1, parts=("b", "c"))
    assert saves.known_parts == {"b"}  # when it is done, retention may delete what holds `a`
    writer.end()
    assert saves.known_parts == {"b", "c"}
