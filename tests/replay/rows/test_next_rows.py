import numpy as np
import pytest

from tests.replay.plain_replay import one_of, restored
from trieye.exceptions import ConfigurationError
from trieye.replay import ReplayBuffer

SHAPE = (500,)


def rows(first, count):
    obs = np.repeat(np.arange(first, first + count + 1)[:, None], SHAPE[0], axis=1).astype(np.float32)
    return {"obs": obs[:-1], "next_obs": obs[1:], "done": np.arange(first, first + count) % 10 == 9}


def num_stored(buffer):
    """Return the number of separately stored next observations, according to a snapshot."""
    saved = buffer.state_parts(())
    return len(saved.state["store"]["next_rows"]["ids"]) + sum(len(part["next"]) for part in saved.new.values())


def test_only_the_newest_row_and_episode_ends_store_their_next_observation():
    buffer = ReplayBuffer(100, dedup_next=True)
    buffer.extend(rows(0, 45))
    assert num_stored(buffer) == 5  # 9, 19, 29, 39 and the newest, 44
    for number in range(45, 75):
        buffer.add(**one_of(rows(number, 1)))
    assert num_stored(buffer) == 8


def test_slots_of_next_observations_are_reused():
    buffer = ReplayBuffer(100, dedup_next=True)
    for first in range(0, 1000, 7):
        buffer.extend(rows(first, 7))
    assert num_stored(buffer) <= 11
    row_bytes = SHAPE[0] * 4
    assert buffer.stats()["size_bytes"] <= (100 + 11) * row_bytes + 100 * 20


def test_a_restored_buffer_releases_next_observations_that_the_next_row_contains():
    buffer = ReplayBuffer(100, dedup_next=True)
    buffer.extend(rows(0, 45))
    other = restored(buffer, dedup_next=True)
    for one in (buffer, other):
        one.extend(rows(45, 3))
    assert num_stored(other) == num_stored(buffer) == 5


def test_next_observations_are_compared_bitwise():
    buffer, zero = ReplayBuffer(10, dedup_next=True), np.zeros(SHAPE, np.float32)
    buffer.add(obs=zero, next_obs=-zero, done=False)
    buffer.add(obs=zero, next_obs=zero, done=False)
    batch = buffer.sample(32)
    assert np.array_equal(np.signbit(batch["next_obs"][:, 0]), batch.ids == 0)
    buffer, nan = ReplayBuffer(10, dedup_next=True), np.full(SHAPE, np.nan, np.float32)
    buffer.add(obs=nan, next_obs=nan, done=False)
    buffer.add(obs=nan, next_obs=nan, done=False)
    assert num_stored(buffer) == 1


def test_a_next_observation_of_another_shape_is_rejected():
    schema = {"obs": np.float32, "next_obs": (np.float32, (2,)), "done": np.bool_}
    with pytest.raises(ConfigurationError, match=r"'next_obs' is float32\[2\] and 'obs' is float32\[\]"):
        ReplayBuffer(10, schema, dedup_next=True)


def test_a_rejected_row_discards_no_next_observation():
    buffer = ReplayBuffer(3, dedup_next=True)
    buffer.extend(rows(8, 3))  # the second one ends its episode
    before = buffer.sample(64)
    for bad in ({"done": 0.5}, {"next_obs": np.zeros(3)}):
        with pytest.raises(ConfigurationError):
            buffer.add(**one_of(rows(11, 1)) | bad)
    batch = buffer.sample(64)
    assert np.array_equal(batch["next_obs"], batch["obs"] + 1)
    assert set(batch.ids.tolist()) == set(before.ids.tolist()) == {0, 1, 2}
