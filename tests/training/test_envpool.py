"""`env.vector=envpool`; tests that need EnvPool are skipped if it is not installed."""

import sys

import numpy as np
import pytest

from trieye.config.env import EnvConfig
from trieye.exceptions import ConfigurationError
from trieye.training.environments import make_envs, spaces_of_config
from trieye.training.envpool import EnvPoolVector

CARTPOLE = EnvConfig(id="CartPole-v1", num=3, vector="envpool")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(
        ConfigurationError, match=r"env\.vector=envpool needs EnvPool, .*pip install 'trieye\[envpool\]'"
    ):
        EnvPoolVector(CARTPOLE)


@pytest.fixture
def envpool():
    return pytest.importorskip("envpool")


@pytest.mark.usefixtures("envpool")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": "CartPol-v1"}, "EnvPool has no CartPol-v1; did you mean 'CartPole-v"),
        ({"kwargs": {"sutton": True}}, r"env.kwargs.sutton: EnvPool's CartPole-v1 has no such option.*\(options: "),
        ({"frame_stack": 4}, "frame_stack=4 applies to Atari games only"),
        (
            {"wrappers": {"flat": {"name": "FlattenObservation"}}},
            "env.wrappers.flat.name=FlattenObservation cannot wrap",
        ),
    ],
)
def test_settings_that_envpool_lacks_are_rejected_by_name(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        EnvPoolVector(EnvConfig(**{"id": "CartPole-v1", "num": 2, "vector": "envpool", **changes}))


@pytest.mark.usefixtures("envpool")
def test_episodes_restart_one_step_after_their_end_and_are_seeded():
    def play(seed):
        envs = make_envs(CARTPOLE)
        steps = [envs.reset(seed=seed)[0]]
        ended = np.zeros(3, bool)
        for _ in range(40):
            obs, rewards, terminated, truncated, _ = envs.step(np.ones(3, np.int64))
            assert (rewards[ended] == 0).all(), "a step after the end resets"
            assert (np.abs(obs[ended]) <= 0.05).all(), "the first observation of CartPole"
            ended = terminated | truncated
            steps.append(obs)
        assert envs.single_observation_space.shape == spaces_of_config(CARTPOLE).observation.shape
        envs.close()
        return np.array(steps)

    first = play(7)
    assert (first == play(7)).all()
    assert (first != play(8)).any()
    assert (first[:, 0] != first[:, 1]).any(), "members differ"


@pytest.mark.usefixtures("envpool")
def test_atari_wrappers_become_options_of_envpool():
    pytest.importorskip("ale_py")
    wrappers = {
        "life": {"name": "trieye.training.atari:EpisodicLife", "training_only": True},
        "fire": {"name": "trieye.training.atari:FireOnReset"},
    }
    config = EnvConfig(id="ALE/Breakout-v5", num=2, vector="envpool", atari=True, frame_stack=4, wrappers=wrappers)
    envs = make_envs(config)
    obs, _ = envs.reset(seed=0)
    assert (obs.shape, obs.dtype) == ((2, 4, 84, 84), np.uint8)
    assert envs.single_observation_space == spaces_of_config(config).observation
    lives = set()
    for _ in range(400):
        _, _, terminated, _, info = envs._pool.step(np.ones(2, np.int64))
        lives |= set(info["lives"][terminated].tolist())
    assert len(lives) > 1, "episodes end with each life"
    envs.close()
