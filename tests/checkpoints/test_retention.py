from dataclasses import dataclass

from trieye.checkpoints.retention import Retention


@dataclass(frozen=True)
class State:
    step: int
    objective: float = 0.0


STATES = [State(step, -abs(step - 30)) for step in range(10, 101, 10)]
RANKED = sorted(STATES, key=lambda state: -state.objective)


def deleted(**chosen):
    return [state.step for state in Retention(**chosen).surplus(STATES, RANKED)]


def test_everything_is_kept_unless_a_number_is_given():
    assert deleted() == deleted(keep_best=0, keep_every_steps=50) == []


def test_the_newest_are_kept():
    assert deleted(keep_last=3, keep_best=0) == [10, 20, 30, 40, 50, 60, 70]


def test_the_best_are_kept_besides():
    assert deleted(keep_last=3) == [10, 20, 40, 50, 60, 70]
    assert deleted(keep_last=3, keep_best=3) == [10, 50, 60, 70]


def test_one_every_so_many_steps_stays():
    assert deleted(keep_last=1, keep_best=0, keep_every_steps=40) == [10, 20, 30, 50, 60, 70, 90]


def test_more_may_be_kept_than_there_are():
    assert deleted(keep_last=99, keep_best=99) == []
