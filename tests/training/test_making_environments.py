"""Environments are created as configured, or rejected with a one-line message that names the key."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from tests.training.worlds import Count, collector_of
from trieye.config.env import EnvConfig
from trieye.exceptions import ConfigurationError
from trieye.training.environments import check_env, make_env, make_envs, spaces_of
from trieye.training.policy import Act, Policy

BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)


class Own(gym.Env):
    """A user's environment, whose only arguments are its spaces."""

    observation_space, action_space = BOX, gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}


class Outside(Own):
    def step(self, action):
        return np.array([5.0, 0.0], np.float32), 0.0, False, False, {}


class Paying(Own):
    def __init__(self, shape):
        self.shape = shape

    def step(self, action):
        return np.zeros(2, np.float32), np.ones(self.shape, np.float32), False, False, {}


class Summed(gym.RewardWrapper):
    def reward(self, reward):
        return reward.sum()


class Widened(Own):
    def reset(self, *, seed=None, options=None):
        return np.zeros(2), {}


class Unseeded(Own):
    def reset(self, *, seed=None, options=None):
        return np.random.default_rng().random(2, np.float32), {}


class Several(Own):
    observation_space = gym.spaces.Sequence(BOX)


class Boundless(Own):
    action_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)


class FromOne(Own):
    action_space = gym.spaces.Discrete(2, start=1)


class Whole(Own):
    action_space = gym.spaces.Box(0, 9, (2,), np.int64)


class Double(Own):
    action_space = gym.spaces.Box(np.array([-0.1, 0.0]), np.array([0.1, 1e300]), dtype=np.float64)


class Sizes(Own):
    def __init__(self, observation, action):
        self.observation_space = gym.spaces.Dict({"at": BOX, "extra": gym.spaces.Box(0.0, 1.0, (2, observation))})
        self.action_space = gym.spaces.Box(-1.0, 1.0, (action,))


class Halved(gym.ObservationWrapper):
    def observation(self, observation):
        return observation[:2]


class AtOnce(gym.vector.VectorEnv):
    metadata = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}

    def __init__(self, num_envs=1, max_episode_steps=None):
        self.num_envs = num_envs


class Pool:
    """As from EnvPool: behaves like a vector environment, but derives from no class of Gymnasium."""

    spec, metadata = None, {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}
    unwrapped = property(lambda self: self)

    def __init__(self, num_envs=1):
        self.num_envs = num_envs
        self.observation_space, self.action_space = BOX, gym.spaces.Discrete(2)


class Vector(gym.vector.VectorEnv):
    metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}
    single_observation_space, single_action_space = BOX, gym.spaces.Discrete(3)

    def __init__(self, num_envs=1):
        self.num_envs = num_envs


def broken(num_envs=1):
    raise KeyError("assets/model.xml")


for env_class in (Own, Outside, Paying, Widened, Unseeded, Several, Boundless, FromOne, Whole, Double, Sizes):
    gym.register(f"{env_class.__name__}-v0", env_class)
gym.register("Pool-v0", Own, vector_entry_point=Pool)
gym.register("Broken-v0", Own, vector_entry_point=broken)
gym.register("VectorOnly-v0", vector_entry_point=Vector)
gym.register("ThreeAtOnce-v0", Own, vector_entry_point=Vector)
gym.register("AtOnce-v0", Own, vector_entry_point=AtOnce)


COUNT = "tests.training.worlds:Count-v0"


