"""`mode=bench` evaluates the stored checkpoints of a run."""

import json

import gymnasium as gym
import pytest

import trieye
from tests.training.algorithms import DQN
from trieye.checkpoints.store import CheckpointStore
from trieye.experiment.loop import run_alone


class SpoilsOnce(gym.Wrapper):
    """Returns NaN as the next reward after `is_armed` was set."""

    is_armed = False

    def step(self, action):
        obs, reward, *rest = super().step(action)
        is_spoiled, SpoilsOnce.is_armed = SpoilsOnce.is_armed, False
        return obs, float("nan") if is_spoiled else reward, *rest


@pytest.fixture
def trained(train_config):
    """Return a function that trains, and then returns a function that benches and returns its result and reports."""

    def train(steps, *, loop=None, **settings):
        loop = {"steps": steps, "evaluate_every_steps": 20, **(loop or {})}
        run_dir = run_alone(
            DQN, train_config(loop=loop, persistence={"checkpoint_save_freq_steps": 20}, **settings)
        ).run_dir

        def bench(checkpoints, episodes=1):
            options = {"checkpoints": checkpoints, "episodes": episodes}
            best = trieye.train(train_config(mode="bench", bench=options, loop={"steps": steps}, **settings))
            return best, json.loads((run_dir / "bench.json").read_text(), parse_constant=pytest.fail)

        bench.run_dir = run_dir
        return bench

    return train


def test_a_bench_evaluates_the_selected_checkpoints_and_the_best_follows_the_mode_of_its_run(trained):
    bench = trained(60, loop={"mode": "min"}, agent={"updates_per_env_step": 1.0, "lr": 0.02})
    best, reports = bench("each", episodes=3)
    steps = [report["step"] for report in reports]
    assert [step // 20 for step in steps] == [1, 2, 3]
    assert best == max(report["return_mean"] for report in reports)
    for which, chosen in (("latest", steps[2:]), ("checkpoint_step_[24]?", steps[:2])):
        assert [report["step"] for report in bench(which)[1]] == chosen
    entries = CheckpointStore(bench.run_dir / "checkpoints", read_only=True).entries()
    objectives = {entry.step: entry.objective for entry in entries}
    assert len(set(objectives.values())) > 1
    assert objectives[bench("best")[1][0]["step"]] == min(objectives.values())
    with pytest.raises(trieye.CheckpointError, match=r"nothing\* matches no checkpoint .* checkpoint_step_2"):
        bench("nothing*")


def test_a_return_of_nan_is_omitted_from_the_best_and_written_as_null(trained, monkeypatch):
    bench = trained(40, env={"wrappers": {"nan": {"name": f"{__name__}:SpoilsOnce"}}})
    monkeypatch.setattr(SpoilsOnce, "is_armed", True)
    best, (spoiled, intact) = bench("each", episodes=2)
    assert (spoiled["return_mean"], spoiled["returns"][0]) == (None, None)
    assert best == intact["return_mean"] > 0
