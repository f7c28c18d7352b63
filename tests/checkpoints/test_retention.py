from dataclasses import dataclass

import pytest

from trieye.checkpoints.store import Retention


@dataclass(frozen=True)
class State:
    step: int
    objective: float = 0.0


STATES = [State(step, -abs(step - 30)) for step in range(10, 101, 10)]
RANKED = sorted(STATES, key=lambda state: -state.objective)


@pytest.mark.parametrize(
    ("chosen", "deleted"),
    [
        ({}, []),
        ({"keep_best": 0, "keep_every_steps": 50}, []),
        ({"keep_last": 99, "keep_best": 99}, []),
        ({"keep_last": 3, "keep_best": 0}, [10, 20, 30, 40, 50, 60, 70]),
        ({"keep_last": 3}, [10, 20, 40, 50, 60, 70]),
        ({"keep_last": 3, "keep_best": 3}, [10, 50, 60, 70]),
        ({"keep_last": 1, "keep_best": 0, "keep_every_steps": 40}, [10, 20, 30, 50, 60, 70, 90]),
    ],
)
def test_the_newest_the_best_and_one_every_so_many_steps_are_kept(chosen, deleted):
    assert [state.step for state in Retention(**chosen).surplus(STATES, RANKED)] == deleted
