from pathlib import Path

import pytest

from trieye.cli.run_argument import find_run
from trieye.exceptions import ConfigurationError


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Two apps with a run `first` each, and one with a run `second`; the working directory is elsewhere."""
    root = tmp_path / "root"
    for name in ("agents/runs/first", "agents/runs/second", "others/runs/first"):
        (root / name).mkdir(parents=True)
        (root / name / "run.json").touch()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return root


@pytest.mark.parametrize("given", ["second", "agents/second"])
def test_a_name_means_a_run_below_the_root(root, given):
    assert find_run(given, root) == root / "agents/runs/second"


def test_the_app_tells_runs_of_the_same_name_apart(root):
    assert find_run("others/first", root) == root / "others/runs/first"
    with pytest.raises(ConfigurationError, match="say which: agents/first, others/first"):
        find_run("first", root)


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
    told = str(caught.value)
    assert f"there is none in {root}; did you mean 'second'?" in told
    assert "(runs there: agents/first, agents/second, others/first)" in told
    assert "--root" in told


def test_of_many_runs_only_some_are_listed(root):
    for number in range(20):
        (root / f"agents/runs/n{number}").mkdir()
        (root / f"agents/runs/n{number}/run.json").touch()
    with pytest.raises(ConfigurationError, match=r"agents/n\d+ and 13 more\)"):
        find_run("zzz", root)


def test_where_there_are_no_runs_it_says_so(tmp_path):
    with pytest.raises(ConfigurationError, match=r"\(runs there: none\)"):
        find_run("first", tmp_path)
    with pytest.raises(ConfigurationError, match=r"'first': there is neither such a directory nor .*/nowhere.*--root"):
        find_run("first", tmp_path / "nowhere")


def test_a_directory_that_is_no_run_is_said_to_be_none(root):
    with pytest.raises(ConfigurationError, match=r"that directory is no run, it has no run\.json"):
        find_run(str(root), root)


def test_two_runs_of_one_name_in_one_app_are_told_apart_by_their_directories(root):
    (root / "agents/old/second").mkdir(parents=True)
    (root / "agents/old/second/run.json").touch()
    with pytest.raises(ConfigurationError, match=r"agents/old/second, .*agents/runs/second"):
        find_run("agents/second", root)
