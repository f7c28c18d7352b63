import json

import pytest

from trieye.config import TrieyeConfig
from trieye.exceptions import ConfigurationError
from trieye.runs.config import config_of, sinks_of


@pytest.fixture
def moved(tmp_path):
    """Return a function that gives the directory of a run that was made elsewhere, under other names."""

    def make(**persistence):
        persistence = {"root_data_dir": "/before/root", **persistence}
        config = TrieyeConfig(app_name="before", run_name="before", persistence=persistence)
        run_dir = tmp_path / "root" / "agents" / "runs" / "first"
        run_dir.mkdir(parents=True)
        stored = {**config.model_dump(mode="json"), "group_of_a_project": {"lr": 0.1}}
        (run_dir / "configs.json").write_text(json.dumps(stored))
        return run_dir

    return make


def test_a_moved_run_uses_its_current_directory_and_only_sinks_with_history(moved):
    run_dir = moved()
    config = config_of(run_dir)
    assert config.persistence.get_run_base_dir() == run_dir
    assert (config.app_name, config.run_name) == ("agents", "first")
    assert not config.sinks.console.enabled
    assert sinks_of(config) == ["mlflow", "tensorboard"]


def test_a_dollar_sign_in_the_current_directory_of_a_run_is_not_a_variable(moved, tmp_path, monkeypatch):
    monkeypatch.setenv("ROOT", "root")
    moved()
    run_dir = (tmp_path / "root").rename(tmp_path / "$ROOT") / "agents" / "runs" / "first"
    assert config_of(run_dir).persistence.get_run_base_dir() == run_dir


def test_a_run_outside_of_the_runs_of_an_app_may_move_to_any_free_name_there(moved, tmp_path):
    elsewhere = moved().rename(tmp_path / "first")
    with pytest.raises(ConfigurationError, match=r"move it to <root>/<app>/runs/first or any free name there"):
        config_of(elsewhere)


@pytest.mark.parametrize(
    ("recorded", "configured", "expected"),
    [
        (None, None, "sqlite:///{app}/mlruns/mlflow.db"),  # a store in the app moves with the run
        (None, "http://server", "http://server"),
        ("http://server", None, "http://server"),  # the recorded environment counts, not the current one
    ],
)
def test_a_moved_run_keeps_its_mlflow_store(moved, monkeypatch, recorded, configured, expected):
    if recorded is not None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", recorded)
    run_dir = moved(mlflow_tracking_uri=configured)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://elsewhere")
    assert expected.format(app=run_dir.parents[1]) == config_of(run_dir).persistence.MLFLOW_TRACKING_URI
