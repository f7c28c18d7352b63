import collections
import enum
import functools
import re
from dataclasses import dataclass
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import torch

from trieye.persistence.encoding import decode, encode
from trieye.persistence.environments import EnvState


class Phase(enum.Enum):
    DAY = 1
    NIGHT = 2


class Point(NamedTuple):
    x: int
    owner: "Enemy"


@dataclass
class Enemy:
    strength: int
    history: list


class Slotted:
    __slots__ = ("__hits", "scores")

    def __init__(self):
        self.__hits, self.scores = 0, collections.Counter()

    def hit(self, name):
        self.__hits += 1
        self.scores[name] += 1
        return self.__hits


class Game(gym.Env):
    """All that an honest environment may be made of; what lies in two places is the same thing in both."""

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float64)

    def __init__(self):
        self.board = np.zeros((3, 4))
        self.row, self.column, self.flipped = self.board[1], self.board[:, 2], self.board[::-1, 1]
        self.weights = np.asfortranarray(np.arange(6.0).reshape(2, 3))
        self.bits = np.arange(4, dtype=np.complex64).reshape(2, 2)[:, 1]
        self.constant = np.arange(3)
        self.constant.flags.writeable = False
        calls = 0

        def count():
            nonlocal calls
            calls += 1
            return calls

        self.count, self.add, self.log = count, functools.partial(np.add, 1.0), self.note

    def note(self, value):
        self.recent.append(value)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.board[:] = 0
        self.boss = Enemy(1, [0])
        self.enemies = [self.boss]
        self.at = Point(0, self.boss)
        self.phase = Phase.DAY
        self.seen = collections.defaultdict(list)
        self.recent = collections.deque(maxlen=3)
        self.order = collections.OrderedDict(a=1, b=2)
        self.legacy = np.random.RandomState(int(self.np_random.integers(1000)))
        self.twin_generator = self.np_random
        self.cells, self.done = {1, 2, (3, 4)}, frozenset({5})
        self.ring = [self.enemies]
        self.ring.append(self.ring)
        self.raw = bytearray(b"ab")
        self.slotted = Slotted()
        return self.observed(), {}

    def observed(self):
        return np.array([self.board.sum(), self.row.sum(), self.column.sum(), self.flipped.sum()])

    def step(self, action):
        draw = self.twin_generator.random()
        self.row += draw
        self.column *= 1.1
        self.bits += 1j
        if draw < 0.3:
            self.enemies.append(Enemy(int(draw * 100), self.boss.history))
        self.boss.history.append(int(self.legacy.randint(9)))
        self.phase = Phase.NIGHT if draw > 0.5 else Phase.DAY
        self.seen[len(self.enemies)].append(draw)
        self.log(self.enemies[-1])
        self.order.move_to_end("a" if draw > 0.5 else "b")
        self.at = Point(self.at.x + 1, self.enemies[-1])
        self.raw[0] = int(draw * 100)
        self.cells.add(int(draw * 10))
        reward = self.weights.sum() + len(self.at.owner.history) + self.count() + self.slotted.hit(self.phase.name)
        reward += self.add(sum(enemy.strength for enemy in self.ring[1][0])) + next(iter(self.order.values()))
        return self.observed(), float(reward + self.raw[0] + sum(map(len, self.seen.values()))), False, False, {}


def taken_over(env, make=Game):
    state = EnvState(env)
    assert state.reason is None
    encoded = encode(state.state_dict())
    assert not encoded.objects
    twin = make()
    EnvState(twin).load_state_dict(decode(encoded))
    return twin


@pytest.fixture
def game():
    env = Game()
    env.reset(seed=2)
    for _ in range(20):
        env.step(0)
    return env


def test_an_environment_of_objects_goes_on_bit_for_bit(game):
    twin = taken_over(game)
    for _ in range(30):
        (obs, reward, *_), (twin_obs, twin_reward, *_) = game.step(0), twin.step(0)
        assert obs.tobytes() == twin_obs.tobytes()
        assert reward == twin_reward


def test_what_was_one_thing_in_two_places_is_so_again(game):
    twin = taken_over(game)
    assert twin.boss is twin.enemies[0]
    assert twin.boss.history is twin.enemies[-1].history
    assert twin.recent[-1] is twin.at.owner is twin.enemies[-1]
    assert twin.twin_generator is twin.np_random
    assert twin.ring[1] is twin.ring
    assert twin.ring[0] is twin.enemies
    for view in (twin.row, twin.column, twin.flipped):
        assert np.shares_memory(view, twin.board)
    twin.board[1, 1] = 100
    assert (twin.row[1], twin.flipped[1]) == (100, 100)
    assert twin.enemies[0] is not game.enemies[0]


