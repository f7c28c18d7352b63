"""The requirements of the trainer contract, one test each."""

import json
import signal
import time

import gymnasium as gym
import pytest
import torch

import trieye
from tests.training.algorithms import DQN, QPolicy
from trieye.checkpoints.store import CheckpointStore
from trieye.exceptions import RunInterrupted
from trieye.experiment.loop import run_alone as run_experiment
from trieye.files.run_record import RunRecord

AXES = {"env_steps", "updates", "iterations"}


LOCATIONS = ("step", "train_step", "policy", "environment", "evaluate")


class Failing(DQN):
    """Raises where its class attribute `where` says, from the 30th environment step on."""

    where, env_steps_made = None, 0

    @classmethod
    def fail(cls, location):
        if cls.where == location and cls.env_steps_made >= 30:
            raise ZeroDivisionError(f"in {location}")

    def step(self):
        Failing.env_steps_made = self.env_steps
        self.fail("step")
        return super().step()

    def train_step(self, batch):
        self.fail("train_step")
        return super().train_step(batch)

    def evaluate(self):
        self.fail("evaluate")
        return super().evaluate()


class FailingPolicy(QPolicy):
    def act(self, obs, state, ctx):
        Failing.fail("policy")
        return super().act(obs, state, ctx)


Failing.policy_class = FailingPolicy


class FailingEnvironment(gym.Wrapper):
    def step(self, action):
        Failing.fail("environment")
        return super().step(action)


class SpoilsOnce(gym.Wrapper):
    """Returns NaN as the next reward after `is_armed` was set."""

    is_armed = False

    def step(self, action):
        obs, reward, *rest = super().step(action)
        is_spoiled, SpoilsOnce.is_armed = SpoilsOnce.is_armed, False
        return obs, float("nan") if is_spoiled else reward, *rest


class Stopping(DQN):
    """Gets Ctrl-C in its tenth step."""

    steps = 0

    def step(self):
        Stopping.steps += 1
        if Stopping.steps == 10:
            signal.raise_signal(signal.SIGINT)
        return super().step()


@pytest.fixture
def config(train_config):
    def make(steps, run_name="run", **overrides):
        intervals = {
            "persistence": {"checkpoint_save_freq_steps": 20},
            "loop": {"steps": steps, "evaluate_every_steps": 20},
        }
        return train_config(run_name=run_name, **intervals | overrides)

    return make


def saved(config, which="latest"):
    return trieye.load_checkpoint(config.persistence.get_runs_root_dir() / config.run_name, which)


@pytest.mark.long
@pytest.mark.parametrize("where", LOCATIONS)
def test_error_propagates_and_latest_untouched(config, where, monkeypatch):
    monkeypatch.setattr(Failing, "where", where)
    monkeypatch.setattr(Failing, "env_steps_made", 0)
    wrappers = {"broken": {"name": f"{__name__}:FailingEnvironment"}}
    failing = config(100, env={"id": "CartPole-v1", "eval_episodes": 2, "wrappers": wrappers})
    with pytest.raises(ZeroDivisionError, match=f"in {where}") as caught:
        run_experiment(Failing, failing)
    assert any(entry.name == "fail" for entry in caught.traceback)
    assert 20 <= saved(failing).step < 30
    run_dir = failing.persistence.get_runs_root_dir() / "run"
    assert RunRecord.read(run_dir / "run.json").status == "FAILED"


@pytest.mark.long
def test_resume_continues_version_and_step(config):
    run_experiment(DQN, config(40))
    first = saved(config(40)).objects["loop"]
    result = run_experiment(DQN, config(80))
    loop = saved(config(80)).objects["loop"]
    assert result.step == result.env_steps == loop["env_steps"] == saved(config(80)).step >= 80
    assert loop["updates"] == loop["env_steps"] - 8  # one for each environment step since learning started
    assert all(loop[name] > first[name] for name in AXES)


@pytest.mark.long
def test_local_deterministic(config):
    states = []
    for name in ("one", "other"):
        run_experiment(DQN, config(60, name))
        states.append(saved(config(60, name)).objects["experiment"]["state"]["policy"])
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_mode_bench_each_checkpoint(config):
    run_experiment(DQN, config(60))
    best = trieye.train(config(60, mode="bench", bench={"checkpoints": "each", "episodes": 3}))
    reports = json.loads((config(60).persistence.get_runs_root_dir() / "run" / "bench.json").read_text())
    steps = [report["step"] for report in reports]
    assert [step // 20 for step in steps] == [1, 2, 3]
    assert best == max(report["return_mean"] for report in reports)
    for which, chosen in (("latest", steps[2:]), ("checkpoint_step_[24]?", steps[:2])):
        trieye.train(config(60, mode="bench", bench={"checkpoints": which, "episodes": 1}))
        reports = json.loads((config(60).persistence.get_runs_root_dir() / "run" / "bench.json").read_text())
        assert [report["step"] for report in reports] == chosen
    with pytest.raises(
        trieye.CheckpointError, match=r"bench.checkpoints=nothing\* matches no checkpoint .* checkpoint_step_2"
    ):
        trieye.train(config(60, mode="bench", bench={"checkpoints": "nothing*", "episodes": 1}))


def test_mode_bench_omits_a_return_of_nan_from_the_best_and_writes_it_as_null(config, monkeypatch):
    env = {"id": "CartPole-v1", "wrappers": {"nan": {"name": f"{__name__}:SpoilsOnce"}}}
    run_experiment(DQN, config(40, env=env))
    monkeypatch.setattr(SpoilsOnce, "is_armed", True)
    best = trieye.train(config(40, mode="bench", env=env, bench={"checkpoints": "each", "episodes": 2}))
    path = config(40).persistence.get_runs_root_dir() / "run" / "bench.json"
    spoiled, intact = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert (spoiled["return_mean"], spoiled["returns"][0]) == (None, None)
    assert best == intact["return_mean"] > 0


def test_the_best_checkpoint_follows_the_mode_of_its_run(config):
    min_config = config(60, loop={"steps": 60, "evaluate_every_steps": 20, "mode": "min"})
    run_experiment(DQN, min_config)
    run_dir = min_config.persistence.get_runs_root_dir() / "run"
    rated = {
        entry.step: entry.objective for entry in CheckpointStore(run_dir / "checkpoints", read_only=True).entries()
    }
    assert len(set(rated.values())) > 1
    trieye.train(config(60, mode="bench", bench={"checkpoints": "best", "episodes": 1}))
    (report,) = json.loads((run_dir / "bench.json").read_text())
    assert rated[report["step"]] == min(rated.values())


def test_sigint_saves(config):
    with pytest.raises(RunInterrupted, match=r"its state at step \d+ is saved") as caught:
        run_experiment(Stopping, config(100))
    assert caught.value.code == 130
    assert saved(config(100)).objects["loop"]["iterations"] == Stopping.steps == 10


class Idle(trieye.Experiment):
    """Does nothing."""

    def step(self):
        return {}

    def save_checkpoint(self, checkpoint_dir):
        return {}

    def load_checkpoint(self, checkpoint):
        pass


def test_no_sleep_floor(make_config):
    began = time.monotonic()
    run_experiment(Idle, make_config(loop={"steps": 2000}))
    assert time.monotonic() - began < 60  # a loop that polls every 0.1 s takes 200 s
