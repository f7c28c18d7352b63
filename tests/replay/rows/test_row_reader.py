import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.replay.plain_replay import PlainLinks
from trieye.replay import ReplayBuffer, SampledIds

# (environment, how the episode continues after the row), in row order
STREAMS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["on", "on", "terminated", "truncated"])), min_size=1, max_size=40
)


class Rows:
    """Rows in plain Python, with their links."""

    def __init__(self, stream, rewards):
        self.stream, self.rewards = stream, np.asarray(rewards)
        self.follow = PlainLinks([(env, end != "on") for env, end in stream]).next
        self.terminated = np.array([end == "terminated" for _, end in stream])

    def returns(self, n, gamma):
        ids, truncated = np.arange(len(self.stream)), np.array([end == "truncated" for _, end in self.stream])
        buffer = ReplayBuffer(100, n_step=n, gamma=gamma)
        rows = {"reward": self.rewards, "terminated": self.terminated, "truncated": truncated, "next_row": ids}
        buffer.extend(rows, [env for env, _ in self.stream])
        return buffer.rows(SampledIds(ids, np.ones(len(ids), np.float32)))

    def slow(self, first, n, gamma):
        """Return last row, summed reward, discount and length of a row's window."""
        window = [first]
        while len(window) < n and self.follow[window[-1]] >= 0:
            window.append(self.follow[window[-1]])
        total = sum(gamma**power * float(self.rewards[row]) for power, row in enumerate(window))
        discount = 0.0 if self.terminated[window[-1]] else gamma ** len(window)
        return window[-1], total, discount, len(window)


@given(STREAMS, st.integers(2, 6), st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_n_step_returns_match_a_walk_through_each_episode(stream, n, gamma):
    rewards = np.random.default_rng(0).normal(size=len(stream)).astype(np.float32)
    rows = Rows(stream, rewards)
    returns = rows.returns(n, gamma)
    for first in range(len(stream)):
        last, reward, discount, length = rows.slow(first, n, gamma)
        assert returns["next_row"][first] == last
        assert returns["n"][first] == length
        assert returns["reward"][first] == pytest.approx(reward, rel=1e-5, abs=1e-6)
        assert returns["discount"][first] == pytest.approx(discount)


def test_rewards_keep_their_dtype_and_shape():
    stream = [(0, "on")] * 3
    for rewards, dtype in [
        (np.array([1, 2, 3]), np.float32),
        (np.array([1.0, 2.0, 3.0]), np.float64),
        (np.array([[1, 9], [2, 9], [3, 9]], np.float16), np.float16),
    ]:
        returns = Rows(stream, rewards).returns(2, 0.5)
        assert returns["reward"].dtype == dtype
        assert returns["reward"].shape == rewards.shape
        assert np.array_equal(returns["reward"][0], rewards[0] + 0.5 * rewards[1])
    assert returns["discount"].dtype == np.float32


def test_an_infinite_reward_stays_in_its_own_episode():
    returns = Rows([(0, "terminated"), (0, "on")], np.array([1.0, np.inf])).returns(3, 0.9)
    assert returns["reward"].tolist() == [1.0, np.inf]
