import signal

import pytest

from trieye.exceptions import RunInterrupted
from trieye.run.steps import key_metrics, steps


class Run:
    """As much of a run as the loop needs."""

    name, step, saved_step, stop_requested, exit_code = "run", 0, -1, False, 130

    def key_metrics(self):
        return {}

    def wait_for_saves(self):
        pass


def test_it_counts_from_the_last_step_to_the_total():
    run = Run()
    run.step = 3
    assert list(steps(run, 6)) == [4, 5, 6]
    assert list(steps(run, 6)) == []


def test_a_signal_gives_the_loop_one_more_step_to_save_in():
    run, seen = Run(), []
    with pytest.raises(RunInterrupted) as stopped:
        for step in steps(run, None):
            seen.append(step)
            if step == 2:
                signal.raise_signal(signal.SIGINT)
    assert seen == [1, 2, 3]
    assert stopped.value.exit_code == 130
    assert "nothing was saved" in str(stopped.value)


def test_a_step_that_saved_after_the_signal_is_the_last_one():
    run, seen = Run(), []
    with pytest.raises(RunInterrupted, match="state at step 2 is saved"):
        for step in steps(run, None):
            seen.append(step)
            if step == 2:
                signal.raise_signal(signal.SIGTERM)
                run.saved_step = step
    assert seen == [1, 2]


def test_a_second_signal_does_what_it_always_does():
    with pytest.raises(KeyboardInterrupt) as stopped:
        for step in steps(Run(), None):
            if step < 3:
                signal.raise_signal(signal.SIGINT)
    assert not isinstance(stopped.value, RunInterrupted)


def test_a_loop_that_is_left_by_break_counts_its_last_step(capsys):
    for step in steps(Run(), 100):
        if step == 7:
            break
    assert "step 7/100" in capsys.readouterr().err.splitlines()[-1]


def test_people_see_first_what_they_look_for():
    latest = {"epsilon": 1.0, "time/step_ms": 2.0, "Loss/Total": 3.0, "episode/return": 4.0, "score": 5.0}
    assert list(key_metrics(latest, "score")) == ["score", "episode/return", "Loss/Total", "epsilon"]
