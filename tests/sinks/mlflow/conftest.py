"""A port for an MLflow server, and settings of MLflow's client."""

import socket

import pytest


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def patient(monkeypatch):
    """Set our own defaults for MLflow's client, which are undone after the test."""
    for name, value in {"MAX_RETRIES": "1", "TIMEOUT": "30"}.items():
        monkeypatch.setenv(f"MLFLOW_HTTP_REQUEST_{name}", value)
