"""`trieye attempts`: superseded points are listed by attempt, and restored by number."""

import json
import os
import shutil
import signal
import sys

import pytest

import trieye
from tests.cli.conftest import Screen, config_in
from tests.curves import curves_in_tensorboard
from tests.forked import in_a_child
from tests.json_schemas import validated
from tests.moved import moved
from trieye import runs
from trieye.cli import main
from trieye.history.history import read_history


@pytest.fixture(scope="module")
def _made(tmp_path_factory):
    root, sinks = tmp_path_factory.mktemp("made") / "root", {"tensorboard": {"enabled": True}}
    config = config_in(root, "run", app_name="app", sinks=sinks, persistence={"auto_resume_latest": False})
    for value, metric, steps in ((1.0, "loss", range(10)), (2.0, "loss", range(5, 13)), (3.0, "[b]other", range(2))):
        with trieye.Run(config) as run:
            for step in steps:
                run.log(metric, value, step=step)
    return root


@pytest.fixture
def run_dir(_made, tmp_path):
    """A run whose second attempt continued at step 5, and whose third one logged something else."""
    return moved(shutil.copytree(_made, tmp_path / "root") / "app/runs/run")


def curve(run_dir, metric="loss"):
    table = read_history(run_dir, [metric])
    return sorted(zip(table["step"].to_pylist(), table["value"].to_pylist(), strict=True))


FIRST = [(step, 1.0) for step in range(10)]
RESUMED = [*FIRST[:5], *((step, 2.0) for step in range(5, 13))]


def test_a_restored_attempt_replaces_later_ones_and_can_be_superseded_again(run_dir, command):
    assert curve(run_dir) == RESUMED
    for number, shown in ((1, FIRST), (2, RESUMED), (1, FIRST)):
        command.output("attempts", run_dir, "--restore", number)
        assert curve(run_dir) == shown
        assert sorted(curves_in_tensorboard(run_dir)["loss"]) == shown
    assert curve(run_dir, "[b]other") == [(0, 3.0), (1, 3.0)]


def test_only_attempts_with_superseded_points_can_be_restored(run_dir, command):
    for number in (2, 7):
        assert "choose from: 1" in command.error("attempts", run_dir, "--restore", number)
    assert curve(run_dir) == RESUMED


def test_a_restored_attempt_survives_the_next_start_of_the_program(run_dir, make_config):
    assert main(["attempts", str(run_dir), "--restore", "1"]) == 0
    with trieye.Run(make_config(stats={"undeclared": "each"})) as run:
        run.log("loss", 4.0, step=8)
        run.log("loss", 4.0, step=9)
    assert curve(run_dir) == [*FIRST[:8], (8, 4.0), (9, 4.0)]


@pytest.fixture
def killed(make_config):
    """Return a function that returns the directory of a run that was killed with its events in the journal."""
    config = make_config(stats={"undeclared": "each", "processing_interval_seconds": 100.0})

    def log(steps):
        with trieye.Run(config) as run:
            for step in range(steps):
                run.log("loss", 1.0, step=step)
            run._begun_attempt().flusher.flush()  # the hub accepts the events, and no flush marker follows
            os.kill(os.getpid(), signal.SIGKILL)

    def make(*, steps=0):
        assert in_a_child(lambda: log(steps)) == -signal.SIGKILL
        return config.persistence.get_run_base_dir()

    return make


def listed(command, *arguments):
    """Return the document of `trieye attempts`, which must fit its schema."""
    return validated(command.output("attempts", *arguments, "--json"))


@pytest.mark.long
def test_an_attempt_that_logged_nothing_is_listed(killed, command):
    run_dir = killed()
    for _ in range(2):
        (attempt,) = listed(command, run_dir)["attempts"]
        assert (attempt["number"], attempt["shown"], attempt["first_step"]) == (1, 0, None)
        assert command.output("attempts", run_dir).splitlines()[2].split()[0] == "1"
        assert main(["close", str(run_dir)]) == 0
    killed(steps=3)
    assert [row.number for row in runs.attempts(run_dir)] == [1, 2]


def test_attempts_of_a_run_with_a_damaged_record_are_listed(run_dir, command):
    (run_dir / "run.json").write_text("{")
    assert [line.split()[0] for line in command.output("attempts", run_dir).splitlines()[2:]] == ["1", "2", "3"]


