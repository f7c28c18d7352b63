import ctypes
import logging
import re
import threading
import types

import gymnasium as gym
import gymnasium.wrappers.vector
import numpy as np
import pytest
from gymnasium import wrappers

from trieye.exceptions import ConfigurationError, SerializationError
from trieye.persistence import environments
from trieye.persistence.encoding import decode, encode
from trieye.persistence.environments import EnvState
from trieye.persistence.state_directory import load_state, save_state

PENDULUM, CARTPOLE = "Pendulum-v1", "CartPole-v1"
PLAIN = [
    CARTPOLE, "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", PENDULUM, "Taxi-v4", "FrozenLake-v1",
    "FrozenLake8x8-v1", "CliffWalking-v1", "CliffWalkingSlippery-v1", "Blackjack-v1",
]  # fmt: skip
WRAPPERS = {
    "RecordEpisodeStatistics": wrappers.RecordEpisodeStatistics,
    "NormalizeObservation": wrappers.NormalizeObservation,
    "NormalizeReward": wrappers.NormalizeReward,
    "FrameStackObservation": lambda env: wrappers.FrameStackObservation(env, 4),
    "FlattenObservation": wrappers.FlattenObservation,
    "TransformObservation": lambda env: wrappers.TransformObservation(env, lambda obs: obs * 2, env.observation_space),
    "DtypeObservation": lambda env: wrappers.DtypeObservation(env, np.float64),
    "TimeAwareObservation": wrappers.TimeAwareObservation,
    "DelayObservation": lambda env: wrappers.DelayObservation(env, 2),
    "StickyAction": lambda env: wrappers.StickyAction(env, 0.3),
    "MaxAndSkipObservation": lambda env: wrappers.MaxAndSkipObservation(env, 2),
    "Autoreset": wrappers.Autoreset,
    "several": lambda env: wrappers.NormalizeReward(
        wrappers.FrameStackObservation(wrappers.RecordEpisodeStatistics(env), 3)
    ),
}
VECTORS = {
    "sync": lambda: gym.make_vec(CARTPOLE, num_envs=3, vectorization_mode="sync"),
    "sync, of discrete observations": lambda: gym.make_vec("FrozenLake-v1", num_envs=3, vectorization_mode="sync"),
    "sync, wrapped": lambda: gym.wrappers.vector.NormalizeReward(
        gym.wrappers.vector.RecordEpisodeStatistics(gym.make_vec(CARTPOLE, num_envs=3, vectorization_mode="sync"))
    ),
    "its own": lambda: gym.make_vec(CARTPOLE, num_envs=3, vectorization_mode="vector_entry_point"),
}


