"""A real MLflow store that is quickly there."""

import shutil

import pytest

from trieye.sinks.mlflow.store import prepare_database
from trieye.testing import make_run


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory):
    """Return the path of a database with MLflow's tables, to be copied: creating them takes a second."""
    path = tmp_path_factory.mktemp("empty") / "mlflow.db"
    prepare_database(path)
    return path


@pytest.fixture
def run_with_store(tmp_path, empty_store):
    run = make_run(tmp_path)
    run.mlflow_dir.mkdir(parents=True)
    shutil.copy(empty_store, run.mlflow_dir / "mlflow.db")
    return run


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path)
