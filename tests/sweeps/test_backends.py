from pathlib import Path

import pytest
from omegaconf import OmegaConf

from trieye.config.launcher import LauncherConfig
from trieye.sweeps.backends import backend_of
from trieye.sweeps.working import SweepContext


@pytest.mark.parametrize(
    ("options", "config", "backend"),
    [
        ({}, {"lr": 0.1}, "local"),
        ({}, {"runtime": {"kind": "local"}}, "local"),
        ({}, {"runtime": "any value of a foreign program"}, "local"),
        ({}, {"runtime": {"kind": "ray"}}, "ray"),
        ({}, {"runtime": {"kind": "cluster"}}, "ray"),
        ({"address": "auto"}, {"lr": 0.1}, "ray"),
        ({"resources": {"license": 1.0}}, {"lr": 0.1}, "ray"),
        ({"backend": "local"}, {"runtime": {"kind": "ray"}}, "local"),
        ({"backend": "ray"}, {"lr": 0.1}, "ray"),
    ],
)
def test_jobs_run_in_ray_by_default_only_if_they_use_it(options, config, backend):
    shared = SweepContext(None, OmegaConf.create(config), lambda _: None, {}, Path(), Path())
    assert backend_of(LauncherConfig(**options), runs_in_ray=shared.runs_in_ray) == backend
