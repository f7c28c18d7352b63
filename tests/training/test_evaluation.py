"""Evaluations: what an environment cannot show is said, and what it shows is a picture of each step."""

import gymnasium as gym
import numpy as np
import pytest

import trieye
from tests.training.algorithms import QPolicy, TrainConfig
from trieye.config.env import EnvConfig
from trieye.training.environments import make_env, spaces_of
from trieye.training.evaluation import Evaluation


class Shown(gym.Env):
    """Three steps, and whatever `picture` is as their picture."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}
    observation_space, action_space = gym.spaces.Box(0, 1, (2,), np.float32), gym.spaces.Discrete(2)

    def __init__(self, picture=None, render_mode=None):
        self.picture, self.render_mode = picture, render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 3
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.zeros(2, np.float32), 1.0, self.left == 0, False, {}

    def render(self):
        if self.picture == "missing":
            raise gym.error.DependencyNotInstalled("pygame is not installed")
        return None if self.picture is None else np.zeros((4, 4, 3), np.uint8)


@pytest.fixture
def play():
    gym.register("Shown-v0", entry_point=Shown)

    def played(picture):
        config = EnvConfig(id="Shown-v0", kwargs={"picture": picture})
        policy = QPolicy(TrainConfig(agent={"kind": "dqn"}, env=config), spaces_of(make_env(config)))
        return Evaluation(config).play(policy, 1, with_frames=True)

    yield played
    gym.registry.pop("Shown-v0")


def test_the_first_episode_has_a_picture_of_each_step(play):
    assert [frame.shape for frame in play("black")[0].frames] == [(4, 4, 3)] * 3


@pytest.mark.parametrize(("picture", "said"), [("missing", "pygame is not installed"), (None, "returned None")])
def test_an_environment_without_pictures_is_named(play, picture, said):
    with pytest.raises(trieye.ConfigurationError, match=f"Shown-v0.*makes no picture for a video: .*{said}"):
        play(picture)
