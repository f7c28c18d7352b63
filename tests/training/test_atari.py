"""Wrappers of Atari games, on a game of three lives without the emulator."""

import itertools
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest

import trieye
from trieye.config.env import EnvConfig
from trieye.snapshot.decode import decode
from trieye.snapshot.encode import encode
from trieye.snapshot.environments import EnvState
from trieye.training.atari import EpisodicLife, FireOnReset
from trieye.training.environments import make_env, make_envs, spaces_of_config
from trieye.training.evaluation import Evaluation

LIVES, STEPS = 3, 4  # a life is lost every fourth step


class Lives(gym.Env):
    """Observe the number of resets and steps; each step pays its action."""

    observation_space = gym.spaces.Box(0, 1000, (2,), np.float32)
    action_space = gym.spaces.Discrete(4)

    def __init__(self):
        self.games, self.steps, self.actions = 0, 0, []

    def get_action_meanings(self):
        return ["NOOP", "FIRE", "RIGHT", "LEFT"]

    def observation_and_info(self):
        obs = np.array([self.games, self.steps], np.float32)
        return obs, {"lives": LIVES - self.steps // STEPS}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.games, self.steps, self.actions = self.games + 1, 0, []
        return self.observation_and_info()

    def step(self, action):
        self.steps += 1
        self.actions.append(int(action))
        obs, info = self.observation_and_info()
        return obs, float(action), self.steps == LIVES * STEPS, False, info


gym.register("Lives-v0", Lives)
WRAPPERS = {
    "lives": {"name": "trieye.training.atari:EpisodicLife", "training_only": True},
    "fire": {"name": "trieye.training.atari:FireOnReset"},
}


def play(env):
    env.reset(seed=0)
    while True:
        obs, reward, terminated, _, _ = env.step(3)
        yield obs.tolist(), reward, terminated
        if terminated:
            obs, _ = env.reset()
            yield obs.tolist(), 0.0, False


def test_a_lost_life_ends_the_episode_but_only_game_over_resets_the_game():
    steps = play(EpisodicLife(Lives()))
    transitions = [next(steps) for _ in range(14)]
    assert [obs for obs, _, terminated in transitions if terminated] == [[1, 4], [1, 8], [1, 12]]
    assert [before for before, after in itertools.pairwise(transitions) if after[0] == [1, 5]] == [([1, 4], 3.0, True)]
    assert transitions[-2][0] == [2, 0]  # after the third life


def test_a_reset_with_a_seed_restarts_a_game_that_has_lives_left():
    env = EpisodicLife(Lives())
    env.reset(seed=0)
    assert any(env.step(0)[2] for _ in range(STEPS))
    obs, _ = env.reset(seed=1)
    assert obs.tolist() == [2, 0]


def test_fire_starts_each_life_and_games_without_fire_are_unchanged():
    env = FireOnReset(Lives())
    env.reset(seed=0)
    rewards = [env.step(3)[1] for _ in range(3)]
    assert env.unwrapped.actions == [1, 2, 3, 3, 1, 2, 3]
    assert rewards == [3, 6, 3]  # the second step lost a life, and pays the rewards of FIRE and RIGHT too
    env.unwrapped.get_action_meanings = lambda: ["NOOP", "UP", "DOWN"]
    quiet = FireOnReset(env.unwrapped)
    quiet.reset(seed=0)
    quiet.step(3)
    assert env.unwrapped.actions == [3]


class Left(trieye.Policy):
    """Always moves left."""

    def act(self, obs, state, ctx):
        return trieye.Act((obs[:, 0] * 0 + 3).long())


def test_evaluations_play_whole_games_and_training_episodes_are_single_lives():
    config = EnvConfig(id="Lives-v0", wrappers=WRAPPERS, clip_rewards=True)
    envs = make_envs(config)
    envs.reset(seed=0)
    ends = [bool(envs.step(np.array([3]))[2][0]) for _ in range(8)]
    assert ends == [False, True, False, True, False, True, False, False]  # every other step resets, and fires
    envs.close()
    evaluation = Evaluation(config)
    episode = evaluation.play(Left(SimpleNamespace(env=config, agent=None), spaces_of_config(config)), 1)[0]
    assert episode.length < LIVES * STEPS
    assert episode.total == 3 * episode.length + 3 * (LIVES - 1)  # unclipped; FIRE and RIGHT pay 3 after each lost life
    evaluation.close()


@pytest.fixture
def atari():
    """Skip the test without Atari games."""
    for library in ("ale_py", "cv2"):
        pytest.importorskip(library, reason="env.atari needs trieye[atari]")


@pytest.mark.usefixtures("atari")
def test_a_saved_game_resumes_exactly_in_another_environment():
    kwargs = {"repeat_action_probability": 0.0}
    config = EnvConfig(id="ALE/Breakout-v5", atari=True, frame_stack=4, wrappers=WRAPPERS, kwargs=kwargs)
    envs = [make_env(config, seed=seed) for seed in (0, 1)]
    states = [EnvState(env) for env in envs]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
    actions = np.random.default_rng(0).integers(4, size=300)
    for action in actions[:100]:
        if envs[0].step(action)[2]:
            envs[0].reset()
    assert states[0].is_exact
    states[1].load_state_dict(decode(encode(states[0].state_dict())))
    for action in actions[100:]:
        (obs, *one), (other_obs, *other) = (env.step(action) for env in envs)
        assert one == other
        assert np.array_equal(obs, other_obs)
        if one[1]:
            assert envs[0].reset()[1] == envs[1].reset()[1]
    for env in envs:
        env.close()


@pytest.mark.usefixtures("atari")
def test_the_state_of_a_game_with_sticky_actions_is_not_exact():
    env = make_env(EnvConfig(id="ALE/Breakout-v5", atari=True, kwargs={"repeat_action_probability": 0.25}))
    env.reset(seed=0)
    assert not EnvState(env).is_exact
    env.close()


@pytest.mark.usefixtures("atari")
def test_real_games_continue_after_a_lost_life():
    env = make_env(EnvConfig(id="ALE/Breakout-v5", atari=True, frame_stack=4, wrappers=WRAPPERS), seed=0)
    _, info = env.reset(seed=0)
    assert info["lives"] == 5
    for lives in (4, 3):
        terminated = False
        while not terminated:
            obs, _, terminated, _, info = env.step(0)
        assert info["lives"] == lives
        obs, info = env.reset()
        assert (obs == obs[0]).all(), "the stack starts again with each life"
        assert info["lives"] == lives
        assert info["episode_frame_number"] > 100
    env.close()
