import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import pytest

from tests import warm
from tests.waiting import wait_until
from trieye.hub.status import read_status

pytestmark = pytest.mark.usefixtures("warm_programs")
WARM = warm.RUN


def log(run, count):
    for step in range(count):
        run.log("loss", step / 4, step=step)
    run.flush()
    wait_until(lambda: read_status(run.dir).get("accepted", 0) == count)


def test_watch_once_shows_the_current_state_of_an_active_run(run, command):
    log(run, 9)
    wait_until(lambda: read_status(run.dir)["metrics"].get("loss", {}).get("step") == 7)
    text = command.output("watch", run.dir, "--once")
    assert re.search(rf"app/run  RUNNING  attempt 1, for \d+ s, process {os.getpid()}\n", text)
    assert "events 9 " in text
    assert "tensorboard" in text
    assert ["loss", "1.75", "0", "1.75", "7"] in [line.split() for line in text.splitlines()]


def test_explorers_have_separate_lines(run, command):
    metrics = {"explorer/alive": 3, "explorer/restarts": 2, "explorer/lost_fragments": 0}
    metrics |= {"sync/version": 41, "sync/publish_ms": 1.5, "explorer/10/staleness": 2, "explorer/0/staleness": 1}
    metrics |= {"replay/staleness_mean": 0.25, "replay/staleness_max": 2}
    for step in range(3):
        run.log(metrics | {"loss": 1.0}, step=step)
    run.flush()
    wait_until(lambda: "loss" in read_status(run.dir).get("metrics", {}))
    lines = " ".join(command.output("watch", run.dir, "--once").split())
    expected = "explorers alive 3 · version 41 · ms to publish 1.5 · staleness mean 0.25 · max 2"
    assert f"{expected} · restarts 2 · fragments lost 0 lag 0: 1, 10: 2" in lines
    assert not re.search(r"explorer/|sync/", lines)
    assert "loss" in lines


def test_a_killed_run_is_shown_with_the_command_that_closes_it(killed_run, command):
    text = " ".join(command.output("watch", killed_run()).split())
    assert "agents/first RUNNING attempt 1" in text
    assert "finish it with `trieye close`" in text
    assert "process 1" not in text


def test_a_closed_run_shows_its_final_status(run, make_config, command):
    log(run, 3)
    run.close()
    text = command.output("watch", run.dir)
    assert "FINISHED" in text
    assert ["tensorboard", "0", "0", "s"] in [line.split() for line in text.splitlines()]


@contextlib.contextmanager
def live_view(run):
    """Yield the process of the live view, and a function that reads its output until a text has occurred so often."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "trieye.cli", "watch", str(run.dir), "--interval", "0.1"],
        stdout=follower,
        stderr=subprocess.STDOUT,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
    )
    os.close(follower)
    output = b""

    def read(text, count=1):
        nonlocal output
        deadline = time.monotonic() + 30
        with contextlib.suppress(OSError):  # the end of a terminal
            while output.count(text) < count:
                assert time.monotonic() < deadline, output
                if select.select([leader], [], [], 1.0)[0]:
                    output += os.read(leader, 65536)
        return output

    try:
        yield process, read
    finally:
        process.kill()
        process.wait()
        os.close(leader)


def test_the_live_view_waits_for_the_start_of_the_run_and_ends_with_ctrl_c(run):
    log(run, 9)
    record = run.dir / "run.json"
    hidden = record.rename(record.with_name("hidden.json"))  # as before the start
    with live_view(run) as (process, read):
        read(b"waiting for the start")
        hidden.rename(record)
        read(b"loss", 3)  # it keeps refreshing
        process.send_signal(signal.SIGINT)
        output = read(b"never", 1)
        assert process.wait(30) == 0
    assert output.count(b"waiting for the start") == 1
    assert b"Traceback" not in output


@pytest.mark.long
def test_the_live_view_ends_with_the_run_after_its_final_state(run):
    log(run, 9)
    with live_view(run) as (process, read):
        read(b"RUNNING")
        run.close()
        assert b"FINISHED" in read(b"never")
        assert process.wait(30) == 0


@pytest.mark.parametrize("has_ended", [False, True])
def test_wait_prints_the_first_status_of_the_run_or_its_end(has_ended, run, command, monkeypatch):
    statuses = []

    def unpublished_twice(run_dir):
        statuses.append(read_status(run_dir))
        if len(statuses) == 3 and has_ended:
            run.close()
        return {} if has_ended or len(statuses) < 3 else statuses[-1]

    log(run, 9)
    monkeypatch.setattr("trieye.cli.views.read_status", unpublished_twice)
    document = json.loads(command.output("watch", run.dir, "--wait", "--json"))
    assert document["hub"]["accepted"] == 9
    assert document["status"] == ("FINISHED" if has_ended else "RUNNING")


def test_the_error_for_a_missing_run_offers_wait(tmp_path, command):
    arguments, hint = ("watch", "early", "--root", tmp_path / "root"), "; to wait for its start, add --wait\n"
    assert hint in command.error(*arguments)
    (tmp_path / "root" / "app" / "runs" / "first").mkdir(parents=True)
    (tmp_path / "root" / "app" / "runs" / "first" / "run.json").write_text("{}")
    assert hint in command.error(*arguments)


def test_waiting_for_a_run_does_not_hide_an_ambiguous_name(tmp_path, command):
    for app in ("one", "other"):
        (tmp_path / app / "runs" / "first").mkdir(parents=True)
        (tmp_path / app / "runs" / "first" / "run.json").write_text("{}")
    assert "one/first" in command.error("watch", "first", "--wait", "--once", "--root", tmp_path)


def test_a_duration_that_no_wait_can_take_is_refused(command):
    for name, option in (("watch", "--interval"), ("close", "--timeout")):
        for duration in ("nan", "inf", "-1", "1e10", "2s"):
            err = command.error(name, "first", f"{option}={duration}")
            assert f"argument {option}: invalid value '{duration}'; expected a number of seconds" in err
