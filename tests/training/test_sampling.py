"""Sampling from the replay and from external data."""

import shutil

import gymnasium as gym
import numpy as np
import pytest
import torch

import trieye
from tests.training.algorithms import DQN, interrupted, resumed
from trieye.exceptions import ConfigurationError
from trieye.experiment.loop import run_alone
from trieye.replay import ReplayBuffer
from trieye.replay.exchange import export_npz
from trieye.training.sampling import data_of, make_sampling
from trieye.training.spaces import Spaces

CPU = torch.device("cpu")
SPACES = Spaces(gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2))
OFFLINE, MIXED = {"mode": "train", "loop": {"axis": "updates"}}, {"sample": {"kind": "mix"}}
DICT = gym.spaces.Dict({"at": gym.spaces.Box(-1, 1, (2,)), "seen": gym.spaces.Box(0, 255, (8, 8), np.uint8)})


@pytest.fixture
def data(tmp_path):
    """A file of 40 rows whose rewards are 7."""
    buffer = ReplayBuffer(100)
    for number in range(40):
        obs = np.full(4, number, np.float32)
        ends = {"terminated": number % 10 == 9, "truncated": False}
        buffer.add(obs=obs, action=np.int64(number % 2), reward=np.float32(7.0), next_obs=obs + 1, **ends)
    export_npz(buffer, tmp_path / "rows.npz")
    return str(tmp_path / "rows.npz")


@pytest.fixture
def config(train_config):
    def make(**overrides):
        small = {"agent": {"batch_size": 16, "learning_starts": 10}, "loop": {"steps": 60}}
        return train_config(**small | overrides)

    return make


def batches_of(config, updates=0):
    engine = DQN(config)
    for _ in range(5):
        engine.replay.extend(engine.collect())
    batch = engine._sampling.minibatch(engine.replay, 16, CPU, updates=updates)
    assert engine.replay.update_priorities(batch.ids, np.ones(16)) == np.count_nonzero(batch.ids >= 0)
    engine.cleanup()
    return batch


@pytest.mark.parametrize(("ratio", "num_rows"), [(0.25, 4), (0.01, 1)])
def test_a_mixed_batch_has_the_configured_fraction_of_data_and_marks_it(config, data, ratio, num_rows):
    batch = batches_of(config(data=data, sample={"kind": "mix", "data_ratio": ratio}))
    assert np.count_nonzero(batch.ids == -1) == num_rows
    assert (batch["reward"][batch.ids == -1] == 7.0).all()
    assert (batch["reward"][batch.ids >= 0] == 1.0).all()


@pytest.mark.parametrize("options", [MIXED, OFFLINE], ids=["mix", "train"])
def test_rewards_of_data_are_clipped_like_collected_ones(config, data, options):
    env = {"id": "CartPole-v1", "clip_rewards": True}
    batch = batches_of(config(data=data, env=env, **options))
    assert (batch["reward"] == 1.0).all()


@pytest.mark.parametrize(("updates", "expected"), [(0, 16), (2, 16), (3, 0)])
def test_warmup_updates_learn_from_data_alone(config, data, updates, expected):
    batch = batches_of(config(data=data, sample={"kind": "warmup", "warmup_updates": 3}), updates)
    assert np.count_nonzero(batch.ids == -1) == expected


@pytest.mark.long
@pytest.mark.parametrize(("options", "axis"), [({"mode": "train"}, "updates"), (MIXED, "env_steps")])
def test_a_training_with_data_resumes_exactly(config, data, options, axis):
    states = []
    for name in ("whole", "parts"):
        run = config(data=data, **options, run_name=name, loop={"axis": axis, "steps": 60, "evaluate_every_steps": 20})
        if name == "parts":
            with pytest.raises(trieye.RunInterrupted):
                run_alone(interrupted(DQN, 32, axis), run)
        trieye.train(run)
        objects = trieye.load_checkpoint(run.persistence.get_run_base_dir(), "latest").objects
        assert objects["loop"][axis] >= 60
        assert axis == "env_steps" or objects["loop"]["env_steps"] == 0
        states.append(objects["experiment"]["state"]["policy"])
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def updated(engine, updates):
    """Return an engine after a number of updates."""
    while engine.updates < updates:
        engine.advance()
    return engine


