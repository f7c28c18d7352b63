"""Environments with predictable episodes, and policies that check them."""

import threading
import time
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import torch

import trieye
from trieye.config.env import EnvConfig
from trieye.training.collecting import Collector
from trieye.training.environments import spaces_of_config


class Count(gym.Env):
    """An episode has 2 to 9 steps, depending on its seed; the right action is `step % 3`.

    An even number of steps ends by termination, an odd one by truncation. A right action is worth `worth`, a wrong one
    -1.
    """

    OBSERVATIONS = {
        "hidden": gym.spaces.Box(-1.0, 1.0, (2,), np.float32),
        "mask": gym.spaces.Dict(
            {"mask": gym.spaces.MultiBinary(3), "place": gym.spaces.Box(0.0, 99.0, (1,), np.float64)}
        ),
        "picture": gym.spaces.Box(0, 255, (4, 5), np.uint8),
        "memory": gym.spaces.Box(0, 255, (6,), np.uint8),
    }

    def __init__(self, form="hidden", worth=1.0, fails_at=None, longest=9):
        self.form, self.worth, self.fails_at, self.longest = form, worth, fails_at, longest
        self.observation_space, self.action_space = self.OBSERVATIONS[form], gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length, self.t = int(self.np_random.integers(2, self.longest + 1)), 0
        return self._obs(), {}

    def step(self, action):
        if self.t == self.fails_at:
            raise ZeroDivisionError("the world has a hole")
        reward = self.worth if action == self.t % 3 else -1.0
        self.t += 1
        is_over = self.t >= self.length
        info = {"success": self.length % 2 == 0, "scores": {"last": self.t}} if is_over else {}
        return self._obs(), reward, is_over and self.length % 2 == 0, is_over and self.length % 2 == 1, info

    def _obs(self):
        if self.form == "mask":
            return {"mask": np.eye(3, dtype=np.int8)[self.t % 3], "place": np.array([self.t], np.float64)}
        space = self.observation_space
        return np.full(space.shape, 0 if self.form == "hidden" else self.t, space.dtype)


