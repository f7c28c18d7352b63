import signal

import pytest

from trieye.config import TrieyeConfig
from trieye.exceptions import RunInterrupted
from trieye.run.steps import key_metrics, steps


class Run:
    """A run as the step loop uses it."""

    config = TrieyeConfig()
    name, step, saved_step, stop_requested, exit_code, loop_signals = "run", 0, -1, False, 130, ()

    def key_metrics(self):
        return {}

    def wait_for_saves(self):
        pass


def test_steps_count_from_the_last_step_to_the_total():
    run = Run()
    run.step = 3
    assert list(steps(run, 6)) == [4, 5, 6]
    assert list(steps(run, 6)) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_loop_after_ctrl_c_continues_but_a_scheduler_stops_each_one(number):
    run, done = Run(), []
    for _ in range(2):
        with pytest.raises(RunInterrupted):
            for step in steps(run, 100):
                done.append(step)
                if step % 10 == 5:
                    signal.raise_signal(number)
    assert done == ([*range(1, 7), *range(7, 17)] if number == signal.SIGINT else [*range(1, 7), 7])


def test_a_loop_after_a_repeated_ctrl_c_continues(monkeypatch):
    monkeypatch.setattr("trieye.process.signals.CTRL_C_ONCE_WITHIN_S", -1.0)
    run, loops = Run(), []
    for total in (3, 5):
        loops.append(steps(run, total))  # the traceback in a notebook references the interrupted loop, too
        with pytest.raises(KeyboardInterrupt):
            for step in loops[-1]:
                if step == total - 1:
                    signal.raise_signal(signal.SIGINT)
                    signal.raise_signal(signal.SIGINT)
    assert list(steps(run, 6)) == [5, 6]


def test_a_loop_left_by_break_counts_its_last_step(capsys):
    for step in steps(Run(), 100):
        if step == 7:
            break
    assert "step 7/100" in capsys.readouterr().err.splitlines()[-1]


def test_key_metrics_lists_the_objective_and_the_return_first():
    latest = {"epsilon": 1.0, "time/step_ms": 2.0, "Loss/Total": 3.0, "episode/return": 4.0, "score": 5.0}
    assert list(key_metrics(latest, "score")) == ["score", "episode/return", "Loss/Total", "epsilon"]
    latest = {"Score_max": 1.0, "episode/return": 2.0, "Score": 3.0}
    assert list(key_metrics(latest, "Score")) == ["Score", "Score_max", "episode/return"]
