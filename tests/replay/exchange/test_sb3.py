"""The files box.pkl, lean.pkl and dict.pkl were written by stable-baselines3 2.9.2, with two environments.

Step t of environment e observes 10 t + e; environment 0 is done when t % 4 == 3 (with a timeout when t % 8 == 7),
environment 1 when t % 5 == 4.
"""

import pickle
from pathlib import Path

import numpy as np
import pytest

from trieye.exceptions import SerializationError, UntrustedPickleError
from trieye.replay import ReplayBuffer
from trieye.replay.exchange import import_sb3

HERE = Path(__file__).parent


def content(buffer):
    (rows, _), *rest = buffer.iter_rows()
    assert rest == []
    return rows


def test_the_rows_come_in_the_order_of_time_with_their_ends():
    buffer = ReplayBuffer(100, n_step=2)
    assert import_sb3(buffer, HERE / "box.pkl", allow_pickle=True) == 12
    rows = content(buffer)
    assert rows["obs"][:, 0].tolist() == [30, 31, 40, 41, 50, 51, 60, 61, 70, 71, 80, 81]
    assert np.array_equal(rows["next_obs"], rows["obs"] + 10)
    assert np.allclose(rows["reward"], rows["obs"][:, 0] / 100)
    assert rows["action"].tolist() == [[int(t) % 2] for t in rows["obs"][:, 0] // 10]
    assert rows["obs"][rows["terminated"], 0].tolist() == [30, 41]
    assert rows["obs"][rows["truncated"], 0].tolist() == [70]


def test_environments_are_kept_apart():
    buffer = ReplayBuffer(100, n_step=3, gamma=1.0, seed=1)
    import_sb3(buffer, HERE / "box.pkl", allow_pickle=True)
    batch = buffer.sample(200)
    first = np.unique(batch["next_obs"][batch["obs"][:, 0] == 40][:, 0])
    assert first.tolist() == [70]  # 40, 50, 60 of environment 0


def test_a_buffer_that_keeps_observations_once_is_read_too():
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


def test_a_pickle_is_read_only_when_that_is_allowed():
    with pytest.raises(UntrustedPickleError, match=r"box.pkl is a pickle.*allow_pickle=True"):
        import_sb3(ReplayBuffer(5), HERE / "box.pkl")


class Planted:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_planted_pickle_runs_nothing(tmp_path):
    (tmp_path / "planted.pkl").write_bytes(pickle.dumps(Planted(tmp_path / "was_here")))
    (tmp_path / "text.pkl").write_text("hello")
    for name in ("planted.pkl", "text.pkl"):
        with pytest.raises(SerializationError, match=f"{name} holds no replay buffer of stable-baselines3"):
            import_sb3(ReplayBuffer(5), tmp_path / name, allow_pickle=True)
    assert not (tmp_path / "was_here").exists()


def test_a_missing_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        import_sb3(ReplayBuffer(5), tmp_path / "none.pkl", allow_pickle=True)
