"""sample.table_every_steps logs rows of the newest batch as a table of the run."""

from contextlib import closing

import numpy as np
import pytest
import torch

import trieye
from tests.training.algorithms import DQN, PPO
from trieye.history.history import History
from trieye.journal.journal import Journal
from trieye.stats.operations import LogTable
from trieye.training.batches import Minibatch
from trieye.training.sample_table import table_of

DQN_AGENT = {"kind": "dqn", "rollout_steps": 4, "batch_size": 16, "learning_starts": 8}
PPO_AGENT = {"kind": "ppo", "engine": "tests.training.algorithms:PPO", "rollout_steps": 16, "batch_size": 16}


def tables(run_dir):
    with closing(Journal(run_dir / "journal.db")) as journal:
        items, _ = History(journal, run_dir / "history").read(0, 10_000)
    return {item.step: item.rows() for item in items if isinstance(item, LogTable)}


@pytest.mark.parametrize(
    ("engine", "agent", "extra_column", "explorers"), [(DQN, DQN_AGENT, "id", 0), (PPO, PPO_AGENT, "value", 1)]
)
def test_rows_of_the_newest_batch_are_logged_at_the_configured_interval(
    train_config, engine, agent, extra_column, explorers
):
    settings = {"agent": agent, "sample": {"table_every_steps": 16}, "explorer": {"num": explorers}}
    config = train_config(**settings, loop={"steps": 50})
    trieye.run_experiment(engine, config)
    logged_tables = tables(config.persistence.get_run_base_dir())
    assert [step // 16 for step in logged_tables] == [1, 2, 3]
    for names, rows in logged_tables.values():
        columns = dict(zip(names, zip(*rows, strict=True), strict=True))
        assert len(rows) == 8
        assert {"obs", "action", "reward", "terminated", "truncated", extra_column} <= columns.keys()
        assert not any(name.startswith("next_") for name in columns)
        assert set(columns["reward"]) == {1.0}
        assert set(columns["action"]) <= {0, 1}
        assert all(len(text.split()) == 4 for text in columns["obs"])


def test_images_are_summarized_and_observation_parts_named():
    data = {
        "obs/seen": torch.full((3, 1, 10, 10), 7, dtype=torch.uint8),
        "obs/at": torch.tensor([[0.5, -1.25]]).repeat(3, 1),
        "next_obs/at": torch.zeros(3, 2),
        "is_data": torch.tensor([True, False, True]),
    }
    assert table_of(Minibatch(data, np.array([4, -1, 6]), torch.ones(3))) == {
        "obs/seen": ["1x10x10, mean 7, 7 to 7"] * 3,
        "obs/at": ["0.5 -1.25"] * 3,
        "is_data": [True, False, True],
        "id": [4, -1, 6],
        "weight": [1.0, 1.0, 1.0],
    }
    assert list(table_of(Minibatch({"obs": {"at": data["obs/at"]}}))) == ["obs/at"]
