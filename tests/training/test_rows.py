"""Minibatches, advantages, schedules and spaces, compared with slow references."""

import gymnasium as gym
import numpy as np
import pytest
import torch

import trieye
from tests.training.worlds import Remembers, collector_of, generator
from trieye.exceptions import ConfigurationError, SerializationError
from trieye.snapshot.decode import decode
from trieye.snapshot.encode import encode
from trieye.training.rows import Rows
from trieye.training.spaces import as_data, from_data


@pytest.fixture
def make_rows():
    def make(steps=13, num=3, seed=0, *, keys=("obs",)):
        rng = np.random.default_rng(seed)
        ends = rng.choice(3, (steps, num), p=(0.6, 0.2, 0.2))
        valid = np.ones((steps, num), bool)
        for t in range(1, steps):
            valid[t] = (ends[t - 1] == 0) | ~valid[t - 1]
            ends[t][~valid[t]] = 0
        numbers = np.arange(steps * num, dtype=np.float32).reshape(steps, num)
        arrays = {key: numbers[..., None].repeat(2, 2) for key in keys} | {"action": numbers.astype(np.int64)}
        arrays |= {"reward": rng.normal(size=(steps, num)).astype(np.float32) * valid}
        arrays |= {"terminated": ends == 1, "truncated": ends == 2}
        extras = {"value": torch.from_numpy(rng.normal(size=(steps, num)).astype(np.float32))}
        return Rows(arrays, {key: np.zeros((num, 2), np.float32) for key in keys}, valid, extras)

    return make


@pytest.mark.parametrize(("size", "num_batches"), [(7, 6), (10, 4), (2, 20), (39, 1), (1000, 1), (1, None)])
def test_each_valid_row_occurs_once_per_epoch_in_a_fixed_number_of_batches(make_rows, size, num_batches):
    rows = make_rows(keys=("obs/a", "obs/b"))
    numbers, total = np.arange(39).reshape(13, 3), len(rows)
    assert 20 < total < 39
    per_epoch = num_batches or total  # no batch is empty
    column = torch.from_numpy(numbers * 10)
    batches = list(rows.minibatches(size, epochs=4, generator=generator(), tenfold=column))
    assert len(batches) == 4 * per_epoch
    assert {len(batch["action"]) for batch in batches} <= {total // per_epoch, -(-total // per_epoch)}
    epochs = [
        torch.cat([batch["action"] for batch in batches[first : first + per_epoch]]).tolist()
        for first in range(0, len(batches), per_epoch)
    ]
    assert all(sorted(epoch) == numbers[rows.valid].tolist() for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    for batch in batches:
        assert torch.equal(batch["tenfold"], batch["action"] * 10)
        assert torch.equal(batch["obs"]["a"][:, 1].long(), batch["action"])
        assert torch.equal(batch["obs"]["b"], batch["obs"]["a"])
        assert batch["value"].shape == batch["reward"].shape == batch["terminated"].shape
    again = rows.minibatches(size, epochs=4, generator=generator())
    assert all(torch.equal(one["action"], other["action"]) for one, other in zip(batches, again, strict=True))


def test_rows_of_resets_alone_make_no_minibatch(make_rows):
    rows = make_rows(steps=1)
    rows.valid[:] = False
    assert list(rows.minibatches(4, epochs=3)) == []


def test_an_invalid_minibatch_size_or_column_shape_is_rejected(make_rows):
    rows = make_rows()
    with pytest.raises(ConfigurationError, match=r"minibatches\(0\)"):
        next(rows.minibatches(0))
    with pytest.raises(ConfigurationError, match=r"advantages has shape \[13\]; the rows have \[13, 3\]"):
        next(rows.minibatches(4, advantages=torch.zeros(13)))


@pytest.mark.parametrize(("gamma", "lam"), [(0.99, 0.95), (0.9, 1.0), (0.5, 0.0), (1.0, 1.0)])
@pytest.mark.parametrize("seed", range(5))
def test_advantages_sum_discounted_errors_up_to_the_end_of_the_episode(make_rows, gamma, lam, seed):
    rows = make_rows(seed=seed)
    last = torch.arange(3.0)
    estimates = trieye.gae(rows, last, gamma=gamma, lam=lam)
    values = np.concatenate((rows.extras["value"].numpy(), last.numpy()[None])).astype(np.float64)
    reward, terminated, truncated = (rows.arrays[name] for name in ("reward", "terminated", "truncated"))
    expected = np.zeros((13, 3))
    for t, n in np.argwhere(rows.valid):
        for k in range(13 - t):
            after = 0.0 if terminated[t + k, n] else values[t + k + 1, n]
            expected[t, n] += (gamma * lam) ** k * (reward[t + k, n] + gamma * after - values[t + k, n])
            if terminated[t + k, n] or truncated[t + k, n]:
                break
    assert estimates.advantages.numpy() == pytest.approx(expected, abs=1e-5)
    assert estimates.returns.numpy() == pytest.approx(expected + values[:-1], abs=1e-5)
    assert estimates.advantages.dtype == torch.float32
    assert (~rows.valid).any()
    assert (estimates.advantages.numpy()[~rows.valid] == 0).all()


@pytest.mark.parametrize(("shape", "halfway"), [("linear", 0.505), ("exponential", 0.1), ("cosine", 0.505)])
def test_a_schedule_runs_from_start_to_end_and_then_stays_constant(shape, halfway):
    schedule = trieye.Schedule(start=1.0, end=0.01, steps=1000, shape=shape)
    assert schedule(0) == 1.0
    assert schedule(500) == pytest.approx(halfway)
    assert schedule(1000) == schedule(10**9) == pytest.approx(0.01)
    values = [schedule(step) for step in range(0, 1001, 50)]
    assert values == sorted(values, reverse=True)
    early = {"linear": 0.901, "exponential": 0.631, "cosine": 0.9758}[shape]
    assert schedule(100) == pytest.approx(early, abs=1e-4)


def test_a_schedule_without_an_end_is_constant():
    assert trieye.Schedule(start=3.0)(12345) == 3.0


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Box(-1, 1, (2, 3), np.float32),
        gym.spaces.Box(np.array([0, -np.inf], np.float32), np.array([np.inf, 1], np.float32)),
        gym.spaces.Box(-1, 1, (), np.float64),
        gym.spaces.Box(0, 255, (4, 8, 8), np.uint8),
        gym.spaces.Discrete(5, start=2),
        gym.spaces.MultiDiscrete([3, 4], start=[1, 2]),
        gym.spaces.MultiDiscrete(np.array([[3, 4], [2, 2]]), dtype=np.int32),
        gym.spaces.MultiBinary(4),
        gym.spaces.MultiBinary([2, 3]),
        gym.spaces.Dict({"mask": gym.spaces.MultiBinary(3), "inner": gym.spaces.Dict({"n": gym.spaces.Discrete(2)})}),
    ],
    ids=repr,
)
def test_spaces_are_restored_from_their_data(space):
    spaces = from_data(decode(encode(as_data(trieye.Spaces(space, space)))))
    assert spaces.observation == spaces.action == space
    assert spaces.observation.dtype == space.dtype
    assert repr(spaces.observation) == repr(space)


