"""A run whose MLflow store is quickly there, and a server of MLflow."""

import os
import socket
import subprocess
import sys

import pytest


@pytest.fixture
def run(run_with_store):
    return run_with_store


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def start_server():
    """Return a function that starts a server at a port, with `server.db` and its files in a directory."""
    started = []

    def start(port, root):
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{root / 'server.db'}"]
        command += ["--artifacts-destination", str(root / "files")]
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        started.append(subprocess.Popen(command, cwd=root, env=environment, start_new_session=True, **nowhere))
        return started[-1]

    yield start
    for server in started:
        os.killpg(server.pid, 15)  # it has workers
        server.wait(30)


@pytest.fixture
def patient(monkeypatch):
    """Set our own defaults for MLflow's client, which are undone after the test."""
    for name, value in {"MAX_RETRIES": "1", "TIMEOUT": "30"}.items():
        monkeypatch.setenv(f"MLFLOW_HTTP_REQUEST_{name}", value)
