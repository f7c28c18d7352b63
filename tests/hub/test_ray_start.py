"""Starting Ray: its token file, its environment variables, and signals of its processes."""

import os
import re
import signal
import stat
import sys
from pathlib import Path

import pytest
import ray

from trieye.hub import ray_start
from trieye.hub.ray_start import keep_token_private
from trieye.process.niceness import SERVICE_NICENESS


def test_the_ray_token_is_accessible_only_to_its_owner(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    keep_token_private()  # there may be none
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("0" * 64)
    token.chmod(0o644)
    keep_token_private()
    assert stat.S_IMODE(token.stat().st_mode) == 0o600


def test_ray_defines_the_variable_and_the_logger_that_trieye_uses():
    constants = pytest.importorskip("ray._private.runtime_env.constants")
    assert constants.RAY_JOB_CONFIG_JSON_ENV_VAR == ray_start.JOB_VARIABLE
    authentication = pytest.importorskip("ray._private.authentication.authentication_token_setup")  # since Ray 2.51
    assert authentication.logger.name == ray_start.AUTHENTICATION_LOGGER


def settings_of_worker():
    return signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ()), os.nice(0)


def test_processes_of_ray_are_killed_without_delay_and_workers_receive_sigterm(ray_cluster):
    processes = [one.process for group in ray._private.worker._global_node.all_processes.values() for one in group]
    assert len(processes) > 1
    for process in processes:
        assert process.terminate == process.kill or process.kill.__name__ == "kill_with_agents"
        (blocked,) = re.findall(r"^SigBlk:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
        assert int(blocked, 16) >> signal.SIGTERM - 1 & 1
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # no worker can import a test
    try:
        is_blocked, niceness = ray.get(ray.remote(settings_of_worker).remote())
    finally:
        ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert not is_blocked
    assert niceness == min(os.nice(0) + SERVICE_NICENESS, 19)