def are_same(one, other):
    """Equal in type and in every bit; wall-clock times of `RecordEpisodeStatistics` left out."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(are_same(one[key], other[key]) for key in one if key != "t")
    if isinstance(one, list | tuple) or (isinstance(one, np.ndarray) and one.dtype == object):
        return len(one) == len(other) and all(map(are_same, one, other))
    return type(one) is type(other) and np.asarray(one).tobytes() == np.asarray(other).tobytes()


def through_disk(state, directory):
    encoded = encode(state)
    assert not encoded.objects
    return decode(load_state(save_state(directory / "saved", encoded)))


def assert_goes_on(make, directory, *, steps=120, seed=3):
    """Save an environment in the middle of an episode and compare what another one makes of it, with random actions."""
    env, twin = make(), make()
    is_vector = isinstance(env, gym.vector.VectorEnv)
    env.reset(seed=seed)
    env.action_space.seed(seed + 1)
    for _ in range(17):
        *_, terminated, truncated, _ = env.step(env.action_space.sample())
        if not is_vector and (terminated or truncated):
            env.reset()
    state = EnvState(env)
    assert state.reason is None
    assert state.can_save
    twin.reset(seed=seed + 2)
    twin.step(twin.action_space.sample())
    other = EnvState(twin)
    other.between_episodes = True
    other.load_state_dict(through_disk(state.state_dict(), directory))
    assert not other.between_episodes
    for _ in range(steps):
        action, twin_action = env.action_space.sample(), twin.action_space.sample()
        assert are_same(action, twin_action)
        (*_, terminated, truncated, _), found = expected, _ = env.step(action), twin.step(twin_action)
        assert are_same(expected, found)
        if not is_vector and (terminated or truncated):
            assert are_same(env.reset(), twin.reset())


@pytest.mark.parametrize("env_id", PLAIN)
def test_episodes_of_classic_control_and_toy_text_go_on_bit_for_bit(env_id, tmp_path):
    assert_goes_on(lambda: gym.make(env_id, max_episode_steps=30), tmp_path)


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrapped_episodes_go_on_bit_for_bit(name, tmp_path):
    assert_goes_on(lambda: WRAPPERS[name](gym.make(CARTPOLE, max_episode_steps=30)), tmp_path)


def test_rescaled_and_clipped_actions_go_on_bit_for_bit(tmp_path):
    bounds = np.float32(-1), np.float32(1)
    assert_goes_on(lambda: wrappers.ClipAction(wrappers.RescaleAction(gym.make(PENDULUM), *bounds)), tmp_path)


@pytest.mark.parametrize("name", VECTORS)
def test_vectors_of_environments_go_on_bit_for_bit(name, tmp_path):
    assert_goes_on(VECTORS[name], tmp_path)


class Counter(gym.Env):
    """An environment whose attributes are for a test to choose."""

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Box(0, 1, (1,))

    def __init__(self, make_attribute=lambda: None):
        self._make_attribute = make_attribute
        self.hidden = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.hidden = self._make_attribute()
        return self.np_random.random(1, np.float32), {}

    def step(self, action):
        return self.np_random.random(1, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize(
    ("make_attribute", "named"),
    [
        (ctypes.c_double * 4, "Counter.hidden is a .*c_double_Array_4"),
        (threading.Lock, "Counter.hidden is a _thread.lock"),
        (threading.Thread, "Counter.hidden is a threading.Thread"),
        (lambda: iter([1]), "Counter.hidden is a builtins.list_iterator"),
        (lambda: {"deep": [1, object()]}, r"Counter.hidden\['deep'\]\[1\] is a builtins.object"),
        (lambda: {"red", "blue"}, "Counter.hidden is a builtins.set whose order"),
        (lambda: np.array([object()]), "Counter.hidden is a numpy.ndarray"),
        (lambda: types.ModuleType("simulator"), "Counter.hidden is a builtins.module"),
        (lambda: [].append, "Counter.hidden is a builtins.builtin_function_or_method"),
        (lambda: np.frombuffer(bytearray(8)), "Counter.hidden is a numpy.ndarray whose memory belongs to"),
    ],
)
def test_what_is_not_plain_data_makes_it_inexact_and_is_named(make_attribute, named, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(environments, "_said", set())
    env, twin = Counter(make_attribute), Counter(make_attribute)
    env.reset(seed=1)
    state, other = EnvState(env), EnvState(twin)
    assert re.match(named, state.reason)
    assert not state.is_exact
    assert not state.can_save
    with caplog.at_level(logging.WARNING):
        held = [through_disk(state.state_dict(), tmp_path) for _ in range(2)][-1]
        assert [record.message[:32] for record in caplog.records] == ["Counter cannot be saved in the m"]
        other.load_state_dict(held)
    assert other.between_episodes
    assert "a new episode has to begin, the resume is not exact" in caplog.text


def test_saved_between_two_episodes_it_goes_on_exactly_even_so(tmp_path, caplog):
    env, twin = Counter(threading.Lock), Counter(threading.Lock)
    env.reset(seed=1)
    env.action_space.seed(2)  # the space belongs to the class, and is that of both
    state, other = EnvState(env), EnvState(twin)
    state.between_episodes = True
    assert state.can_save
    held = through_disk(state.state_dict(), tmp_path)
    expected = env.reset(), [env.action_space.sample() for _ in range(20)]
    with caplog.at_level(logging.WARNING):
        other.load_state_dict(held)
    assert not caplog.records
    assert other.between_episodes
    assert are_same((twin.reset(), [twin.action_space.sample() for _ in range(20)]), expected)


def test_the_space_of_a_class_is_restored_too():
    env = Counter()
    env.reset(seed=1)
    env.action_space.seed(2)
    state = EnvState(env).state_dict()
    expected = [env.action_space.sample() for _ in range(20)]
    EnvState(Counter()).load_state_dict(state)
    assert [Counter.action_space.sample() for _ in range(20)] == expected


def test_processes_of_a_vector_are_out_of_reach():
    env = gym.make_vec(CARTPOLE, num_envs=1, vectorization_mode="async")
    try:
        assert not EnvState(env).is_exact
    finally:
        env.close()


def test_an_ignored_attribute_is_left_alone():
    env, twin = Counter(threading.Lock), Counter(threading.Lock)
    env.reset(seed=1)
    other = EnvState(twin, ignored=["Counter.hidden"])
    twin.reset()
    own = EnvState(env, ignored=["Counter.hidden"])
    assert own.is_exact
    other.load_state_dict(own.state_dict())
    assert twin.hidden is not None
    assert are_same(env.step(0), twin.step(0))


def test_a_snapshot_does_not_change_with_the_environment():
    env = gym.make("FrozenLake-v1")
    env.reset(seed=1)
    env.unwrapped.path = [np.zeros(2)]
    state = EnvState(env).state_dict()
    expected = encode(state).tree
    env.unwrapped.path[0] += 1
    env.unwrapped.path.append(3)
    env.step(1)
    assert encode(state).tree == expected


def test_only_environments_are_taken():
    with pytest.raises(ConfigurationError, match=r"a list is neither a gymnasium.Env nor a gymnasium VectorEnv"):
        EnvState([])


def test_other_wrappers_than_those_saved_are_an_error_that_says_what_to_do():
    env = gym.make(CARTPOLE)
    env.reset()
    state = EnvState(env).state_dict()
    with pytest.raises(SerializationError, match=r"state of CartPole-v1 does not fit .*with the same wrappers"):
        EnvState(wrappers.NormalizeObservation(gym.make(CARTPOLE))).load_state_dict(state)
    with pytest.raises(SerializationError, match="does not fit this environment"):
        EnvState(env).load_state_dict({"between_episodes": False})


def test_an_environment_whose_module_uses_a_compiled_engine_is_not_trusted(monkeypatch):
    engine = types.ModuleType("engine")
    engine.__file__ = "/somewhere/engine.so"
    monkeypatch.setitem(globals(), "engine", engine)
    env = wrappers.TimeLimit(Counter(), 5)
    env.reset()
    place = f"{__name__}.engine"
    assert EnvState(env).reason.startswith(f"{place} is a builtins.module that is no Python")
    assert EnvState(env, ignored=[place]).is_exact
