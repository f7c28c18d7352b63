"""The files box.pkl, lean.pkl and dict.pkl were written by stable-baselines3 2.9.2, with two environments.

Step t of environment e observes 10 t + e; environment 0 is done when t % 4 == 3 (with a timeout when t % 8 == 7),
environment 1 when t % 5 == 4.
"""

import pickle
import sys
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import minari
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import SAC

from trieye.exceptions import ConfigurationError, SerializationError, UntrustedPickleError
from trieye.replay import ReplayBuffer
from trieye.replay.exchange import import_minari, import_sb3

HERE = Path(__file__).parent


def content(buffer):
    ((rows, _),) = buffer.iter_rows()
    return rows


def test_rows_are_imported_in_time_order_with_their_episode_ends():
    buffer = ReplayBuffer(100, n_step=2)
    assert import_sb3(buffer, HERE / "box.pkl", allow_pickle=True) == 12
    rows = content(buffer)
    assert rows["obs"][:, 0].tolist() == [30, 31, 40, 41, 50, 51, 60, 61, 70, 71, 80, 81]
    assert np.array_equal(rows["next_obs"], rows["obs"] + 10)
    assert np.allclose(rows["reward"], rows["obs"][:, 0] / 100)
    assert rows["action"].tolist() == [[int(t) % 2] for t in rows["obs"][:, 0] // 10]
    assert rows["obs"][rows["terminated"], 0].tolist() == [30, 41]
    assert rows["obs"][rows["truncated"], 0].tolist() == [70]


def test_episodes_of_different_environments_stay_separate():
    buffer = ReplayBuffer(100, n_step=3, gamma=1.0, seed=1)
    import_sb3(buffer, HERE / "box.pkl", allow_pickle=True)
    batch = buffer.sample(200)
    first = np.unique(batch["next_obs"][batch["obs"][:, 0] == 40][:, 0])
    assert first.tolist() == [70]  # 40, 50, 60 of environment 0


def test_a_memory_optimized_buffer_is_imported():
    buffer = ReplayBuffer(100)
    assert import_sb3(buffer, HERE / "lean.pkl", allow_pickle=True) == 10
    rows = content(buffer)
    assert rows["obs"][:, 0].tolist() == [40, 41, 50, 51, 60, 61, 70, 71, 80, 81]
    assert np.array_equal(rows["next_obs"], rows["obs"] + 10)


def test_dictionary_observations_keep_their_keys():
    buffer = ReplayBuffer(100)
    assert import_sb3(buffer, HERE / "dict.pkl", allow_pickle=True) == 8
    rows = content(buffer)
    assert np.array_equal(rows["next_desired_goal"], rows["desired_goal"] + 20)
    assert np.array_equal(rows["desired_goal"][:, 0], rows["observation"][:, 0] * 2)


class Pushes(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Box(np.float32([[-2], [0]]), np.float32([[2], [8]]))

    def __init__(self):
        self.received = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.received.append(action.reshape(-1))
        return np.zeros(1, np.float32), 0.0, False, False, {}


def test_continuous_actions_are_those_that_the_environment_received(tmp_path):
    env = Pushes()
    model = SAC("MlpPolicy", env, learning_starts=10, buffer_size=50, seed=0, device="cpu").learn(15)
    model.save_replay_buffer(tmp_path / "sac.pkl")
    buffer = ReplayBuffer(100)
    import_sb3(buffer, tmp_path / "sac.pkl", allow_pickle=True)
    np.testing.assert_allclose(content(buffer)["action"], env.received, rtol=1e-5, atol=1e-6)


def test_a_pickle_is_read_only_with_allow_pickle():
    with pytest.raises(UntrustedPickleError, match=r"box.pkl is a pickle.*allow_pickle=True"):
        import_sb3(ReplayBuffer(5), HERE / "box.pkl")


class Planted:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_malicious_pickle_runs_no_code(tmp_path):
    (tmp_path / "planted.pkl").write_bytes(pickle.dumps(Planted(tmp_path / "was_here")))
    (tmp_path / "text.pkl").write_text("hello")
    for name in ("planted.pkl", "text.pkl"):
        with pytest.raises(SerializationError, match=f"{name} contains no replay buffer of stable-baselines3"):
            import_sb3(ReplayBuffer(5), tmp_path / name, allow_pickle=True)
    assert not (tmp_path / "was_here").exists()
    with pytest.raises(FileNotFoundError):
        import_sb3(ReplayBuffer(5), tmp_path / "none.pkl", allow_pickle=True)


@pytest.mark.filterwarnings("ignore")  # of minari
def test_a_minari_dataset_is_imported_episode_by_episode(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    rng, episodes = np.random.default_rng(0), []
    for number, steps in enumerate((3, 7, 1)):
        ends = {"terminations": [False] * (steps - 1) + [True], "truncations": [False] * steps}
        observations, actions = rng.normal(size=(steps + 1, 4)).astype(np.float32), rng.integers(0, 2, steps)
        episode_buffer = minari.data_collector.EpisodeBuffer(
            id=number, observations=observations, actions=actions, rewards=rng.normal(size=steps), infos={}, **ends
        )
        episodes.append(episode_buffer)
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


def test_nested_observations_become_named_columns():
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


@pytest.mark.parametrize(
    ("name", "reason"), [("door", "TypeError"), ("t/cp", "Malformed"), ("", "Malformed"), ("my door-v0", "Malformed")]
)
def test_a_minari_dataset_that_cannot_be_loaded_is_named_with_the_reason(tmp_path, monkeypatch, name, reason):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=f"dataset '{name}' cannot be loaded .*{reason}.*an id such as D4RL"):
        import_minari(ReplayBuffer(5), name, download=True)


def test_a_missing_minari_is_reported_with_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(ConfigurationError, match=r"'D4RL/door/human-v2' needs minari, .*'trieye\[minari\]'"):
        import_minari(ReplayBuffer(5), "D4RL/door/human-v2")
