import pytest
from omegaconf import OmegaConf

from trieye.config.launcher import LauncherConfig
from trieye.sweeps.backends import backend_of


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
    assert backend_of(LauncherConfig(**options), OmegaConf.create(config)) == backend
