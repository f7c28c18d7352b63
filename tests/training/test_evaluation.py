"""Evaluations render a frame of each step, and explain why an environment cannot render."""

import types

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image

import trieye
from tests.training.algorithms import DQN, QPolicy, TrainConfig
from trieye.config.env import EnvConfig
from trieye.training.environments import make_env, spaces_of
from trieye.training.evaluation import Evaluation


def _draw():
    raise RuntimeError("an OpenGL platform library has not been loaded into this process")


draw = types.FunctionType(_draw.__code__, {"__name__": "gymnasium.envs.mujoco.mujoco_rendering"})
"""Fails as MuJoCo does without a display, in a module named as Gymnasium's."""


class Shown(gym.Env):
    """An episode of three steps; `picture` selects the result of render()."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space, action_space = gym.spaces.Box(0, 1, (2,), np.float32), gym.spaces.Discrete(2)

    def __init__(self, picture=None, render_mode=None):
        self.picture, self.render_mode = picture, render_mode
        self.canvas = np.zeros((4, 4, 3), np.uint8)

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
        if self.picture == "headless":
            draw()
        if self.picture == "canvas":
            self.canvas[:] = self.left
            return self.canvas
        return None if self.picture is None else np.zeros((4, 4, 3), np.uint8)


@pytest.fixture
def play():
    gym.register("Shown-v0", entry_point=Shown)

    def play_episode(picture, *, with_frames=True, **kwargs):
        config = EnvConfig(id="Shown-v0", kwargs={"picture": picture, **kwargs})
        policy = QPolicy(TrainConfig(agent={"kind": "dqn"}, env=config), spaces_of(make_env(config)))
        return Evaluation(config).play(policy, 1, with_frames=with_frames)

    yield play_episode
    gym.registry.pop("Shown-v0")


def test_the_first_episode_has_a_frame_of_each_step(play):
    assert [frame.shape for frame in play("black")[0].frames] == [(4, 4, 3)] * 3


def test_frames_differ_although_the_environment_draws_into_one_array(play):
    assert [frame.max() for frame in play("canvas")[0].frames] == [3, 2, 1]


def test_a_render_mode_of_the_config_records_no_frames(play):
    (episode,) = play("missing", with_frames=False, render_mode="rgb_array")
    assert (episode.length, episode.frames) == (3, [])


@pytest.mark.parametrize(("picture", "message"), [("missing", "pygame is not installed"), (None, "returned None")])
def test_an_environment_that_cannot_render_is_named(play, picture, message):
    with pytest.raises(trieye.ConfigurationError, match=f"Shown-v0.*cannot render a video: .*{message}"):
        play(picture)


def test_a_mujoco_error_without_a_display_names_the_variable_for_the_backend(play, monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    with pytest.raises(trieye.ConfigurationError, match=r"an OpenGL platform.*MUJOCO_GL=egl.*osmesa.*\(now not set\)"):
        play("headless")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"episodes": 0}, r"episodes=0.*at least 1"),
        ({"first_seed": -5}, r"first_seed=-5.*at least 0"),
        ({"video": "/nowhere/first.gif"}, r"/nowhere is not a directory"),
        ({"video": "/usr"}, r"/usr'\) is a directory; name a file in it"),
    ],
)
def test_invalid_arguments_are_rejected_before_the_policy_is_loaded(arguments, message):
    with pytest.raises(trieye.ConfigurationError, match=message):
        trieye.evaluate("unknown", **arguments)


def test_a_gif_plays_at_the_frame_rate_of_the_environment(play, train_config, tmp_path, monkeypatch):
    env = {"id": "Shown-v0", "kwargs": {"picture": "black"}, "eval_video": True}
    run_dir = trieye.run_experiment(DQN, train_config(env=env, loop={"env_steps": 20})).run_dir
    for max_pixels, duration_ms in ((48, 300), (40, 400)):  # all frames, and every second one
        monkeypatch.setattr("trieye.run.video.MAX_VIDEO_PIXELS", max_pixels)
        trieye.evaluate(run_dir, episodes=1, video=tmp_path / "episode.gif")
        with Image.open(tmp_path / "episode.gif") as gif:
            assert gif.info["duration"] == duration_ms  # three equal frames at 10 per second or two at 5, merged
