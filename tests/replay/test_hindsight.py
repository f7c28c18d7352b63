from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.replay.plain_replay import PlainLinks, assert_drawn_by, links_of
from trieye.exceptions import ConfigurationError
from trieye.replay.hindsight import HindsightRelabeler, Strategy

STREAMS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 4).map(lambda number: not number)), min_size=1, max_size=50
)


def reward_of(achieved, desired, info):
    """Return 0 where the goal is reached, as in gymnasium-robotics; also checks `info`."""
    assert len(info["action"]) == len(achieved)
    return -np.any(achieved != desired, axis=-1).astype(np.float32)


def rows(stream):
    """Rows whose achieved goal encodes their id, and their links."""
    numbers = np.arange(len(stream))
    data = {
        "action": numbers * 10,
        "reward": np.full(len(stream), -7, np.float32),
        "next_achieved_goal": np.stack([numbers, numbers], axis=1).astype(np.float32),
        "desired_goal": np.full((len(stream), 2), -5, np.float32),
    }
    return data, links_of(stream, count_steps=False)


def relabelled(stream, ids, strategy="future", k=4.0, low=0, seed=0):
    data, links = rows(stream)
    drawn = {key: array[ids] for key, array in data.items()}
    hindsight = HindsightRelabeler(reward_of, k=k, strategy=strategy)
    is_new = hindsight.relabel(
        drawn, ids, links, data["next_achieved_goal"].__getitem__, low, np.random.default_rng(seed)
    )
    return drawn, is_new


@given(STREAMS, st.sampled_from(get_args(Strategy)), st.integers(0, 20), st.integers(0, 2**32 - 1))
def test_new_goals_were_achieved_in_the_same_episode(stream, strategy, low, seed):
    ids = np.arange(min(low, len(stream) - 1), len(stream))
    drawn, is_new = relabelled(stream, ids, strategy, low=ids[0], seed=seed)
    assert is_new.sum() == round(len(ids) * 0.8)
    start = PlainLinks(stream).start
    for index, row in enumerate(ids.tolist()):
        goal, episode = int(drawn["desired_goal"][index, 0]), [other for other in start if start[other] == start[row]]
        if not is_new[index]:
            assert goal == -5
            assert drawn["reward"][index] == -7
            continue
        allowed = {
            "future": [other for other in episode if other >= row],
            "final": episode[-1:],
            "episode": [other for other in episode if other >= ids[0]],
        }
        assert goal in allowed[strategy]
        assert drawn["reward"][index] == (0 if goal == row else -1)


@pytest.mark.parametrize("strategy", ["future", "episode"])
def test_every_eligible_row_provides_the_goal_equally_often(strategy):
    stream = [(0, False), (1, False), (0, False), (0, False), (1, True), (0, False), (0, True), (0, False)]
    drawn, _ = relabelled(stream, np.full(20_000, 2), strategy, k=1e9)
    allowed = [2, 3, 5, 6] if strategy == "future" else [0, 2, 3, 5, 6]
    assert_drawn_by(np.isin(np.arange(8), allowed), np.bincount(drawn["desired_goal"][:, 0].astype(int), minlength=8))


def test_k_rows_are_relabelled_per_original_row():
    ids = np.arange(50).repeat(2)
    stream = [(0, False)] * 50
    assert [int(relabelled(stream, ids, k=k)[1].sum()) for k in (0, 1, 4)] == [0, 50, 80]
    assert not np.array_equal(relabelled(stream, ids, seed=1)[1], relabelled(stream, ids, seed=2)[1])


def test_several_goals_of_a_row_are_replaced_together():
    data, links = rows([(0, False)] * 4)
    data["next_desired_goal"] = data["desired_goal"].copy()
    hindsight = HindsightRelabeler(reward_of, k=1e9, strategy="final")
    hindsight.relabel(data, np.arange(4), links, data["next_achieved_goal"].__getitem__, 0, np.random.default_rng(0))
    assert data["desired_goal"][:, 0].tolist() == data["next_desired_goal"][:, 0].tolist() == [3, 3, 3, 3]


def test_invalid_strategies_keys_and_rewards_are_rejected():
    with pytest.raises(ConfigurationError, match=r"'futur' is unknown; did you mean 'future'\?"):
        HindsightRelabeler(reward_of, strategy="futur")
    with pytest.raises(ConfigurationError, match="HER k is -1"):
        HindsightRelabeler(reward_of, k=-1)
    data, links = rows([(0, False)] * 4)
    achieved, rng = data["next_achieved_goal"].__getitem__, np.random.default_rng(0)
    with pytest.raises(ConfigurationError, match=r"row key 'achieved_goal' is unknown; did you mean"):
        HindsightRelabeler(reward_of, achieved_key="achieved_goal").relabel(data, np.arange(4), links, achieved, 0, rng)
    with pytest.raises(ConfigurationError, match=r"key 'reward': expected shape \(3,\), got \(3, 2\)"):
        HindsightRelabeler(lambda achieved, *_: achieved).relabel(data, np.arange(4), links, achieved, 0, rng)


@pytest.mark.parametrize(
    ("key", "source"), [("reward", "reward_fn"), ("desired_goal", "goals of 'next_achieved_goal'")]
)
def test_whole_numbers_are_converted_for_integers_and_fractions_are_rejected(key, source):
    data, links = rows([(0, False)] * 4)
    data[key] = data[key].astype(np.int8)

    def relabel(offset):
        batch, goals = {name: array.copy() for name, array in data.items()}, data["next_achieved_goal"] + offset
        hindsight = HindsightRelabeler(lambda *args: reward_of(*args) + offset, k=1e9)
        hindsight.relabel(batch, np.arange(4), links, goals.__getitem__, 0, np.random.default_rng(0))
        return batch[key]

    converted = relabel(np.float32(0))
    assert converted.dtype == np.int8
    assert set(converted.ravel().tolist()) <= ({-1, 0} if key == "reward" else {0, 1, 2, 3})
    for offset in (0.5, 200.0, np.nan):
        with pytest.raises(ConfigurationError, match=f"HER {source}: replay key '{key}': expected int8, got float32"):
            relabel(np.float32(offset))
