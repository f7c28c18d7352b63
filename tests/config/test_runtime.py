"""RuntimeConfig: the place of the hub, and the working directory and environment of workers."""

import pytest
from pydantic import ValidationError

from trieye.config.launcher import LauncherConfig
from trieye.config.runtime import RuntimeConfig


def test_the_working_directory_of_a_runtime_environment_has_a_key_of_its_own():
    for config, given in ((RuntimeConfig, {"kind": "cluster"}), (LauncherConfig, {"address": "auto"})):
        with pytest.raises(ValidationError, match="working_dir is a separate key"):
            config(**given, runtime_env={"working_dir": "."})
        assert config(**given, runtime_env={"pip": ["gymnasium"]}).runtime_env == {"pip": ["gymnasium"]}
