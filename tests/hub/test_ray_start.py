"""Starting Ray: its token file, its environment variables, and signals of its processes."""

import stat
import subprocess
import sys

import pytest

from trieye.hub import ray_start
from trieye.hub.ray_start import keep_token_private


def test_the_token_of_ray_is_closed_to_others(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    keep_token_private()  # there may be none
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("0" * 64)
    token.chmod(0o644)
    keep_token_private()
    assert stat.S_IMODE(token.stat().st_mode) == 0o600


def test_ray_has_the_variables_and_the_logger_that_trieye_uses():
    constants = pytest.importorskip("ray._private.runtime_env.constants")
    assert constants.RAY_JOB_CONFIG_JSON_ENV_VAR == ray_start.JOB_VARIABLE
    authentication = pytest.importorskip("ray._private.authentication.authentication_token_setup")  # since Ray 2.51
    assert authentication.logger.name == ray_start.AUTHENTICATION_LOGGER


PROGRAM = """
import signal, sys, ray
from trieye.config import RuntimeConfig
from trieye.hub.ray_start import join_ray

def is_deaf():
    return signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())

join_ray(RuntimeConfig(kind="ray", num_cpus=1))
processes = [one.process for held in ray._private.worker._global_node.all_processes.values() for one in held]
mortal = [one for one in processes if one.terminate == one.kill or one.kill.__name__ == "kill_with_agents"]
print(len(processes) > 1, len(mortal) == len(processes), ray.get(ray.remote(is_deaf).remote()))
"""


@pytest.mark.slow
def test_processes_of_ray_can_be_ended_and_workers_hear_sigterm():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "True True False"