def wrapped(name, **options):
    """Return the config of CartPole with a wrapper."""
    return {"id": "CartPole-v1", "wrappers": {"w": {"name": name, **options}}}


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ({"id": "CartPol-v1"}, "env.id=CartPol-v1 is not registered with Gymnasium; did you mean 'CartPole-v1'?"),
        ({"id": "Xyzzy-v0"}, "env.id=Xyzzy-v0 cannot be created: Environment `Xyzzy` doesn't exist."),
        ({"id": "gone_away:Own-v0"}, "env.id=gone_away:Own-v0 cannot be created: No module named 'gone_away'"),
        ({"id": "CartPole-v1", "kwargs": {"foo": 1}}, "env.id=CartPole-v1 cannot be created: .*argument 'foo'"),
        (
            wrapped("TimeAwareObservatio"),
            "w.name=TimeA.*: the class does not exist; did you mean 'TimeAwareObservation'",
        ),
        (wrapped("gone_away:Mine"), "w.name=gone_away:Mine: the class does not exist .*No module named 'gone_away'"),
        (
            wrapped("RescaleAction", kwargs={"min_action": 0, "max_action": 1}),
            r"env.wrappers.w: cannot wrap this environment: .*(requires a Box|isinstance\(.*, Box\))",
        ),
        (wrapped("tests.training.worlds:Particular"), "w: cannot wrap .*: AssertionError in `assert env is None`"),
        (
            wrapped(f"{__name__}:Halved"),
            r"env.wrappers.w: reset\(\) returned the shape \[2\], and observation_space has \[4\]",
        ),
        ({"id": "AtOnce-v0", "vector": "own"}, "env.vector=own: AtOnce-v0 has autoreset mode SameStep"),
        ({"id": "Own-v0", "vector": "own"}, "env.vector=own: Own-v0 has no vector form; set env.vector=sync"),
        ({"id": "Pool-v0", "vector": "own"}, "Pool-v0 makes a .*Pool, not a gymnasium.vector.VectorEnv"),
        ({"id": "Broken-v0", "vector": "own"}, "env.id=Broken-v0 cannot be created: .*assets/model.xml"),
        ({"id": "VectorOnly-v0", "vector": "own"}, "env.vector=own: VectorOnly-v0 has no single form"),
        (
            {"id": "ThreeAtOnce-v0", "vector": "own"},
            r"ThreeAtOnce-v0 has the action space Discrete\(3\) in training and Discrete\(2\) in evaluations.* single",
        ),
        (
            wrapped("TimeAwareObservation", training_only=True),
            r"env.wrappers.w: .* observation space Box.*\(5,\).* in training and .*\(4,\).*omit.*training_only=true",
        ),
        ({"id": "Whole-v0"}, r"action space Box\(0, 9.*int64\); this agent supports .*a bounded Box of floats"),
        ({"id": "Boundless-v0"}, r"action space Box\(-inf, inf.*this agent supports .*a bounded Box of floats"),
        ({"id": "FromOne-v0"}, r"action space Discrete\(2, start=1\); this agent supports a Discrete space"),
        ({"id": "Several-v0"}, "env.id=Several-v0 has the observation space Sequence.*supported are Box, Discrete"),
        ({"id": "Outside-v0"}, "Outside-v0 violates the rules of Gymnasium: .*observation array.*not in Box"),
        ({"id": "Paying-v0", "kwargs": {"shape": [1]}}, r"the reward array\(\[1.\].*return a float.*reward.item\(\)"),
        ({"id": "Paying-v0", "kwargs": {"shape": [2]}}, r"the reward array\(\[1., 1.\].*return a float.*env.wrappers"),
        ({"id": "Widened-v0"}, r"reset\(\) returned float64 \[2\] array.*the space is Box\(.*float32\)"),
        ({"id": "Sizes-v0", "kwargs": {"observation": 0, "action": 1}}, r"at least one number; .*FilterObservation"),
        (
            {"id": "Sizes-v0", "kwargs": {"observation": 1, "action": 0}},
            r"Box\(\[\], \[\], \(0,\).*at least one number",
        ),
        ({"id": "Unseeded-v0"}, "env.id=Unseeded-v0 violates the rules of Gymnasium: .*seed"),
        ({"id": "FrozenLake-v1", "atari": True}, "env.atari=true.*(FrozenLake-v1 is not an ale-py game|trieye.atari)"),
        ({"id": "Own-v0", "eval_video": True}, "env.eval_video=true: Own-v0 cannot render frames"),
        (
            {"id": COUNT, "kwargs": {"form": "mask"}, "normalize_observations": True},
            "env.normalize_observations=true needs a Box observation space, not Dict",
        ),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_an_unusable_environment_is_rejected_in_one_line(env, sentence):
    with pytest.raises(ConfigurationError, match=sentence) as refused:
        check_env(EnvConfig(**env), ("discrete", "continuous"))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "env",
    [
        {"id": "Own-v0"},
        {"id": "CartPole-v1", "eval_video": True},
        {"id": "Blackjack-v1"},
        {"id": "Paying-v0", "kwargs": {"shape": [2]}, "wrappers": {"sum": {"name": f"{__name__}:Summed"}}},
    ],
)
def test_a_valid_environment_is_accepted(env):
    check_env(EnvConfig(**env), ("discrete",))


def test_float64_actions_are_float32_for_policies_and_stay_within_their_bounds():
    env = make_env(EnvConfig(id="Double-v0"))
    actions = spaces_of(env).action
    assert (actions.dtype, actions.low.dtype, actions.high.dtype) == (np.float32,) * 3
    assert actions.low.tolist() == pytest.approx([-0.1, 0.0], abs=1e-8)
    assert actions.high.tolist() == pytest.approx([0.1, float(np.finfo(np.float32).max)])
    assert env.action_space.contains(actions.low)
    assert env.action_space.contains(actions.high)


@pytest.mark.parametrize(("num", "vector"), [(1, "sync"), (2, "async")])
def test_float16_actions_are_float32_for_policies_only(num, vector):
    class Highest(Policy):
        def act(self, obs, state, ctx):
            return Act(torch.from_numpy(self.spaces.action.high).expand(len(obs), 2, 1))

    collector = collector_of(Highest, id="tests.training.worlds:Half-v0", num=num, vector=vector)
    assert collector.collect(3).arrays["action"].dtype == np.float32
    assert collector.can_save
    collector.close()


def test_an_unsupported_action_space_names_the_supported_one():
    with pytest.raises(ConfigurationError, match="this agent supports a Discrete space that starts at 0"):
        check_env(EnvConfig(id="Pendulum-v1"), ("discrete",))
    with pytest.raises(ConfigurationError, match="this agent supports a bounded Box of floats"):
        check_env(EnvConfig(id="CartPole-v1"), ("continuous",))


