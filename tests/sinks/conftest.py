"""Fixtures: a run, also with a prepared MLflow store."""

import pytest

from trieye.sinks.mlflow.store import prepare_database
from trieye.testing import make_run_info


@pytest.fixture
def run_with_store(run):
    run.mlflow_dir.mkdir(parents=True)
    prepare_database(run.mlflow_dir / "mlflow.db")
    return run


@pytest.fixture
def run(tmp_path):
    return make_run_info(tmp_path)