def test_what_was_two_things_is_so_again_where_the_new_environment_has_one(game):
    class Aliased(Game):
        def reset(self, **options):
            found = super().reset(**options)
            self.enemies.append(self.boss)
            return found

    env = Aliased()
    env.reset(seed=1)
    env.enemies[1] = Enemy(7, [])
    twin = taken_over(env, Aliased)
    assert [enemy.strength for enemy in twin.enemies] == [1, 7]
    assert twin.boss is twin.enemies[0]


def test_arrays_keep_their_layout_and_their_dtype(game):
    game.dates = np.array(["2020-01-01"], "datetime64[D]")
    game.record = np.zeros(2, [("a", "<i4"), ("b", "?")])
    game.second = game.record[1:]
    game.number = np.float32(3)
    twin = taken_over(game)
    assert twin.weights.flags.f_contiguous
    assert not twin.constant.flags.writeable
    assert (twin.dates.dtype, twin.record.dtype, twin.bits.dtype) == (game.dates.dtype, game.record.dtype, "c8")
    assert np.shares_memory(twin.second, twin.record)
    assert twin.bits.tobytes() == game.bits.tobytes()
    assert type(twin.number) is np.float32


def test_attributes_that_were_not_there_are_gone(game):
    del game.order

    twin = taken_over(game)
    assert not hasattr(twin, "order")


class OfTensors(gym.Env):
    """An environment of torch tensors, with a network of its own."""

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.device = torch.device("cpu")
        self.position = torch.from_numpy(self.np_random.random(3)).float().clone()
        self.generator = torch.Generator().manual_seed(seed or 0)
        self.opponent = torch.nn.Linear(3, 3).requires_grad_(requires_grad=False)
        return self.position.numpy().copy(), {}

    def step(self, action):
        self.position += torch.rand(3, generator=self.generator) * action
        self.position = self.opponent(self.position)
        return self.position.numpy().copy(), float(self.position.sum()), False, False, {}


def test_an_environment_of_tensors_goes_on_bit_for_bit():
    env = OfTensors()
    env.reset(seed=2)
    env.step(1)
    twin = taken_over(env, OfTensors)
    assert [env.step(1)[1] for _ in range(20)] == [twin.step(1)[1] for _ in range(20)]


def test_tensors_that_share_memory_are_out_of_reach():
    env = OfTensors()
    env.reset(seed=2)
    env.part = env.position[:2]
    assert re.match(r"OfTensors\.\w+ is a torch.Tensor .*memory of another", EnvState(env).reason)


class WithMethods(gym.Env):
    """An environment with a C object that it can describe."""

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Box(0, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.engine = iter(range(1000))
        return self.np_random.random(1), {}

    def step(self, action):
        return self.np_random.random(1), float(next(self.engine)), False, False, {}

    def get(self):
        return {"left": len(list(self.engine.__reduce__()[1][0])) - self.engine.__reduce__()[2]}

    def take(self, state):
        self.engine = iter(range(1000 - state["left"], 1000))


@pytest.mark.parametrize(
    "names", [("state_dict", "load_state_dict"), ("get_state", "set_state"), ("clone_state", "restore_state")]
)
def test_an_environment_is_asked_for_its_state_if_it_has_methods_for_it(names):
    methods = dict(zip(names, (WithMethods.get, WithMethods.take), strict=True))
    described = type("Described", (WithMethods,), methods)
    env, twin = (gym.wrappers.TimeLimit(described(), 50) for _ in range(2))
    env.reset(seed=1)
    for _ in range(7):
        env.step(0)
    state = EnvState(env)
    assert state.is_exact
    EnvState(twin).load_state_dict(decode(encode(state.state_dict())))
    assert [env.step(0)[1:4] for _ in range(50)] == [twin.step(0)[1:4] for _ in range(50)]
    assert np.array_equal(env.reset()[0], twin.reset()[0])


def test_a_state_that_is_no_plain_data_or_needs_arguments_is_not_asked_for():
    class Opaque(WithMethods):
        def get_state(self):
            return object()

        def set_state(self, state):
            """Never called."""

        def clone_state(self, depth):
            raise AssertionError(depth)

        def restore_state(self, state):
            """Never called."""

    env = Opaque()
    env.reset(seed=1)
    assert EnvState(env).reason == "Opaque.engine is a builtins.range_iterator"