def test_an_attempt_that_died_before_it_wrote_to_the_journal_is_listed(run_dir):
    record = json.loads((run_dir / "run.json").read_text())
    (run_dir / "run.json").write_text(json.dumps({**record, "attempt": 4, "started": 1e9}))
    last = runs.attempts(run_dir)[-1]
    assert (last.number, last.started, last.shown) == (4, 1e9, 0)


@pytest.mark.long
def test_a_restoration_is_not_listed_as_an_attempt(run_dir, make_config):
    assert main(["attempts", str(run_dir), "--restore", "1"]) == 0
    assert [row.number for row in runs.attempts(run_dir)] == [1, 2, 3]
    with trieye.Run(make_config(stats={"undeclared": "each"})) as run:
        run.log("loss", 4.0, step=20)
    assert [row.started for row in runs.attempts(run_dir)] == sorted(row.started for row in runs.attempts(run_dir))
    assert [row.shown for row in runs.attempts(run_dir)] == [10, 0, 2, 1]


def test_attempts_are_listed_with_the_steps_of_their_shown_and_superseded_points(run_dir, command):
    columns = {
        "number": [1, 2, 3],
        "shown": [5, 8, 2],
        "superseded": [5, 0, 0],
        "metrics": [["loss"], [], []],
        "first_step": [0, 5, 0],
        "last_step": [4, 12, 1],
        "superseded_first_step": [5, None, None],
        "superseded_last_step": [9, None, None],
    }
    attempts = listed(command, run_dir)["attempts"]
    assert {name: [attempt[name] for attempt in attempts] for name in columns} == columns


def test_an_attempt_that_logs_all_steps_again_resumed_from_no_step(make_config):
    for resumes_at in (None, 0, 2):
        with trieye.Run(make_config(stats={"undeclared": "each"})) as run:
            if resumes_at is not None:
                run.supersede(resumes_at)
            for step in range(resumes_at or 0, 4):
                run.log("loss", 0.5, step=step)
    assert [row.resumed_step for row in runs.attempts(run.dir)] == [None, None, None, None, 1]


def test_the_table_fits_a_terminal_of_100_columns(make_config, monkeypatch):
    metrics = ["rollout/episode_return_mean", "train/policy_gradient_loss", "x", "y"]
    for first, last in ((900_000, 1_200_000), (1_000_000, 1_300_000)):
        with trieye.Run(make_config(stats={"undeclared": "each"})) as run:
            for step in range(first, last + 1, 100_000):
                run.log(dict.fromkeys(metrics, 1.0), step=step)
    monkeypatch.setenv("COLUMNS", "100")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", screen := Screen())
        assert main(["attempts", str(run.dir)]) == 0
    lines = screen.text().splitlines()
    assert max(map(len, lines)) <= 100, lines
    text = " ".join(" ".join(lines).split())
    assert "900,000 900,000 4 12" in text
    assert "(1,000,000-1,200,000)" in text


def test_the_attempts_of_a_killed_run_name_the_command_that_adds_points_of_its_journal(killed, command):
    run_dir = killed(steps=7)
    note = f"its process was killed: `trieye close {run_dir}` adds points that only its journal has"
    assert note in command.output("attempts", run_dir)
    assert main(["close", str(run_dir)]) == 0
    assert note not in command.output("attempts", run_dir)
    assert [row.shown for row in runs.attempts(run_dir)] == [7]


class Net:
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@pytest.mark.long
def test_an_attempt_has_the_step_that_it_resumed_from(make_config, command):
    config = make_config(stats={"undeclared": "each"})
    for first, last, saved in ((1, 9, 5), (6, 12, 12), (13, 15, None)):
        with trieye.Run(config) as run:
            run.restore(net=Net())
            for step in range(first, last + 1):
                run.step = step
                run.log("loss", 0.5, step=step)
                if step == saved:
                    run.save(net=Net()).wait()
    with trieye.Run(make_config(run_name="other", stats={"undeclared": "each"})) as other:
        other.restore(from_checkpoint=run.dir / "checkpoints" / "checkpoint_step_5", net=Net())
        other.log("loss", 0.5, step=6)
    for one, expected in ((run, [(None, 4), (5, 0), (12, 0)]), (other, [(5, 0)])):
        attempts = json.loads(command.output("attempts", one.dir, "--json"))["attempts"]
        assert [(row["resumed_step"], row["superseded"]) for row in attempts] == expected
    assert "from step" in command.output("attempts", run.dir)
