from pathlib import Path

import pytest

from tests.permissions import restricted_access
from trieye.exceptions import ConfigurationError
from trieye.runs import run_directory
from trieye.runs.finding import find_directories, is_run_leftover, roots_of


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


def test_the_app_distinguishes_runs_of_the_same_name(root):
    assert run_directory("others/first", root=root) == root / "others/runs/first"
    with pytest.raises(ConfigurationError, match=r"'first': .*agents/first, others/first"):
        run_directory("first", root=root)


def test_directories_distinguish_runs_of_the_same_name_and_app(root):
    make_runs(root, "agents/old/second")
    with pytest.raises(ConfigurationError, match=r"agents/old/second, .*agents/runs/second"):
        run_directory("agents/second", root=root)


@pytest.mark.parametrize(
    "reference", ["second", "agents/second", "../root/agents/runs/second", "../link", "{root}/agents/runs/second/"]
)
def test_a_name_below_the_root_or_a_path_selects_a_run(root, reference, tmp_path):
    (tmp_path / "link").symlink_to(root / "agents/runs/second")
    assert run_directory(reference.format(root=root), root=root) == root / "agents/runs/second"


def test_a_path_selects_the_run_outside_the_root(root, monkeypatch):
    monkeypatch.chdir(root / "agents/runs/first")
    assert run_directory(".", root=Path("nowhere")) == root / "agents/runs/first"


def test_an_unknown_name_suggests_the_closest_one_and_names_the_root(root):
    with pytest.raises(ConfigurationError) as caught:
        run_directory("secnd", root=Path("../root"))
    for part in ("'secnd'", str(root), "did you mean 'second'?", "agents/first, agents/second, others/first", "--root"):
        assert part in str(caught.value)


def test_a_long_list_of_runs_is_truncated(root):
    make_runs(root, *(f"agents/runs/n{number}" for number in range(20)))
    with pytest.raises(ConfigurationError, match=r"agents/n\d+ and 13 more\)"):
        run_directory("zzz", root=root)


def test_a_root_of_an_unknown_user_is_ignored(root, monkeypatch):
    monkeypatch.chdir(root.parent)
    monkeypatch.setenv("TRIEYE_ROOT", "~nobody_has_this_name/data")
    with pytest.raises(ConfigurationError, match="no such run"):
        run_directory("zzz")


@pytest.mark.parametrize(("root", "message"), [("", "runs: none"), ("nowhere", "nowhere.*--root")])
def test_a_root_without_runs_is_reported(tmp_path, root, message):
    with pytest.raises(ConfigurationError, match=f"'first': .*{tmp_path}.*{message}"):
        run_directory("first", root=tmp_path / root)


def test_a_directory_that_is_not_a_run_is_named(root):
    with pytest.raises(ConfigurationError, match=r"not a run; it has no run\.json"):
        run_directory(str(root), root=root)


def test_the_runs_of_an_app_named_runs_are_found(tmp_path, monkeypatch):
    make_runs(tmp_path, ".trieye_data/runs/runs/first")
    (tmp_path / ".trieye_data/runs/mlruns").mkdir()
    monkeypatch.chdir(tmp_path)
    for searched in (".", ".trieye_data", ".trieye_data/runs", ".trieye_data/runs/runs"):
        assert find_directories([searched], roots_of(None)) == ([tmp_path / ".trieye_data/runs/runs/first"], [])
    assert not is_run_leftover(tmp_path / ".trieye_data/runs/mlruns")


def test_a_private_run_of_another_user_is_skipped_with_a_note(root):
    private = root / "agents/runs/first"
    private.chmod(0)
    with restricted_access():
        runs, skipped = find_directories([], [root])
        assert run_directory("first", root=root) == root / "others/runs/first"
        assert not is_run_leftover(private)
    private.chmod(0o700)
    assert [run.name for run in runs] == ["second", "first"]
    assert [(skip.directory, skip.reason) for skip in skipped] == [(private, "it cannot be read: Permission denied")]
