import numpy as np

from trieye.replay import ReplayBuffer, SampledIds


def returns_of(rewards, terminated, n, gamma):
    """Return the n-step returns of each row of an environment."""
    buffer = ReplayBuffer(100, n_step=n, gamma=gamma)
    buffer.extend({"reward": rewards, "terminated": terminated, "next_row": np.arange(len(rewards))})
    return buffer.rows(SampledIds(np.arange(len(rewards)), np.ones(len(rewards), np.float32)))


def test_n_step_returns_end_with_their_episode_or_the_newest_row():
    returns = returns_of(np.arange(1.0, 7.0), [False] * 4 + [True, False], 4, 0.5)
    assert returns["next_row"].tolist() == [3, 4, 4, 4, 4, 5]
    assert returns["n"].tolist() == [4, 4, 3, 2, 1, 1]
    assert returns["reward"][[0, 1, 4]].tolist() == [1 + 2 / 2 + 3 / 4 + 4 / 8, 2 + 3 / 2 + 4 / 4 + 5 / 8, 5]
    assert returns["discount"].tolist() == [0.5**4, 0, 0, 0, 0, 0.5]


def test_rewards_keep_their_dtype_and_shape():
    for rewards, dtype in [
        (np.array([1, 2, 3]), np.float32),
        (np.array([1.0, 2.0, 3.0]), np.float64),
        (np.array([[1, 9], [2, 9], [3, 9]], np.float16), np.float16),
    ]:
        returns = returns_of(rewards, [False] * 3, 2, 0.5)
        assert returns["reward"].dtype == dtype
        assert returns["reward"].shape == rewards.shape
        assert np.array_equal(returns["reward"][0], rewards[0] + 0.5 * rewards[1])
    assert returns["discount"].dtype == np.float32


def test_an_infinite_reward_stays_in_its_own_episode():
    returns = returns_of(np.array([1.0, np.inf]), [True, False], 3, 0.9)
    assert returns["reward"].tolist() == [1.0, np.inf]
