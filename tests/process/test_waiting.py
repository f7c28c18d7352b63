"""Waiting while work makes progress: for a hub, sinks and other reporters of progress."""

import io
import os
import random
import signal
import sys
import threading
import time

import pytest

import trieye
from tests.waiting import wait_until
from trieye.cli import main
from trieye.history.table import read_history
from trieye.process import waiting
from trieye.process.waiting import Backoff, moved_bytes, wait_while_moving
from trieye.run import attempt


def test_waiting_continues_with_progress_and_times_out_without():
    polls, never = [], threading.Event()

    def progress():
        polls.append(None)
        return min(len(polls), 20)

    assert not wait_while_moving(never.wait, progress, 0.05, poll_s=0.01)
    assert len(polls) > 20


def test_waiting_ends_when_the_work_is_done(monkeypatch):
    polls, done, reports = [], threading.Event(), []
    monkeypatch.setattr(waiting, "TELL_EVERY_S", 0.0)

    def progress():
        polls.append(None)
        if len(polls) == 5:
            done.set()
        return len(polls)

    assert wait_while_moving(done.wait, progress, 0.05, poll_s=0.01, tell=reports.append)
    assert reports == [1, 2, 3, 4, 5]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the bytes that a process reads and writes")
def test_moved_bytes_counts_reads_and_writes(tmp_path):
    before = moved_bytes()
    (tmp_path / "a").write_bytes(bytes(32 << 20))
    written = moved_bytes()
    (tmp_path / "a").read_bytes()
    assert (written - before) >> 20 >= 16
    assert (moved_bytes() - written) >> 20 >= 16


def test_a_hub_call_times_out_only_without_progress(ray_cluster):
    import ray

    from trieye.hub.in_ray import RayEventChannel

    @ray.remote(concurrency_groups={"wait": 1})
    class Hub:
        def __init__(self, most, enough):
            self.polls, self.most, self.enough = 0, most, enough

        def work(self):
            deadline = time.monotonic() + 60
            while self.polls < self.enough and time.monotonic() < deadline:
                time.sleep(0.01)
            return self.polls

        @ray.method(concurrency_group="wait")
        def progress(self):
            self.polls += 1
            return f"{min(self.polls, self.most)} GiB"

    moving, still = Hub.remote(9, 4), Hub.remote(1, 1000)
    ray.get([moving.progress.remote(), still.progress.remote()])
    assert RayEventChannel(moving, "run", "key").answer(moving.work.remote(), 0.5) >= 4
    with pytest.raises(ConnectionError, match=r"'run' made no progress for 0\.5 s"):
        RayEventChannel(still, "run", "key").answer(still.work.remote(), 0.5)


@pytest.mark.long
@pytest.mark.slow
def test_close_times_out_on_a_stalled_hub_and_names_the_command_that_delivers(make_config, ray_cluster):
    stats = {"metrics": [{"name": "a", "aggregation": "count"}]}
    run = trieye.Run(make_config(runtime={"kind": "ray", "stall_timeout_s": 3.0}, stats=stats)).open()
    run.log("a", 1.0, step=1)
    run.flush()
    pid = run.health()["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(trieye.TrieyeError, match=f"no progress for 3 s.*trieye close {run.dir}"):
            run.close()
    finally:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: main(["close", str(run.dir)]) == 0)  # the kernel has to end the hub, which holds a lock
    assert read_history(run.dir, metrics=["a"]).column("value").to_pylist() == [1.0]


@pytest.mark.long
def test_a_long_close_reports_the_pending_work(make_config, monkeypatch):
    monkeypatch.setattr(attempt, "TELL_EVERY_S", 0.05)
    monkeypatch.setattr(sys, "stderr", messages := io.StringIO())
    with trieye.Run(make_config()) as run:
        close = run._attempt.hub.close

        def close_late(status, **options):
            with run_status.doing("saving step 7"):
                wait_until(lambda: "saving step 7" in messages.getvalue())
            close(status, **options)

        run_status = run._attempt.hub._logic.status
        run._attempt.hub.close = close_late
    assert "closing run 'run': saving step 7; " in messages.getvalue()


def test_pauses_double_up_to_the_maximum_and_reset_after_success():
    backoff = Backoff(0.5, 3.0)
    assert [backoff.failed() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert backoff.failures == 5
    backoff.worked()
    assert (backoff.failures, backoff.failed()) == (0, 0.5)
    for _ in range(10_000):
        backoff.failed()


def test_pauses_are_jittered_without_using_the_global_generator():
    before, backoff = random.getstate(), Backoff(1.0, 1.0, spread=0.25)
    pauses = {backoff.failed() for _ in range(100)}
    assert len(pauses) > 50
    assert 0.75 <= min(pauses) <= max(pauses) <= 1.25
    assert random.getstate() == before
