import sys
from types import SimpleNamespace

import minari
import numpy as np
import pytest
from gymnasium import spaces

from trieye.exceptions import ConfigurationError
from trieye.replay import ReplayBuffer
from trieye.replay.exchange import import_minari


def content(buffer):
    ((rows, _),) = buffer.iter_rows()
    return rows


@pytest.mark.filterwarnings("ignore")  # of minari
def test_a_real_dataset_is_read_episode_by_episode(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    rng, episodes = np.random.default_rng(0), []
    for number, steps in enumerate((3, 7, 1)):
        ends = {"terminations": [False] * (steps - 1) + [True], "truncations": [False] * steps}
        observations, actions = rng.normal(size=(steps + 1, 4)).astype(np.float32), rng.integers(0, 2, steps)
        made = minari.data_collector.EpisodeBuffer(
            id=number, observations=observations, actions=actions, rewards=rng.normal(size=steps), infos={}, **ends
        )
        episodes.append(made)
    dataset = minari.create_dataset_from_buffers(
        "test/walk-v0",
        buffer=episodes,
        observation_space=spaces.Box(-9, 9, (4,), np.float32),
        action_space=spaces.Discrete(2),
    )
    for source in (dataset, "test/walk-v0"):
        buffer = ReplayBuffer(1000, n_step=2, dedup_next=True)
        assert import_minari(buffer, source) == 11
        rows = content(buffer)
        for key, field, part in (
            ("obs", "observations", slice(-1)),
            ("next_obs", "observations", slice(1, None)),
            ("action", "actions", slice(None)),
            ("reward", "rewards", slice(None)),
            ("terminated", "terminations", slice(None)),
        ):
            assert np.array_equal(rows[key], np.concatenate([np.asarray(getattr(e, field))[part] for e in episodes])), (
                key
            )


def episode(start, steps):
    numbers = np.arange(start, start + steps + 1, dtype=np.float32)
    goals = {"achieved_goal": numbers[:, None], "desired_goal": numbers[:, None] + 100}
    return SimpleNamespace(
        observations={"observation": (numbers, numbers * 2), **goals},
        actions=numbers[:-1, None],
        rewards=numbers[:-1],
        terminations=[False] * steps,
        truncations=[False] * (steps - 1) + [True],
    )


def test_nested_observations_get_names():
    dataset = SimpleNamespace(iterate_episodes=lambda: iter([episode(0, 4), episode(50, 3)]))
    buffer = ReplayBuffer(100)
    assert import_minari(buffer, dataset) == 7
    rows = content(buffer)
    assert set(rows) == {
        "observation.0", "observation.1", "achieved_goal", "desired_goal",
        "next_observation.0", "next_observation.1", "next_achieved_goal", "next_desired_goal",
        "action", "reward", "terminated", "truncated",
    }  # fmt: skip
    assert rows["next_achieved_goal"][:, 0].tolist() == [1, 2, 3, 4, 51, 52, 53]
    assert np.flatnonzero(rows["truncated"]).tolist() == [3, 6]


def test_without_minari_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(ConfigurationError, match=r"'D4RL/door/human-v2' needs minari; install it with pip install"):
        import_minari(ReplayBuffer(5), "D4RL/door/human-v2")
