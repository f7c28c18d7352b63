"""RuntimeConfig: where the hub runs, and the working directory and environment of workers."""

import pytest
from pydantic import ValidationError

from trieye.config.launcher import LauncherConfig
from trieye.config.runtime import RuntimeConfig


def test_working_dir_inside_runtime_env_is_rejected():
    for config_class, settings in ((RuntimeConfig, {"kind": "cluster"}), (LauncherConfig, {"address": "auto"})):
        with pytest.raises(ValidationError, match="working_dir is a separate key"):
            config_class(**settings, runtime_env={"working_dir": "."})
        assert config_class(**settings, runtime_env={"pip": ["gymnasium"]}).runtime_env == {"pip": ["gymnasium"]}
