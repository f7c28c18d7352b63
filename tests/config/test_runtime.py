"""The runtime: where a hub lives, and what workers get."""

import pytest
from pydantic import ValidationError

from trieye.config.launcher import LauncherConfig
from trieye.config.runtime import RuntimeConfig


def test_a_part_of_a_runtime_environment_that_ray_would_pass_over_is_refused():
    for config, given in ((RuntimeConfig, {"kind": "cluster"}), (LauncherConfig, {"address": "auto"})):
        with pytest.raises(ValidationError, match=r"Ray knows no 'pipp'; did you mean 'pip'\? \(known: conda"):
            config(**given, env={"pipp": ["gymnasium"]})
        with pytest.raises(ValidationError, match="working_dir has a key of its own"):
            config(**given, env={"working_dir": "."})
        assert config(**given, env={"pip": ["gymnasium"]}).env == {"pip": ["gymnasium"]}


def test_a_plugin_of_ray_may_bring_parts_of_its_own(monkeypatch):
    monkeypatch.setenv("RAY_RUNTIME_ENV_PLUGINS", '[{"class": "mine.Plugin"}]')
    assert RuntimeConfig(kind="cluster", env={"mine": 1}).env == {"mine": 1}
