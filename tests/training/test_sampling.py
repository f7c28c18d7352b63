"""Where the rows of a batch come from, and learning from rows that others collected."""

import numpy as np
import pytest
import torch

import trieye
from tests.training.algorithms import DQN, TrainConfig
from trieye.exceptions import ConfigurationError
from trieye.replay import ReplayBuffer
from trieye.replay.exchange import export_npz
from trieye.training.sampling import data_of, make_sampling

CPU = torch.device("cpu")


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
def config(tmp_path):
    def make(**given):
        return TrainConfig.model_validate(
            {
                "agent": {"kind": "dqn", "rollout_steps": 4, "batch_size": 16, "learning_starts": 10},
                "env": {"id": "CartPole-v1", "eval_episodes": 2},
                "runtime": {"kind": "local"},
                "sinks": {"mlflow": {"enabled": False}, "tensorboard": {"enabled": False}},
                "persistence": {"root_data_dir": str(tmp_path)},
                "loop": {"axis": "env_steps", "steps": 60},
            }
            | given
        )

    return make


def batches_of(config, updates=0):
    engine = DQN(config)
    for _ in range(5):
        engine.replay.extend(engine.collect())
    batch = engine._sampling.minibatch(engine.replay, 16, CPU, updates=updates)
    assert engine.replay.update_priorities(batch.ids, np.ones(16)) == np.count_nonzero(batch.ids >= 0)
    engine.cleanup()
    return batch


def test_a_mixed_batch_has_its_part_of_rows_from_data_and_says_which_they_are(config, data):
    batch = batches_of(config(data=data, sample={"kind": "mix", "data_ratio": 0.25}))
    assert batch["is_data"].sum() == 4
    assert (batch["reward"][batch["is_data"]] == 7.0).all()
    assert (batch["reward"][~batch["is_data"]] == 1.0).all()
    assert ((batch.ids == -1) == batch["is_data"].numpy()).all()


@pytest.mark.parametrize(("updates", "expected"), [(0, 16), (2, 16), (3, 0)])
def test_the_first_updates_are_on_data_alone(config, data, updates, expected):
    batch = batches_of(config(data=data, sample={"kind": "warmup", "warmup_updates": 3}), updates)
    assert batch["is_data"].sum() == expected


def test_a_run_that_learns_from_data_alone_makes_no_environment_step_and_goes_on_exactly(config, data):
    given = {"mode": "train", "data": data}
    runs = {}
    for name, stops in (("whole", [40]), ("parts", [16, 40])):
        for steps in stops:
            loop = {"axis": "updates", "steps": steps, "evaluate_every_steps": 20}
            run = config(**given, run_name=name, loop=loop)
            trieye.train(run)
        directory = run.persistence.get_runs_root_dir() / name
        runs[name] = trieye.load_checkpoint(directory, "latest").objects
    for held in runs.values():
        assert (held["loop"]["updates"], held["loop"]["env_steps"]) == (40, 0)
    one, other = (held["experiment"]["state"]["policy"] for held in runs.values())
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_mixed_run_goes_on_exactly(config, data):
    weights = []
    for name, stops in (("whole", [60]), ("parts", [32, 60])):
        for steps in stops:
            loop = {"axis": "env_steps", "steps": steps}
            run = config(data=data, sample={"kind": "mix"}, run_name=name, loop=loop)
            trieye.train(run)
        weights.append(trieye.load_policy(run.persistence.get_runs_root_dir() / name, "latest").state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"mode": "train"}, r"mode=train needs rows that others collected: set data="),
        ({"sample": {"kind": "mix"}}, r"sample=mix needs rows"),
        ({"data": "a.npz"}, r"data=a.npz has no use here; choose mode=train, sample=mix or sample=warmup"),
        ({"data": "a.npz", "mode": "train"}, r"set loop.axis=updates, not env_steps"),
        (
            {"data": "a.npz", "mode": "train", "agent": {"kind": "ppo"}, "loop": {"axis": "updates"}},
            r"mode=train is not for an agent that learns from what it has just collected",
        ),
    ],
)
def test_data_without_a_use_and_a_use_without_data_are_refused(config, given, told):
    with pytest.raises(ValueError, match=told):
        config(**given)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("rows.csv", r"data=.*rows.csv is of no known form; possible are .npz, .parquet, minari:ID, or sb3:FILE"),
        ("missing.npz", r"data=.*missing.npz cannot be read: .*No such file"),
    ],
)
def test_data_that_cannot_be_read_are_named(config, tmp_path, name, told):
    with pytest.raises(ConfigurationError, match=told):
        data_of(str(tmp_path / name), config().replay, seed=0)


def test_data_that_a_buffer_cannot_hold_are_refused(config, data):
    small = config().replay.model_copy(update={"capacity": 30})
    with pytest.raises(ConfigurationError, match=r"has 40 rows, and replay.capacity=30 holds fewer"):
        make_sampling(config(data=data, sample={"kind": "mix"}).sample, data, small, seed=0)
