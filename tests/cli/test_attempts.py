"""`trieye attempts`: superseded points are listed by attempt, and restored by number."""

import json

import pytest

import trieye
from tests.curves import curves_in_tensorboard
from trieye.cli import main
from trieye.history.history import read_history


@pytest.fixture
def run_dir(make_config):
    """A run whose second attempt continued at step 5, and whose third one logged something else."""
    config = make_config(stats={"undeclared": "each"}, sinks={"tensorboard": {"enabled": True}})
    for value, metric, steps in ((1.0, "loss", range(10)), (2.0, "loss", range(5, 13)), (3.0, "[b]other", range(2))):
        with trieye.Run(config) as run:
            for step in steps:
                run.log(metric, value, step=step)
    return run.dir


def curve(run_dir, metric="loss"):
    table = read_history(run_dir, [metric])
    return sorted(zip(table["step"].to_pylist(), table["value"].to_pylist(), strict=True))


FIRST = [(step, 1.0) for step in range(10)]
RESUMED = [*FIRST[:5], *((step, 2.0) for step in range(5, 13))]


def test_attempts_are_listed_with_their_superseded_points(run_dir, capsys):
    assert main(["attempts", str(run_dir), "--json"]) == 0
    attempts = json.loads(capsys.readouterr().out)["attempts"]
    assert [
        (attempt["number"], attempt["shown"], attempt["superseded"], attempt["metrics"]) for attempt in attempts
    ] == [
        (1, 5, 5, ["loss"]),
        (2, 8, 0, []),
        (3, 2, 0, []),
    ]
    assert main(["attempts", str(run_dir)]) == 0
    assert "loss" in capsys.readouterr().out


def test_a_restored_attempt_replaces_later_ones_and_can_be_superseded_again(run_dir, capsys):
    assert curve(run_dir) == RESUMED
    for number, shown in ((1, FIRST), (2, RESUMED), (1, FIRST)):
        assert main(["attempts", str(run_dir), "--restore", str(number)]) == 0, capsys.readouterr().err
        assert curve(run_dir) == shown
        assert sorted(curves_in_tensorboard(run_dir)["loss"]) == shown
    assert curve(run_dir, "[b]other") == [(0, 3.0), (1, 3.0)]


def test_only_attempts_with_superseded_points_can_be_restored(run_dir, capsys):
    for number in ("2", "7"):
        assert main(["attempts", str(run_dir), "--restore", number]) != 0
        assert "choose from: 1" in capsys.readouterr().err
    assert curve(run_dir) == RESUMED


def test_a_restored_attempt_survives_the_next_start_of_the_program(run_dir, make_config):
    assert main(["attempts", str(run_dir), "--restore", "1"]) == 0
    with trieye.Run(make_config(stats={"undeclared": "each"})) as run:
        run.log("loss", 4.0, step=8)
        run.log("loss", 4.0, step=9)
    assert curve(run_dir) == [*FIRST[:8], (8, 4.0), (9, 4.0)]


class Net:
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def test_an_attempt_has_the_step_that_it_resumed_from(make_config, capsys):
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
        assert main(["attempts", str(one.dir), "--json"]) == 0
        attempts = json.loads(capsys.readouterr().out)["attempts"]
        assert [(row["resumed_step"], row["superseded"]) for row in attempts] == expected
    assert main(["attempts", str(run.dir)]) == 0
    assert "from step" in capsys.readouterr().out