def test_updates_continue_in_environments_after_offline_training(config, data):
    engine = resumed(updated(DQN(config(data=data, **OFFLINE)), 20), config())
    engine.advance()
    assert engine.updates == 20 + engine.env_steps // 4 > 20
    engine.cleanup()


def test_offline_training_normalizes_by_the_observations_of_the_data(config, data):
    env = {"id": "CartPole-v1", "normalize_observations": True}
    engine = DQN(config(mode="train", data=data, env=env, loop={"axis": "updates"}))
    seen = next(engine.replay.iter_rows())[0]["obs"]
    normalized = engine.policy.normalizer(torch.from_numpy(seen))
    assert torch.allclose(normalized.mean(0), torch.zeros(4), atol=1e-5)
    assert torch.allclose(normalized.std(0, unbiased=False), torch.ones(4))
    engine.cleanup()


@pytest.fixture
def other_data(tmp_path):
    """A file of 6 rows whose rewards are 100."""
    buffer, obs = ReplayBuffer(10), np.zeros((6, 4), np.float32)
    ends = {"terminated": np.zeros(6, bool), "truncated": np.zeros(6, bool)}
    buffer.extend({"obs": obs, "action": np.zeros(6, int), "reward": np.full(6, 100.0), "next_obs": obs, **ends})
    export_npz(buffer, tmp_path / "other.npz")
    return str(tmp_path / "other.npz")


@pytest.mark.parametrize("options", [OFFLINE, MIXED, {"sample": {"kind": "warmup"}}], ids=["train", "mix", "warmup"])
def test_a_resume_with_other_data_learns_from_the_new_data(config, data, other_data, options):
    engine = updated(DQN(config(data=data, **options)), 5)
    engine = resumed(engine, config(data=other_data, **options))
    engine.replay.extend(engine.collect())
    assert_learns_from_other_data(engine)


def assert_learns_from_other_data(engine):
    rewards = next(engine.due_batches())["reward"]
    assert (rewards == 100.0).any()
    assert not (rewards == 7.0).any()
    engine.cleanup()


@pytest.mark.parametrize("options", [OFFLINE, MIXED], ids=["train", "mix"])
def test_a_resume_uses_a_data_file_that_was_replaced_and_says_so(config, data, other_data, options, capsys):
    engine = updated(DQN(config(data=data, **options)), 5)
    engine = resumed(engine, config(data=data, **options))
    assert "has changed" not in capsys.readouterr().err
    shutil.copy(other_data, data)
    engine = resumed(engine, config(data=data, **options))
    assert f"data={data} has changed since the checkpoint" in capsys.readouterr().err
    engine.replay.extend(engine.collect())
    assert_learns_from_other_data(engine)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"mode": "train"}, r"mode=train needs recorded rows: set data="),
        ({"sample": {"kind": "mix"}}, r"sample=mix needs recorded rows"),
        ({"data": "a.npz"}, r"data=a.npz is not used; set mode=train, sample=mix or sample=warmup"),
        ({"data": "a.npz", "mode": "train"}, r"set loop.axis=updates, not env_steps"),
        (
            {"data": "a.npz", "sample": {"kind": "mix"}, "env": {"id": "CartPole-v1", "normalize_rewards": True}},
            r"env.normalize_rewards=true .* not apply to data=a.npz; set it to false",
        ),
        (
            {"data": "a.npz", "mode": "train", "agent": {"kind": "ppo"}, "loop": {"axis": "updates"}},
            r"mode=train needs an agent with a replay",
        ),
    ],
)
def test_unused_missing_and_unsupported_data_are_rejected(config, overrides, message):
    with pytest.raises(ValueError, match=message):
        config(**overrides)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rows.csv", r"data=.*rows.csv: unknown format; choose from .npz, .parquet, minari:ID, or sb3:FILE"),
        ("missing.npz", r"data=.*missing.npz cannot be read: .*No such file"),
    ],
)
def test_unreadable_data_are_named(config, tmp_path, name, message):
    with pytest.raises(ConfigurationError, match=message):
        data_of(str(tmp_path / name), SPACES, config().replay, seed=0)