class Doubles(gym.Env):
    """Has float64 actions and observations, as dm_control, and rejects actions out of bounds."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float64)

    def __init__(self, scale=1.0):
        low, high = np.array([-0.1, 0.2]), np.array([0.3, 0.7])
        self.action_space = gym.spaces.Box(scale * low, scale * high, dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-1.0, 1.0, 2), {}

    def step(self, action):
        assert self.action_space.contains(np.asarray(action)), action
        return self.np_random.uniform(-1.0, 1.0, 2), -float(np.square(action).sum()), False, False, {}


class Scalar(Doubles):
    """Takes a scalar action."""

    def __init__(self):
        super().__init__()
        self.action_space = gym.spaces.Box(-1.0, 1.0, ())


class Half(Doubles):
    """Takes float16 actions."""

    def __init__(self):
        super().__init__()
        self.action_space = gym.spaces.Box(-0.1, 0.7, (2, 1), np.float16)


class Mixed(gym.Wrapper):
    """Reports values whose type or shape depends on the episode."""

    metadata = gym.Env.metadata

    def step(self, action):
        *transition, info = self.env.step(action)
        return *transition, self.info_of(info["scores"]["last"]) if info else {"path": np.zeros(9)}

    @staticmethod
    def info_of(length):
        """Return the `info` at the end of an episode."""
        is_even = length % 2 == 0
        parts = {"path": np.arange(length), "goal": {"distance": None if is_even else 3}, "_private": length}
        return {"length": length, "fraction": 1 if is_even else 0.75, **parts}


class Pickled(gym.Wrapper, gym.utils.EzPickle):
    """An environment that cannot be saved in the middle of an episode."""

    def __init__(self, env):
        gym.utils.EzPickle.__init__(self)
        gym.Wrapper.__init__(self, env)


class Rooms(gym.Env):
    """Cycles through rooms 3 to 6; the observation contains the room and its doors."""

    observation_space = gym.spaces.Dict(
        {
            "room": gym.spaces.Discrete(4, start=3),
            "doors": gym.spaces.MultiDiscrete([2, 3]),
            "open": gym.spaces.MultiBinary(2),
            "at": gym.spaces.Box(0.0, 9.0, (1,), np.float32),
        }
    )
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action):
        self.t += 1
        return self._obs(), 0.0, False, False, {}

    def _obs(self):
        open_ = np.array([1, 0], np.int8)
        at = np.array([self.t], np.float32)
        return {"room": np.int64(3 + self.t % 4), "doors": np.array([self.t % 2, self.t % 3]), "open": open_, "at": at}


class RoomsOfVector(gym.vector.SyncVectorEnv):
    """Rooms in a custom vector form."""

    def __init__(self, num_envs):
        super().__init__([Rooms] * num_envs)


class Sampling(gym.Env):
    """Samples its observations from its observation space, the first one from its action space."""

    def __init__(self):
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(1000)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.full(2, self.action_space.sample() / 1000, np.float32), {}

    def step(self, action):
        obs = self.observation_space.sample()
        return obs, float(obs.sum()), bool(obs[0] > 0.5), False, {}


class Troubled(gym.Wrapper):
    """CartPole that fails `once` after 50 steps in the process or `later` after 50 of its own, hangs, or is slow."""

    metadata = gym.Env.metadata
    num_steps = 0
    """Steps of all instances in the process."""

    def __init__(self, kind):
        super().__init__(gym.make("CartPole-v1"))
        self.kind, self.own_steps = kind, 0

    def step(self, action):
        self.own_steps += 1
        Troubled.num_steps += 1
        if self.kind == "once" and Troubled.num_steps == 50:
            raise ZeroDivisionError("the world has a hole")
        if self.kind == "later" and self.own_steps >= 50:
            raise ZeroDivisionError("the world ended")
        if self.kind == "hangs" and self.own_steps == 20:
            time.sleep(3.0)
        if self.kind == "slow":
            time.sleep(0.01)
        return super().step(action)


class Spoiled(gym.Env):
    """Episodes of 3 to 12 steps; one step has `value` as its `target`: reward, observation, or reset observation.

    It happens at step (or reset) number `at` of the environment and, with `every`, periodically after that.
    """

    observation_space, action_space = gym.spaces.Box(-9.0, 9.0, (3,), np.float32), gym.spaces.Discrete(3)

    def __init__(self, target="reward", value=np.nan, at=20, every=None):
        self.target, self.value, self.at, self.every = target, value, at, every
        self.num_steps = self.num_resets = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.num_resets += 1
        self.left = int(self.np_random.integers(3, 13))
        return self._obs(is_spoiled=self.target == "reset" and self._is_turn(self.num_resets)), {}

    def step(self, action):
        self.num_steps += 1
        self.left -= 1
        is_turn = self._is_turn(self.num_steps)
        reward = self.value if self.target == "reward" and is_turn else float(action == 1)
        obs = self._obs(is_spoiled=self.target == "observation" and is_turn)
        return obs, reward, self.left <= 0 and self.num_steps % 2 == 0, self.left <= 0 and self.num_steps % 2 == 1, {}

    def _is_turn(self, number):
        return number == self.at or (
            self.every is not None and number > self.at and not (number - self.at) % self.every
        )

    def _obs(self, *, is_spoiled):
        obs = self.np_random.normal(size=3).astype(np.float32)
        obs[1] = self.value if is_spoiled else obs[1]
        return obs


class Hangs(gym.Wrapper):
    """CartPole; one instance in the process hangs in its 20th step until `released` is set.

    Args:
        longest_s: Limit of the hang in seconds.
    """

    metadata = gym.Env.metadata
    released, hanging = threading.Event(), threading.Event()

    def __init__(self, longest_s=60.0):
        super().__init__(gym.make("CartPole-v1"))
        self.longest_s, self.own_steps = longest_s, 0

    def step(self, action):
        self.own_steps += 1
        if self.own_steps == 20 and not Hangs.hanging.is_set():
            Hangs.hanging.set()
            Hangs.released.wait(self.longest_s)
        return super().step(action)

    @classmethod
    def again(cls):
        cls.released, cls.hanging = threading.Event(), threading.Event()


class Endless(gym.Wrapper):
    """CartPole whose episodes never end."""

    metadata = gym.Env.metadata

    def __init__(self):
        super().__init__(gym.make("CartPole-v1").unwrapped)

    def step(self, action):
        _, reward, _, _, info = super().step(action)
        return self.unwrapped.reset()[0], reward, False, False, info


class Particular(gym.Wrapper):
    """A wrapper that rejects every environment without a message."""

    def __init__(self, env):
        assert env is None


class Numbered(gym.Env):
    """Observes the number of its episode in this process and the step within it; an episode has 50 steps.

    Args:
        fails_at: Steps of all instances, counted since `begin`, that raise.
    """

    observation_space = gym.spaces.Box(0.0, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    num_episodes = num_steps = 0

    def __init__(self, fails_at=()):
        self.fails_at = fails_at

    @classmethod
    def begin(cls):
        cls.num_episodes = cls.num_steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        Numbered.num_episodes += 1
        self.episode, self.t = Numbered.num_episodes, 0
        return self._obs(), {}

    def step(self, action):
        Numbered.num_steps += 1
        self.t += 1
        if Numbered.num_steps in self.fails_at:
            raise ZeroDivisionError("the world has a hole")
        return self._obs(), 1.0, self.t >= 50, False, {}

    def _obs(self):
        return np.array([self.episode, self.t], np.float32)

    @staticmethod
    def num_joined(before, after, n_step):
        """Return the number of rows whose observations before and after are not `n_step` steps apart in one episode."""
        steps = after[:, 1] - before[:, 1]
        return int(np.count_nonzero((after[:, 0] != before[:, 0]) | (steps < 1) | (steps > n_step)))


gym.register("Numbered-v0", "tests.training.worlds:Numbered")
gym.register("Count-v0", "tests.training.worlds:Count")
gym.register("Doubles-v0", "tests.training.worlds:Doubles", max_episode_steps=20)
gym.register("Half-v0", "tests.training.worlds:Half")
gym.register("Scalar-v0", "tests.training.worlds:Scalar", max_episode_steps=20)
gym.register("Rooms-v0", "tests.training.worlds:Rooms", vector_entry_point="tests.training.worlds:RoomsOfVector")
gym.register("Sampling-v0", "tests.training.worlds:Sampling", max_episode_steps=20)
gym.register("Spoiled-v0", "tests.training.worlds:Spoiled")
gym.register("HangsOnce-v0", "tests.training.worlds:Hangs")
gym.register("Endless-v0", "tests.training.worlds:Endless")
for name in ("FailsOnce", "FailsLater", "Hangs", "Slow"):
    gym.register(f"{name}-v0", "tests.training.worlds:Troubled", kwargs={"kind": name.lower().removeprefix("fails")})


class Scripted(trieye.Policy):
    """Takes its actions from a table `[t, n]`, and returns the row number as an extra."""

    def script(self, actions):
        self.actions, self.t = torch.from_numpy(actions), 0
        return self

    def act(self, obs, state, ctx):
        self.t += 1
        return trieye.Act(self.actions[self.t - 1], {"row": torch.full(self.actions[0].shape, self.t - 1)})


class Remembers(trieye.Policy):
    """Counts the steps of an episode in its state, and derives actions from it."""

    def __init__(self, config, spaces):
        super().__init__(config, spaces)
        self.weight = torch.nn.Parameter(torch.ones(1))

    def initial_state(self, n):
        return {"age": torch.zeros(n, 1)}

    def act(self, obs, state, ctx):
        age = state["age"]
        return trieye.Act(age[:, 0].long() % 3, {"age": age[:, 0]}, {"age": age + self.weight})

    def on_episode(self, info):
        return {"success": info["success"], "last": info["scores"]["last"]}


class Masked(trieye.Policy):
    """Chooses the action that the mask allows."""

    def act(self, obs, state, ctx):
        assert obs["place"].dtype == obs["mask"].dtype == torch.float32
        return trieye.Act(obs["mask"].argmax(1))


class Coin(trieye.Policy):
    """Acts at random."""

    def act(self, obs, state, ctx):
        return trieye.Act(torch.randint(2, (len(obs),), generator=ctx.generator))


def collector_of(policy, seed=0, gamma=0.99, **env):
    """Return a collector with a new policy and new environments."""
    config = EnvConfig(**{"id": "tests.training.worlds:Count-v0", **env})
    new_policy = policy(SimpleNamespace(env=config, agent=None), spaces_of_config(config))
    return Collector(config, new_policy, gamma=gamma, seed=seed)


def collected(collector, steps, *, seed):
    """Return rows that were collected with this exploration seed."""
    collector.generator = generator(seed)
    return collector.collect(steps)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)
