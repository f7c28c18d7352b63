"""Each test is a program of its own: without variables of the user, and the runs that it leaves open end with it."""

import os
from pathlib import Path

import pytest

from trieye.history.history import read_history
from trieye.integrations import opening, wandb
from trieye.stats.operations import Medium


def end_program():
    """Close the runs like a program exit, so that the next lines act as its next start."""
    wandb.finish()
    for adopted in list(opening.AdoptedRun._open.values()):
        adopted.close()


def points(name="one", project="p"):
    """Return the metric, step and value of each point of a run of wandb below the working directory."""
    table = read_history(Path(".trieye_data") / project / "runs" / name)
    rows = zip(*(table[column].to_pylist() for column in ("metric", "step", "value")), strict=True)
    return [row for row in rows if not row[0].startswith("trieye/")]


def media():
    """Return the media of the open run of wandb."""
    wandb.run.run.flush()
    items, _ = wandb.run.run._attempt.hub._logic.files.history.read(0, 1000)
    return [item for item in items if isinstance(item, Medium)]


@pytest.fixture
def mlflow():
    """Requested by tests that read the store of MLflow: only their runs are logged to it."""


@pytest.fixture(autouse=True)
def _mlflow_on_request(request, monkeypatch):
    """Open runs as without MLflow, which would take most of the CPU time, unless a test requests it."""
    if "mlflow" not in request.fixturenames:
        monkeypatch.setattr(opening, "is_installed", lambda library: library != "mlflow")


@pytest.fixture(autouse=True)
def _own_program(monkeypatch):
    for name in [name for name in os.environ if name.startswith("WANDB_") or name in {"TRIEYE_ROOT", opening.APP}]:
        monkeypatch.delenv(name)
    yield
    end_program()