def test_data_larger_than_the_buffer_are_rejected(config, data):
    small = config().replay.model_copy(update={"capacity": 30})
    with pytest.raises(ConfigurationError, match=r"has 40 rows, more than replay.capacity=30"):
        make_sampling(config(data=data, sample={"kind": "mix"}), SPACES, small)


ENDS = {"terminated": np.array([False, True]), "truncated": np.zeros(2, bool)}


def test_external_rows_get_the_keys_shapes_and_types_of_the_engine(tmp_path, config):
    buffer, seen = ReplayBuffer(10), np.zeros((2, 8, 8), np.uint8)
    at = np.array([[0.5, 1.0], [0.25, 0.0]])
    rows = {**ENDS, "at": at, "seen": seen, "next_at": at, "next_seen": seen}
    buffer.extend(rows | {"action": np.array([[1], [0]]), "reward": np.array([1.0, 2.0])})
    export_npz(buffer, tmp_path / "rows.npz")
    spaces = Spaces(DICT, gym.spaces.Discrete(2))
    batch = data_of(str(tmp_path / "rows.npz"), spaces, config().replay, seed=0).minibatch(4, CPU)
    types = {name: (item.dtype, tuple(item.shape[1:])) for name, item in batch["next_obs"].items()}
    assert types == {"at": (torch.float32, (2,)), "seen": (torch.uint8, (8, 8))}
    assert (batch["action"].dtype, batch["action"].shape) == (torch.int64, (4,))
    assert batch["reward"].dtype == torch.float32


PAIRS = {"obs": np.zeros((2, 4)), "next_obs": np.zeros((2, 4))}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"state": np.zeros(2)}, r"no column obs; columns: .*state"),
        ({"obs": np.zeros((2, 4)), "next_obs": np.zeros((2, 5))}, r"next_obs has the shape \[5\]"),
        (PAIRS | {"obs": np.zeros((2, 5))}, r"obs has the shape \[5\], and in the environment \[4\]$"),
        (
            PAIRS | {"obs": np.zeros((2, 1), int)},
            r"obs has the shape \[1\], .*; discrete observations must be one-hot vectors",
        ),
        (PAIRS | {"action": np.zeros((2, 3))}, r"an action has 3 numbers, .* the shape \[\]"),
        ({"obs": np.zeros((2, 4))}, r"no column next_obs; columns: "),
        (PAIRS | ENDS | {"discount": np.ones(2)}, r"a column discount would replace agent.gamma .*; rename the column"),
        (PAIRS, r"no column terminated, without which .*; columns: .*Rename the column, such as terminals"),
        (
            PAIRS | ENDS | {"action": np.array([0, 2])},
            r"1 of 2 actions are not in the action space, such as 2; .* 0 to 1$",
        ),
        (PAIRS | ENDS | {"action": np.array([0.0, 0.5])}, r"1 of 2 actions are not .*, such as 0\.5"),
    ],
)
def test_external_rows_of_another_environment_are_rejected(tmp_path, config, columns, message):
    buffer = ReplayBuffer(10)
    buffer.extend({"action": np.zeros(2), "reward": np.zeros(2)} | columns)
    export_npz(buffer, tmp_path / "rows.npz")
    with pytest.raises(ConfigurationError, match=rf"^data=.*rows.npz: .*{message}"):
        data_of(str(tmp_path / "rows.npz"), SPACES, config().replay, seed=0)


def test_external_columns_of_different_lengths_are_rejected_with_the_name_of_the_file(tmp_path, config):
    path = tmp_path / "rows.npz"
    np.savez(path, **PAIRS, **ENDS, action=np.zeros(2), reward=np.zeros(3))
    with pytest.raises(ConfigurationError, match=r"^data=.*rows.npz: .*same number of rows.* reward \[3\]"):
        data_of(str(path), SPACES, config().replay, seed=0)


def test_no_sampled_row_exceeds_the_staleness_bound(config):
    engine = DQN(config(replay={"max_staleness": 2}))
    for _ in range(20):
        engine.advance()
    first = engine.replay.minibatch(200, CPU).ids.min()
    assert len(engine.replay) - 3 * 4 <= first  # the last three fragments
    engine.cleanup()
