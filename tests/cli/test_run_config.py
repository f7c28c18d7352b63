import json

import pytest

from trieye.cli.run_config import config_of, only, sinks_of
from trieye.config import TrieyeConfig


@pytest.fixture
def moved(tmp_path):
    """Return a function that gives the directory of a run that was made elsewhere, under other names."""

    def make(**persistence):
        persistence = {"root_data_dir": "/before/root", **persistence}
        config = TrieyeConfig(app_name="before", run_name="before", persistence=persistence)
        run_dir = tmp_path / "root" / "agents" / "runs" / "first"
        run_dir.mkdir(parents=True)
        held = {**config.model_dump(mode="json"), "group_of_a_project": {"lr": 0.1}}
        (run_dir / "configs.json").write_text(json.dumps(held))
        return run_dir

    return make


def test_a_run_is_where_it_is_now(moved, tmp_path):
    run_dir = moved()
    config = config_of(run_dir)
    assert config.persistence.get_run_base_dir() == run_dir
    assert (config.app_name, config.run_name) == ("agents", "first")


def test_a_store_of_its_own_moves_with_the_run(moved, monkeypatch):
    run_dir = moved()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://elsewhere")
    store = run_dir.parents[1] / "mlruns" / "mlflow.db"
    assert f"sqlite:///{store}" == config_of(run_dir).persistence.MLFLOW_TRACKING_URI


def test_a_store_that_was_chosen_stays_the_one(moved):
    run_dir = moved(mlflow_tracking_uri="http://server")
    assert config_of(run_dir).persistence.MLFLOW_TRACKING_URI == "http://server"


def test_a_store_of_the_environment_that_the_run_had_stays_the_one(moved, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server")
    run_dir = moved()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://elsewhere")
    assert config_of(run_dir).persistence.MLFLOW_TRACKING_URI == "http://server"


def test_only_sinks_that_get_the_history_count(moved):
    config = config_of(moved())
    assert not config.sinks.console.enabled
    assert sinks_of(config) == ["mlflow", "tensorboard"]
    config.sinks = only(config.sinks, ["tensorboard"])
    assert sinks_of(config) == ["tensorboard"]