def test_dict_spaces_preserve_the_order_of_their_keys():
    space = gym.spaces.Dict([("b", gym.spaces.Discrete(2)), ("a", gym.spaces.Discrete(3))])
    spaces = from_data(decode(encode(as_data(trieye.Spaces(space, space)))))
    assert list(spaces.observation.spaces) == ["b", "a"]


@pytest.mark.parametrize("data", [{"observation": {}}, {"observation": {"kind": "sphere"}, "action": {}}, {"x": {}}])
def test_data_that_describe_no_spaces_are_rejected(data):
    with pytest.raises(SerializationError, match=r"do not describe the spaces|unknown kind of space"):
        from_data(data)


def test_rows_of_several_explorers_are_concatenated_by_environment():
    collectors = [collector_of(Remembers, num=2, seed=seed) for seed in (0, 7)]
    for collector in collectors:
        collector.collect(3)
    rows = [collector.collect(4) for collector in collectors]
    both = Rows.of_payloads([single.as_payload() for single in rows], torch.device("cpu"))
    assert both.keys() == rows[0].keys()
    for columns, single in ((slice(0, 2), rows[0]), (slice(2, 4), rows[1])):
        assert all(torch.equal(both[name][:, columns], single[name]) for name in list(single.keys()))
        assert np.array_equal(both.valid[:, columns], single.valid)
        assert torch.equal(both.after[columns], single.after)
        assert torch.equal(both.state["age"][columns], single.state["age"])
        assert torch.equal(both.last_state["age"][columns], single.last_state["age"])


def test_sequences_are_rollouts_of_each_environment_with_their_initial_state():
    collector = collector_of(Remembers, num=3)
    collector.collect(3)
    rows = collector.collect(6)
    rows.extras["env"] = torch.arange(3).expand(6, 3)
    (batch,) = rows.sequences().minibatches(3)
    envs = batch["env"][:, 0]
    for name in ("obs", "action", "reward", "terminated", "age"):
        assert torch.equal(batch[name], rows[name].transpose(0, 1)[envs])
    assert torch.equal(batch["valid"], torch.from_numpy(rows.valid.T)[envs])
    assert torch.equal(batch["state/age"], rows.state["age"][envs])
    assert not rows.valid.all()
