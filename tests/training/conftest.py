"""Fixtures of small trainings."""

import pytest

from tests.training.algorithms import TrainConfig


@pytest.fixture
def train_config(tmp_path):
    """Return a function that creates a config: DQN on CartPole, in this process, without external sinks.

    Overrides are merged key by key; another `agent.kind` drops the default agent.
    """

    def make(**overrides):
        parts = {
            "agent": {"kind": "dqn", "rollout_steps": 4, "batch_size": 8, "learning_starts": 8},
            "env": {"id": "CartPole-v1", "eval_episodes": 2},
            "run_name": "run",
            "runtime": {"kind": "local"},
            "sinks": {},
            "persistence": {"root_data_dir": str(tmp_path)},
            "loop": {"axis": "env_steps"},
        }
        if "kind" in overrides.get("agent", {}):
            parts["agent"] = {}
        merged = {
            key: parts[key] | value if isinstance(parts.get(key), dict) else value for key, value in overrides.items()
        }
        return TrainConfig.model_validate(parts | merged)

    return make
