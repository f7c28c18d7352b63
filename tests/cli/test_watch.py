import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

from tests.waiting import wait_until
from trieye.cli import main
from trieye.hub.status import read_status


def log(run, count):
    for step in range(count):
        run.log("loss", step / 4, step=step)
    run.flush()
    wait_until(lambda: read_status(run.dir).get("accepted", 0) == count)


def test_one_look_at_a_run_that_is_alive_shows_how_it_is(run, capsys):
    log(run, 9)
    wait_until(lambda: read_status(run.dir)["metrics"].get("loss", {}).get("step") == 7)
    assert main(["watch", str(run.dir), "--once"]) == 0
    text = capsys.readouterr().out
    assert re.search(rf"app/run  RUNNING  attempt 1, for \d+ s, process {os.getpid()}\n", text)
    assert "events 9 " in text
    assert "tensorboard" in text
    assert ["loss", "1.75", "0", "1.75", "7"] in [line.split() for line in text.splitlines()]


def test_explorers_have_lines_of_their_own(run, capsys):
    seen = {
        "explorer/alive": 3,
        "explorer/restarts": 2,
        "explorer/lost_fragments": 0,
        "sync/version": 41,
        "sync/publish_ms": 1.5,
    }
    seen |= {
        "explorer/10/staleness": 2,
        "explorer/0/staleness": 1,
        "replay/staleness_mean": 0.25,
        "replay/staleness_max": 2,
    }
    for step in range(3):
        run.log(seen | {"loss": 1.0}, step=step)
    run.flush()
    wait_until(lambda: "loss" in read_status(run.dir).get("metrics", {}))
    assert main(["watch", str(run.dir), "--once"]) == 0
    lines = " ".join(capsys.readouterr().out.split())
    shown = "explorers alive 3 · version 41 · ms to publish 1.5 · staleness mean 0.25 · max 2"
    assert f"{shown} · restarts 2 · fragments lost 0 lag 0: 1, 10: 2" in lines
    assert not re.search(r"explorer/|sync/", lines)
    assert "loss" in lines


def test_a_pipe_gets_one_look(run):
    done = subprocess.run(
        [sys.executable, "-m", "trieye.cli", "watch", str(run.dir)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "app/run  RUNNING" in done.stdout


def test_a_run_that_was_killed_says_so_and_what_to_do(killed_run, capsys):
    assert main(["watch", str(killed_run())]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "agents/first RUNNING attempt 1" in text
    assert "finish it with `trieye close`" in text
    assert "process 1" not in text


def test_a_closed_run_shows_how_it_ended(run, make_config, capsys):
    log(run, 3)
    run.close()
    assert main(["watch", str(run.dir)]) == 0
    text = capsys.readouterr().out
    assert "FINISHED" in text
    assert ["tensorboard", "0", "0", "s"] in [line.split() for line in text.splitlines()]


def test_ctrl_c_ends_the_live_view_with_success(run):
    log(run, 9)
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "trieye.cli", "watch", str(run.dir), "--interval", "0.1"],
        stdout=follower,
        stderr=subprocess.STDOUT,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
    )
    os.close(follower)
    seen = b""
    deadline = time.monotonic() + 30
    while seen.count(b"loss") < 3:  # it goes on looking
        assert time.monotonic() < deadline, seen
        if select.select([leader], [], [], 1.0)[0]:
            seen += os.read(leader, 65536)
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(OSError):  # the end of a terminal
        while rest := os.read(leader, 65536):
            seen += rest
    os.close(leader)
    assert process.wait(30) == 0
    assert b"Traceback" not in seen
