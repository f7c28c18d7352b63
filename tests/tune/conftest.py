"""Configs of walks below a temporary root."""

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
