import json
from pathlib import Path

import pytest

from trieye.cli.given_run import config_of, find_run, sinks_of
from trieye.config import TrieyeConfig
from trieye.exceptions import ConfigurationError
from trieye.process.lock import RunLock, is_alive


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Two apps with a run `first` each, and one with a run `second`; the working directory is elsewhere."""
    root = tmp_path / "root"
    make_runs(root, "agents/runs/first", "agents/runs/second", "others/runs/first")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return root


def make_runs(root, *names):
    for name in names:
        (root / name).mkdir(parents=True)
        (root / name / "run.json").touch()


@pytest.mark.parametrize("given", ["second", "agents/second"])
def test_a_name_means_a_run_below_the_root(root, given):
    assert find_run(given, root) == root / "agents/runs/second"


def test_the_app_tells_runs_of_the_same_name_apart(root):
    assert find_run("others/first", root) == root / "others/runs/first"
    with pytest.raises(ConfigurationError, match=r"'first': .*agents/first, others/first"):
        find_run("first", root)


def test_two_runs_of_one_name_in_one_app_are_told_apart_by_their_directories(root):
    make_runs(root, "agents/old/second")
    with pytest.raises(ConfigurationError, match=r"agents/old/second, .*agents/runs/second"):
        find_run("agents/second", root)


@pytest.mark.parametrize("given", ["../root/agents/runs/first", "../link", "{root}/agents/runs/first/"])
def test_a_path_means_the_run_in_that_directory_wherever_it_is(root, given, tmp_path):
    (tmp_path / "link").symlink_to(root / "agents/runs/first")
    assert find_run(given.format(root=root), Path("nowhere")) == root / "agents/runs/first"


def test_the_working_directory_may_be_the_run(root, monkeypatch):
    monkeypatch.chdir(root / "agents/runs/first")
    assert find_run(".", root) == root / "agents/runs/first"


def test_an_unknown_name_is_answered_with_the_nearest_one_and_where_it_looked(root):
    with pytest.raises(ConfigurationError) as caught:
        find_run("secnd", Path("../root"))
    for told in ("'secnd'", str(root), "did you mean 'second'?", "agents/first, agents/second, others/first", "--root"):
        assert told in str(caught.value)


def test_of_many_runs_only_some_are_listed(root):
    make_runs(root, *(f"agents/runs/n{number}" for number in range(20)))
    with pytest.raises(ConfigurationError, match=r"agents/n\d+ and 13 more\)"):
        find_run("zzz", root)


@pytest.mark.parametrize(("place", "told"), [("", "runs there: none"), ("nowhere", "nowhere.*--root")])
def test_where_there_are_no_runs_it_says_so(tmp_path, place, told):
    with pytest.raises(ConfigurationError, match=f"'first': .*{tmp_path}.*{told}"):
        find_run("first", tmp_path / place)


def test_a_directory_that_is_no_run_is_said_to_be_none(root):
    with pytest.raises(ConfigurationError, match=r"no run, .*run\.json"):
        find_run(str(root), root)


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


def test_a_run_is_where_it_is_now_and_has_the_sinks_that_get_the_history(moved):
    run_dir = moved()
    config = config_of(run_dir)
    assert config.persistence.get_run_base_dir() == run_dir
    assert (config.app_name, config.run_name) == ("agents", "first")
    assert not config.sinks.console.enabled
    assert sinks_of(config) == ["mlflow", "tensorboard"]


@pytest.mark.parametrize(
    ("then", "chosen", "now"),
    [
        (None, None, "sqlite:///{app}/mlruns/mlflow.db"),  # a store of its own moves with the run
        (None, "http://server", "http://server"),
        ("http://server", None, "http://server"),  # the environment that the run had counts, not that of today
    ],
)
def test_a_run_keeps_its_mlflow_store(moved, monkeypatch, then, chosen, now):
    if then is not None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", then)
    run_dir = moved(mlflow_tracking_uri=chosen)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://elsewhere")
    assert now.format(app=run_dir.parents[1]) == config_of(run_dir).persistence.MLFLOW_TRACKING_URI


def test_a_process_that_holds_the_run_before_its_hub_is_there_counts_as_alive(tmp_path):
    assert not is_alive(tmp_path)
    with RunLock(tmp_path / "run.lock"):
        assert is_alive(tmp_path)
    assert not is_alive(tmp_path)
    for holder in ("", "{}", '{"pid": "x", "host": "h"}', '{"pid": 1, "host": "elsewhere"}'):
        (tmp_path / "run.lock.holder").write_text(holder)
        assert not is_alive(tmp_path)
