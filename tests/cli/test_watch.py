import contextlib
import io
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console

import trieye
from tests.cli.conftest import wait_until
from trieye.cli import main, run_view
from trieye.cli.run_status import is_alive
from trieye.cli.run_view import duration, read_view, render
from trieye.exceptions import ConfigurationError
from trieye.hub.status import read_status


@pytest.fixture
def run(make_config):
    """A run that publishes how it is every 10 ms."""
    config = make_config(sinks={"tensorboard": {"enabled": True}}, stats={"processing_interval_seconds": 0.01})
    with trieye.Run(config) as run:
        yield run


def log(run, count, *, names=1):
    before = read_status(run.dir).get("accepted", 0)
    for step in range(count):
        run.log({f"loss/{number:02}": step / 4 for number in range(names)}, step=step)
    run.flush()
    wait_until(lambda: read_status(run.dir).get("accepted", 0) == before + count * names)


def shown(view, width=80, height=24):
    console = Console(width=width, height=height, record=True, file=io.StringIO())
    console.print(render(view, console))
    return console.export_text()


def test_one_look_at_a_run_that_is_alive_shows_how_it_is(run, capsys):
    log(run, 9)
    wait_until(lambda: read_status(run.dir)["metrics"]["loss/00"]["step"] == 7)
    assert main(["watch", str(run.dir), "--once"]) == 0
    text = capsys.readouterr().out
    assert re.search(rf"app/run  RUNNING  attempt 1, for \d+ s, process {os.getpid()}\n", text)
    assert "events 9 · points" in text
    assert "tensorboard" in text
    assert ["loss/00", "1.75", "0", "1.75", "7"] in [line.split() for line in text.splitlines()]


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
    assert "no process writes to it" in text
    assert "`trieye close` it" in text
    assert "process 1" not in text


def test_a_closed_run_shows_how_it_ended(run, make_config, capsys):
    log(run, 3)
    run.close()
    assert main(["watch", str(run.dir)]) == 0
    text = capsys.readouterr().out
    assert "FINISHED" in text
    assert ["tensorboard", "0", "0", "s"] in [line.split() for line in text.splitlines()]


def test_the_view_fits_the_terminal(run):
    log(run, 3, names=60)
    view = read_view(run.dir, None)
    for width, height in ((80, 24), (120, 40), (60, 15)):
        lines = shown(view, width, height).rstrip("\n").splitlines()
        assert len(lines) < height
        assert max(map(len, lines)) <= width
        assert " more" in lines[-1]
    assert "loss/59" in shown(view, 80, 100)


def test_rates_are_those_of_the_last_seconds(run):
    log(run, 5)
    first = read_view(run.dir, None)
    assert "/s)" not in shown(first)
    log(run, 50)
    second = read_view(run.dir, first)
    rate = 50 / (second.samples[-1].at - second.samples[0].at)
    assert f"events 55 ({rate:,.0f}/s)" in shown(second)


def test_the_last_checkpoint_what_was_dropped_and_what_came_late_are_shown(run):
    log(run, 9)
    run.step = 7
    run.save(weights=[1.0])
    run.log({"loss/00": float("nan")}, step=20)
    run.log({"loss/00": 1.0}, step=1)
    run.flush()
    wait_until(lambda: "checkpoint step 7, " in shown(read_view(run.dir, None), 120))
    text = shown(read_view(run.dir, None), 120)
    assert "late 1 · dropped (non_finite) 1" in text


def test_a_sink_that_does_not_work_is_shown_with_the_beginning_of_the_reason(make_config):
    config = make_config(
        sinks={"mlflow": {"enabled": True}},
        persistence={"mlflow_tracking_uri": "http://127.0.0.1:9"},
        stats={"processing_interval_seconds": 0.01},
    )
    with trieye.Run(config) as run:
        wait_until(lambda: any(sink["error"] for sink in read_status(run.dir).get("sinks", ())))
        text = shown(read_view(run.dir, None), 200)
    assert "MLflow at http://127.0.0.1:9 failed to open" in text
    assert " ..." in text


def test_a_run_whose_hub_is_only_starting_says_so(tmp_path):
    (tmp_path / "run.json").write_text('{"app_name": "agents", "run_name": "first"}')
    text = shown(read_view(tmp_path, None))
    assert "its hub has not published anything yet" in text
    assert "no metrics yet" in text


def test_a_journal_that_cannot_be_read_for_a_moment_leaves_the_last_values(run):
    log(run, 9)
    before = read_view(run.dir, None)
    run.close()
    (run.dir / "journal.db").write_bytes(b"no journal" * 1000)
    after = read_view(run.dir, before)
    assert "cannot be read" in shown(after)
    assert "loss/00" in shown(after)


def test_a_run_that_is_deleted_meanwhile_ends_the_view(run):
    view = read_view(run.dir, None)
    run.close()
    shutil.rmtree(run.dir)
    with pytest.raises(ConfigurationError, match="is gone"):
        read_view(run.dir, view)


def test_what_is_not_finite_is_said_to_be(run):
    log(run, 1)
    view = read_view(run.dir, None)
    status = {**view.status, "metrics": {"a": {"last": None, "min": 1.0, "max": None, "step": 3}}}
    text = shown(run_view.RunView(view.record, view.is_alive, status, (), view.checkpoint, None))
    assert ["a", "not", "finite", "1", "not", "finite", "3"] in [line.split() for line in text.splitlines()]


def test_a_process_that_holds_the_run_before_its_hub_is_there_counts_as_alive(tmp_path):
    assert not is_alive(tmp_path)
    lock = trieye.process.lock.RunLock(tmp_path / "run.lock").acquire()
    assert is_alive(tmp_path)
    lock.release()
    assert not is_alive(tmp_path)
    for holder in ("", "{}", '{"pid": "x", "host": "h"}', '{"pid": 1, "host": "elsewhere"}'):
        (tmp_path / "run.lock.holder").write_text(holder)
        assert not is_alive(tmp_path)


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
    while seen.count(b"loss/00") < 3:  # it goes on looking
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


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (59.4, "59 s"), (61, "1 min 01 s"), (3660, "1 h 01 min"), (90_000, "1 d 1 h")],
)
def test_times_are_told_in_two_units(seconds, text):
    assert duration(seconds) == text
