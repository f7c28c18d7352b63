"""With `env.frame_stack` the replay stores single frames, and training is bit-identical to one with whole stacks."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import trieye
from tests.training.algorithms import DQN, QPolicy, interrupted, mlp, resumed
from trieye.experiment.loop import run_alone
from trieye.replay.exchange import export_npz
from trieye.training.spaces import Spaces, stacks_in

FRAMES = 3
WRAPPED = {"stack": {"name": "FrameStackObservation", "kwargs": {"stack_size": FRAMES}}}
"""Stacks that are opaque to trieye, so that the replay stores them whole."""


class Film(gym.Env):
    """A frame has a random number of the episode, and the step; an episode has 2 to 9 steps."""

    observation_space = gym.spaces.Box(0.0, 1000.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t, self.length = self.np_random.integers(1000), 0, int(self.np_random.integers(2, 10))
        return self.frame(), {}

    def frame(self):
        return np.array([self.episode, self.t], np.float32)

    def step(self, action):
        self.t += 1
        ends = self.t == self.length
        return self.frame(), float(action == self.t % 3), ends and self.t % 2 == 0, ends and self.t % 2 == 1, {}


gym.register("Film-v0", Film)


class FilmPolicy(QPolicy):
    def __init__(self, config, spaces):
        super().__init__(config, spaces)
        self.q = nn.Sequential(nn.Flatten(), mlp([2 * FRAMES, 16, 3]))


class FilmDQN(DQN, policy=FilmPolicy):
    pass


@pytest.fixture
def config(train_config):
    def make(*, whole=False, steps=60, replay=None, **options):
        stack = {"wrappers": WRAPPED} if whole else {"frame_stack": FRAMES}
        axis = "updates" if "data" in options else "env_steps"
        loop = {"axis": axis, "steps": steps, "evaluate_every_steps": 0}
        env = {"id": "Film-v0", "num": 2, "eval_episodes": 1, **stack}
        return train_config(env=env, loop=loop, replay=replay or {}, **options)

    return make


def weights_of(result):
    return trieye.load_checkpoint(result.run_dir, "latest").objects["experiment"]["state"]["policy"]


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"replay": {"kind": "prioritized", "n_step": 2}},
        {"explorer": {"num": 1}, "sync": {"style": "fixed"}},
    ],
    ids=["uniform", "prioritized", "explorer"],
)
def test_single_frames_train_the_same_weights_as_whole_stacks(config, options):
    torch.manual_seed(0)
    single, whole = (
        weights_of(run_alone(FilmDQN, config(whole=whole, run_name=f"whole_{whole}", **options)))
        for whole in (False, True)
    )
    assert all(torch.equal(single[name], whole[name]) for name in whole)


def test_a_resume_with_single_frames_is_bit_exact(config):
    replay = {"kind": "prioritized", "n_step": 2}
    whole = run_alone(FilmDQN, config(replay=replay, run_name="whole"))
    with pytest.raises(trieye.RunInterrupted):
        run_alone(interrupted(FilmDQN, 40), config(replay=replay, run_name="parts"))
    parts = run_alone(FilmDQN, config(replay=replay, run_name="parts"))
    one, other = weights_of(whole), weights_of(parts)
    assert all(torch.equal(one[name], other[name]) for name in one)


def assert_stacks(obs):
    """Check that stacks `[n, frames, 2]` are consecutive frames of one episode, after copies of its first one."""
    episodes, steps = obs[..., 0], obs[..., 1]
    assert (episodes == episodes[:, :1]).all()
    newest = steps[:, -1:]
    assert torch.equal(steps, (newest + torch.arange(1.0 - FRAMES, 1.0)).clamp(min=0))


@pytest.mark.parametrize(
    "options",
    [{"explorer": {"num": 1}, "sync": {"style": "fixed"}}, {"persistence": {"save_buffer": False}}],
    ids=["explorer", "save_buffer"],
)
def test_samples_are_complete_stacks_after_a_resume_without_the_exact_replay(config, options):
    engine = FilmDQN(config(**options))
    while engine.env_steps < 44:
        engine.advance()
    engine = resumed(engine, config(**options))
    while engine.env_steps < 80:
        engine.advance()
    batch = engine.replay.minibatch(400, torch.device("cpu"))
    assert_stacks(batch.obs)
    assert_stacks(batch.next_obs)
    engine.cleanup()


def test_single_frames_and_whole_stacks_are_both_valid_offline_data(config, tmp_path):
    for whole in (False, True):
        engine, name = FilmDQN(config(whole=whole)), str(tmp_path / f"{whole}.npz")
        while engine.env_steps < 40:
            engine.advance()
        export_npz(engine.replay, tmp_path / f"{whole}.npz")
        engine.cleanup()
        offline = FilmDQN(config(mode="train", data=name))
        batch = next(offline.due_batches())
        assert_stacks(batch.obs)
        assert_stacks(batch.next_obs)
        offline.cleanup()


def test_only_observation_parts_that_are_stacks_are_split():
    moves, picture = gym.spaces.Discrete(2), gym.spaces.Box(0, 255, (4, 8, 8), np.uint8)
    parts = gym.spaces.Dict({"seen": picture, "at": gym.spaces.Box(-1.0, 1.0, (12,), np.float32)})
    assert stacks_in(Spaces(parts, moves).observation, 4) == {"obs/seen": 4}
    assert stacks_in(picture, 4) == {"obs": 4}
    assert stacks_in(picture, None) == {}
