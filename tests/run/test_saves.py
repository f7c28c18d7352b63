import math
import os
import signal
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from trieye.exceptions import CheckpointError
from trieye.hub.saved_states import SavedCheckpoint
from trieye.run.saves import PendingSaves


class Writer:
    """Returns futures that the test completes."""

    def __init__(self):
        self.started = []

    def begin(self, step):
        def start():
            future = Future()
            self.started.append((step, future))
            return future

        return start

    def end(self, index=-1, error=None):
        step, future = self.started[index]
        if error is None:
            future.set_result(SavedCheckpoint(f"/run/checkpoint_step_{step}"))
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


def test_a_handle_reports_when_its_save_is_done(writer):
    handle = add(PendingSaves("run"), writer, 5)
    assert (handle.done, handle.path) == (False, None)
    with pytest.raises(TimeoutError):
        handle.wait(0.01)
    threading.Timer(0.05, writer.end).start()
    assert handle.wait(math.inf).name == "checkpoint_step_5"
    assert handle.done
    assert handle.wait() == handle.path
    assert "of step 5, done" in repr(handle)


def test_a_failed_save_is_raised_by_its_handle_and_by_the_next_save(writer):
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


@pytest.mark.parametrize(("policy", "rated"), [("queue", False), ("coalesce", True)])
def test_in_a_queue_or_after_a_rated_save_the_third_waits_for_the_first_and_replaces_none(writer, policy, rated):
    saves = PendingSaves("run", policy)
    first, second = add(saves, writer, 1), add(saves, writer, 2, rated=rated)
    with ThreadPoolExecutor(1) as pool:
        third = pool.submit(add, saves, writer, 3)
        with pytest.raises(TimeoutError):
            third.result(0.05)
        writer.end(0)
        assert third.result(10).step == 3
    assert first.done
    writer.end(1)
    assert second.wait().name == "checkpoint_step_2"
    assert [step for step, _ in writer.started] == [1, 2, 3]


def test_a_coalescing_save_replaces_the_pending_one_and_ends_the_waits_for_it(writer):
    saves = PendingSaves("run", "coalesce")
    handles = [add(saves, writer, step) for step in (1, 2)]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(handles[1].wait)
        with pytest.raises(TimeoutError):
            waiting.result(0.05)
        handles += [add(saves, writer, step) for step in (3, 4)]
        assert [step for step, _ in writer.started] == [1]
        assert [handle.superseded for handle in handles] == [False, True, True, False]
        writer.end()
        assert [step for step, _ in writer.started] == [1, 4]
        assert not handles[1].done
        writer.end()
        assert waiting.result(10).name == "checkpoint_step_4"
    assert [handle.wait().name for handle in handles[1:]] == ["checkpoint_step_4"] * 3
    saves.report(wait=True)


def test_a_request_about_a_waiting_save_begins_after_it(writer):
    saves = PendingSaves("run", "coalesce")
    add(saves, writer, 1)
    add(saves, writer, 2, rated=True)
    requests = [saves.after(step, writer.begin(f"rate {step}")) for step in (2, 7)]
    assert [step for step, _ in writer.started] == [1, "rate 7"]
    writer.end(0)
    writer.end(2)
    assert [step for step, _ in writer.started] == [1, "rate 7", 2, "rate 2"]
    writer.end(3, OSError("disk"))
    with pytest.raises(OSError, match="disk"):
        requests[0].result(10)
    saves.report(wait=True)


def test_a_save_added_between_the_end_of_one_and_the_start_of_the_next_replaces_neither(writer):
    saves = PendingSaves("run", "coalesce")
    first = add(saves, writer, 1)
    rated = add(saves, writer, 2, rated=True)
    first._outcome.add_done_callback(lambda _: add(saves, writer, 3))  # completes before `rated` starts
    writer.end(0)
    writer.end(1)
    assert rated.wait(10).name == "checkpoint_step_2"
    writer.end(2)
    assert [step for step, _ in writer.started] == [1, 2, 3]


def test_known_parts_are_those_of_the_newest_checkpoint_that_a_save_in_progress_repeats(writer):
    saves = PendingSaves("run")
    saves.restored({"a"})
    assert saves.known_parts == {"a"}
    add(saves, writer, 1, parts=("a", "b"))
    assert saves.known_parts == {"a"}
    writer.end()
    assert saves.known_parts == {"a", "b"}
    add(saves, writer, 2, parts=("b", "c"))
    assert saves.known_parts == {"b"}  # after the save, retention may delete the checkpoint with `a`
    writer.end(error=OSError())
    assert saves.known_parts == set()


def test_report_waits_for_other_saves_after_a_failed_one(writer):
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


def test_an_interrupted_wait_forgets_no_save(writer):
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


def test_a_save_added_while_another_ends_replaces_the_pending_one(writer):
    saves = PendingSaves("run", "coalesce")
    first, second = add(saves, writer, 1), add(saves, writer, 2)
    with saves._lock:  # the first save ends just before the next save checks
        ending = threading.Thread(target=writer.end, args=(0,))
        ending.start()
        first.wait(10)
        third = add(saves, writer, 3)
    ending.join()
    assert [step for step, _ in writer.started] == [1, 3]
    assert second.superseded
    writer.end(1)
    assert third.wait(10) == second.wait(10)


def test_a_save_that_cannot_start_is_reported_and_does_not_block_the_next(writer):
    released = threading.Event()

    def fail():
        raise ConnectionError("the hub is gone")

    def fail_when_released():
        released.wait(10)
        fail()

    saves = PendingSaves("run", "coalesce")
    with pytest.raises(ConnectionError):  # immediately, and only once
        saves.add(0, fail, parts=(), rated=False)
    add(saves, writer, 1)
    late = saves.add(2, fail_when_released, parts=(), rated=True)
    ending = threading.Thread(target=writer.end)
    ending.start()
    third = saves.add(3, writer.begin(3), parts=(), rated=False)
    released.set()
    ending.join()
    writer.end()
    assert third.wait(10).name == "checkpoint_step_3"
    with pytest.raises(CheckpointError, match="the hub is gone"):
        saves.report(wait=True)
    assert late.done
