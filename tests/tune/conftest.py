"""Configs of walks and of a DQN below a temporary root."""

import pytest

from tests.tune.walks import WalksConfig


@pytest.fixture
def walks_config(tmp_path):
    def make(run_name="trial_0", pace=1.0, *, sinks=None, tune=None, **settings):
        return WalksConfig(
            app_name="app",
            run_name=run_name,
            runtime={"kind": "local"},
            sinks=sinks or {},
            persistence={"root_data_dir": str(tmp_path / "root"), "checkpoint_save_freq_steps": 0},
            walk={"pace": pace},
            tune=tune or {},
            loop={"steps": 20, "evaluate_every_steps": 5, **settings},
        )

    return make


@pytest.fixture
def dqn_config(tmp_path):
    from tests.training.algorithms import TrainConfig  # imports torch

    return TrainConfig(
        run_name="dqn",
        agent={"kind": "dqn", "rollout_steps": 4, "batch_size": 8, "learning_starts": 8},
        env={"id": "CartPole-v1", "eval_episodes": 1},
        persistence={"root_data_dir": str(tmp_path / "root")},
        runtime={"kind": "local"},
        sinks={},
        loop={"axis": "env_steps", "steps": 2000, "evaluate_every_steps": 40},
    )
