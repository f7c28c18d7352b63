"""Sweeps whose directory was renamed or copied, of programs that use `trieye.Run` without `run_name`."""

import json
import shutil
from pathlib import Path

import pytest

import trieye
from trieye.config.hydra.launch import name_of_sweep
from trieye.exceptions import ConfigurationError
from trieye.sweeps.record import SWEEP

MULTIRUN = "hydra.mode=MULTIRUN"


@pytest.fixture
def two_runs(sweep):
    """Return a task that creates two runs."""

    def task(cfg):
        for _ in range(2):
            config = trieye.TrieyeConfig(
                app_name="app", runtime={"kind": "local"}, sinks={}, progress_bar=False,
                persistence={"root_data_dir": str(sweep.directory.parent / "data")},
            )  # fmt: skip
            with trieye.Run(config):
                pass
        return 2

    return task


def attempts(project):
    """Return how often each run was started."""
    records = (project / "data" / "app" / "runs").glob("*/run.json")
    return {path.parent.name: json.loads(path.read_bytes())["attempt"] for path in records}


def edit(path, **fields):
    path.write_text(json.dumps(json.loads(path.read_bytes()) | fields))


def interrupt(job_dir):
    edit(job_dir / "status.json", state="interrupted")


def rename(sweep, name):
    sweep.directory = sweep.directory.rename(sweep.directory.with_name(name))
    interrupt(sweep.directory / "0")


@pytest.mark.long
def test_jobs_of_a_renamed_sweep_of_an_earlier_version_resume_their_runs(sweep, tmp_path, monkeypatch, two_runs):
    monkeypatch.chdir(tmp_path)
    sweep.search(two_runs, "what=1", MULTIRUN)
    edit(sweep.directory / SWEEP, runs="")
    for attempt in (2, 3):
        rename(sweep, f"renamed{attempt}")
        sweep.search(two_runs, "what=1,2", MULTIRUN)
        later = {"sweep_1": 1, "sweep_1_2": 1}  # completed in the second start
        assert attempts(tmp_path) == {"sweep_0": attempt, "sweep_0_2": attempt, **later}


@pytest.mark.long
def test_a_new_sweep_in_the_directory_of_a_renamed_one_has_runs_of_its_own(sweep, tmp_path, monkeypatch, two_runs):
    monkeypatch.chdir(tmp_path)
    first = sweep.directory
    sweep.search(two_runs, "what=1", MULTIRUN)
    rename(sweep, "renamed")
    for _ in range(2):  # a sweep that resumes retains its name
        sweep.directory = first
        sweep.search(two_runs, "what=1", MULTIRUN)
        interrupt(first / "0")
    sweep.directory = tmp_path / "renamed"
    sweep.search(two_runs, "what=1", MULTIRUN)
    assert attempts(tmp_path) == {"sweep_0": 2, "sweep_0_2": 2, "sweep-2_0": 2, "sweep-2_0_2": 2}


def test_a_copied_sweep_and_its_renamed_original_never_share_a_run(sweep, tmp_path, monkeypatch, two_runs):
    monkeypatch.chdir(tmp_path)
    sweep.search(two_runs, "what=1", MULTIRUN)
    copy = shutil.copytree(sweep.directory, tmp_path / "copy", symlinks=True)
    interrupt(copy / "0")
    original, sweep.directory = sweep.directory, copy
    with pytest.raises(ConfigurationError, match="is a copy of the sweep"):
        sweep.search(two_runs, "what=1", MULTIRUN)
    sweep.directory = original
    rename(sweep, "renamed")
    sweep.search(two_runs, "what=1", MULTIRUN)
    sweep.directory = copy
    with pytest.raises(trieye.TrieyeError, match="1 job"):
        sweep.search(two_runs, "what=1", MULTIRUN)
    assert f"belongs to job 0 of the sweep {tmp_path / 'renamed'}" in str(sweep.record(0).error)
    assert attempts(tmp_path) == {"sweep_0": 2, "sweep_0_2": 2}


@pytest.mark.long
def test_a_name_that_contains_a_hash_of_the_path_survives_a_move(sweep, tmp_path, two_runs):
    sweep.search(two_runs, "what=1", MULTIRUN)  # elsewhere than the working directory
    name = name_of_sweep(tmp_path / "sweep", Path.cwd())
    rename(sweep, "renamed")
    sweep.search(two_runs, "what=1", MULTIRUN)
    assert name.startswith("sweep-")
    assert attempts(tmp_path) == {f"{name}_0": 2, f"{name}_0_2": 2}


def test_a_copied_project_resumes_no_run_of_the_original(sweep, tmp_path, monkeypatch, two_runs):
    project, copy = tmp_path / "project", tmp_path / "copy"
    project.mkdir()
    monkeypatch.chdir(project)
    sweep.directory = project / "sweep"
    sweep.search(two_runs, "what=1,2", MULTIRUN)
    interrupt(sweep.directory / "0")
    edit(sweep.directory / SWEEP, program=[])  # pytest, which no copy contains
    shutil.copytree(project, copy, symlinks=True)
    monkeypatch.chdir(copy)
    sweep.directory = copy / "sweep"
    with pytest.raises(ConfigurationError, match=rf"job 0 is a copy of {project}/data.* --only missing"):
        sweep.search(two_runs, "what=1,2,3", MULTIRUN)
    assert sweep.states(3) == ["interrupted", "completed", None]
    sweep.search(two_runs, "what=1,2,3", MULTIRUN, "hydra.launcher.only=[2]")
    assert sweep.states(3) == ["interrupted", "completed", "completed"]
    shutil.rmtree(project)
    sweep.search(two_runs, "what=1,2,3", MULTIRUN)
    assert sweep.states(3) == ["completed"] * 3
    assert [attempts(copy)[f"sweep_{job}"] for job in range(3)] == [2, 1, 1]


def test_a_planted_name_in_the_record_of_a_sweep_never_leaves_the_app(sweep, tmp_path, monkeypatch, two_runs):
    monkeypatch.chdir(tmp_path)
    sweep.search(two_runs, "what=1", MULTIRUN)
    for planted in ("../../../planted", "/tmp/planted"):
        edit(sweep.directory / SWEEP, runs=planted)
        interrupt(sweep.directory / "0")
        with pytest.raises(trieye.TrieyeError, match="1 job"):
            sweep.search(two_runs, "what=1", MULTIRUN)
        assert "is not a safe directory name" in str(sweep.record(0).error)
        assert attempts(tmp_path) == {"sweep_0": 1, "sweep_0_2": 1}
        assert not list(tmp_path.rglob("planted*"))