def test_discrete_observations_are_one_hot_in_single_and_vector_form():
    single = make_env(EnvConfig(id="FrozenLake-v1"))
    assert single.reset(seed=0)[0].tolist() == [1] + [0] * 15
    assert spaces_of(single).observation.shape == (16,)
    rows = collector_of(_First, id="FrozenLake-v1", num=2).collect(3)
    assert rows.arrays["obs"].shape == (3, 2, 16)
    assert (rows.arrays["obs"].sum(2) == 1).all()


@pytest.mark.parametrize("vector", ["sync", "own"])
def test_discrete_parts_of_a_dict_are_one_hot(vector):
    collector = collector_of(_First, id="tests.training.worlds:Rooms-v0", num=2, vector=vector)
    rows = collector.collect(5)
    parts = {name.partition("/")[2]: array for name, array in rows.arrays.items() if name.startswith("obs/")}
    assert parts["room"].shape == (5, 2, 4)
    assert (parts["room"].argmax(2) == np.arange(5)[:, None] % 4).all()
    assert (parts["room"].sum(2) == 1).all()
    assert parts["doors"].shape == (5, 2, 5)
    assert parts["doors"][4, 1].tolist() == [1, 0, 0, 1, 0]
    assert parts["open"][0, 0].tolist() == [1, 0]
    assert parts["at"][:, 0, 0].tolist() == [0, 1, 2, 3, 4]
    shapes = {key: space.shape for key, space in collector._policy.spaces.observation.items()}
    assert shapes == {"room": (4,), "doors": (5,), "open": (2,), "at": (1,)}
    assert vector == "own" or collector.can_save


class _First(Policy):
    def act(self, obs, state, ctx):
        first = next(iter(obs.values())) if isinstance(obs, dict) else obs
        return Act(torch.zeros(len(first), dtype=torch.int64))


def test_stacked_frames_are_the_leading_dimension_from_oldest_to_newest():
    env = make_env(EnvConfig(id="tests.training.worlds:Count-v0", kwargs={"form": "picture"}, frame_stack=3))
    obs, _ = env.reset(seed=1)
    assert (env.unwrapped.length, obs.shape, obs.dtype) == (5, (3, 4, 5), np.uint8)
    for step in range(1, 5):
        obs, *_ = env.step(0)
        assert obs[:, 0, 0].tolist() == [max(step - 2, 0), max(step - 1, 0), step]
    assert isinstance(env.unwrapped, Count)


def test_wrappers_are_applied_in_order_from_inside_to_outside():
    wrappers = {
        "clip": {"name": "ClipReward", "kwargs": {"max_reward": 0.5}},
        "none": None,
        "time": {"name": "TimeAwareObservation"},
    }
    env = make_env(EnvConfig(id="Own-v0", wrappers=wrappers, max_episode_steps=3))
    obs, _ = env.reset(seed=0)
    assert obs.shape == (3,)
    assert [type(env).__name__, type(env.env).__name__] == ["TimeAwareObservation", "ClipReward"]
    assert [env.step(0)[3] for _ in range(3)] == [False, False, True]


def test_the_limit_of_an_episode_counts_the_steps_below_a_wrapper_that_skips_frames():
    skip = {"name": "MaxAndSkipObservation", "kwargs": {"skip": 4}}
    env = make_env(EnvConfig(id="Pendulum-v1", wrappers={"skip": skip}, max_episode_steps=8))
    env.reset(seed=0)
    assert [env.step(env.action_space.sample())[3] for _ in range(2)] == [False, True]


def test_atari_preprocessing_gives_pong_four_grey_84x84_frames_per_observation():
    pytest.importorskip("ale_py", reason="env.atari needs trieye[atari]")
    pytest.importorskip("cv2", reason="env.atari needs trieye[atari]")
    config = EnvConfig(id="ALE/Pong-v5", atari=True, frame_stack=4, num=2)
    check_env(config, ("discrete",))
    envs = make_envs(config)
    assert spaces_of(envs).observation == gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    obs, _ = envs.reset(seed=0)
    frames = np.array([one.unwrapped.ale.getEpisodeFrameNumber() for one in envs.envs])
    after, *_ = envs.step(np.zeros(2, np.int64))
    assert ([one.unwrapped.ale.getEpisodeFrameNumber() for one in envs.envs] - frames == 4).all()
    assert after.dtype == obs.dtype == np.uint8
    envs.close()


@pytest.mark.parametrize("name", ["NormalizeObservation", "NormalizeReward", "gymnasium.wrappers:NormalizeReward"])
def test_a_wrapper_with_private_statistics_is_rejected_and_names_the_option_instead(name):
    config = EnvConfig(id="CartPole-v1", wrappers={"norm": {"name": name}})
    instead = "normalize_observations" if name == "NormalizeObservation" else "normalize_rewards"
    with pytest.raises(ConfigurationError, match=rf"env.wrappers.norm.name={name}: .*set env.{instead}=true"):
        make_env(config).close()
