import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial

import pytest

from tests import warm
from tests.forked import in_a_child
from tests.tune.walks import Walk, curve_in
from tests.waiting import wait_until
from trieye.exceptions import ConfigurationError
from trieye.files.run_record import RunRecord
from trieye.sweeps.jobs import JobRecord
from trieye.sweeps.record import SweepRecord
from trieye.tune.study import Study
from trieye.tune.trial import Trial
from trieye.tune.values import named

pytestmark = pytest.mark.slow
PROGRAM = """
import time

import trieye
from tests.tune import walks


class Waiting(walks.Raising):
    def step(self):
        time.sleep(0.02 if self.config.walk.gait == "slow" else 0)
        return super().step()


@trieye.main(config_path="conf", config_name="train")
def walk(cfg: walks.WalksConfig) -> float | None:
    return trieye.run_experiment(Waiting, cfg).objective


if __name__ == "__main__":
    walk()
"""
CONF = """
defaults:
  - schema
  - runtime: ray
  - persistence: default
  - stats: default
  - metrics: [core]
  - sinks: []
  - _self_
  - tune: null
  - experiment: null

app_name: walks
walk:
  gait: fast
runtime:
  num_cpus: 2
loop:
  steps: 20
  evaluate_every_steps: 5
"""
SPACE = "tune.space.walk.pace='interval(1,10)'"


class Project:
    """A project in a directory, with a program that walks."""

    def __init__(self, directory):
        self.directory = directory
        (directory / "conf").mkdir()
        (directory / "conf" / "train.yaml").write_text(CONF)
        (directory / "walk.py").write_text(PROGRAM)

    def run(self, *arguments, code=0, has_ray=False):
        if has_ray:  # Ray starts workers with the command line of this process
            command = [sys.executable, *arguments]
            done = subprocess.run(command, cwd=self.directory, env=self.environment, capture_output=True, text=True)
        else:
            done = warm.run(list(arguments), self.directory, env=self.environment, modules=warm.RUN)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def interrupted_at(self, step, study, *arguments):
        """Start a study, and press Ctrl-C when its first trial has reached a step."""
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=self.directory, env=self.environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

        def has_reached_step():
            record = JobRecord.read(self.directory / "multirun" / study / "0")
            return process.poll() is not None or (record is not None and (record.step or 0) >= step)

        wait_until(has_reached_step, within_s=120.0, pause_s=0.05)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=120)
        assert process.returncode == 130, printed
        assert "trieye sweep relaunch" in printed

    def cli(self, *arguments, **options):
        return self.run("-m", "trieye.cli", *arguments, **options)

    @property
    def environment(self):
        return {**os.environ, "COLUMNS": "160"}

    def run_dir(self, name):
        return self.directory / ".trieye_data" / "walks" / "runs" / name

    def statuses(self, study):
        command = ["-m", "trieye.cli", "sweep", "status", f"multirun/{study}", "--json"]
        done = warm.run(command, self.directory, env=self.environment, modules=warm.RUN)
        return {job["index"]: job for job in json.loads(done.stdout)["jobs"]}


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


@pytest.mark.long
def test_an_interrupted_study_resumes_prunes_trials_and_reruns_its_best_config(project):
    arguments = ["walk.py", "run_name=first", "tune=asha", "tune.reduction_factor=2", "tune.num_trials=4"]
    arguments += [SPACE, "walk.gait=slow"]
    project.interrupted_at(5, "first", *arguments, "sinks=[mlflow]")
    printed = project.cli("sweep", "relaunch", "multirun/first", has_ray=True)
    states = {index: job["state"] for index, job in project.statuses("first").items()}
    assert set(states.values()) == {"completed", "pruned"}
    completed = [index for index, state in states.items() if state == "completed"]
    for index, state in states.items():
        record = RunRecord.read(project.run_dir(f"first_{index}") / "run.json")
        assert record.status == ("FINISHED" if state == "completed" else "KILLED")
        curve = curve_in(project.run_dir(f"first_{index}"))
        assert [step for step, _ in curve] == list(range(1, len(curve) + 1))
        assert len(curve) in ((20,) if state == "completed" else (5, 10, 15))

    preset = project.directory / "conf" / "experiment" / "best_first.yaml"
    assert str(preset) in printed
    summary = json.loads((project.directory / "multirun" / "first" / "sweep.json").read_text())["summary"]
    assert summary["best"] in completed
    project.run("walk.py", "experiment=best_first", "run_name=again", "runtime=local")
    rerun, best = project.run_dir("again"), project.run_dir(f"first_{summary['best']}")
    for metric in ("position", "noise", "eval/return"):
        assert curve_in(rerun, metric) == curve_in(best, metric)
        assert curve_in(rerun, metric)

    assert "is finished" in project.run(*arguments, "sinks=[mlflow]")
    refused = project.run(*arguments, "tune.num_trials=3", code=2)
    assert "was started with tune.num_trials=4 and cannot resume with 3" in refused
    output = project.run(*arguments, "tune.num_trials=5", "sinks=[mlflow]", has_ray=True)
    assert "study: grows from 4 to 5 trials" in output
    assert "4 completed before" in output
    assert project.statuses("first").keys() == set(range(5))
    assert "remove tune or -m" in project.run(*arguments, "-m", code=2)
    project.cli("sweep", "status", "multirun/first")
    assert "pace" in project.cli("results", "table", "multirun/first", "--by", "walk.pace")
    assert "has no grid: it is a search or a study" in project.cli("sweep", "show", "1", "-d", "multirun/first", code=2)


def evaluate_and_be_killed(config, group):
    """Run a trial in a fork up to its first evaluation, and kill it before it delivers its values."""
    Trial(Walk, config, {}, group).iterate()
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_end_of_a_study_delivers_values_of_pruned_trials_whose_processes_were_killed(
    walks_config, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    sinks = {"mlflow": {"enabled": False}, "tensorboard": {"enabled": True, "flush_interval_s": 600}}
    config = walks_config("study", sinks=sinks)
    space = config.tune.model_copy(update={"enabled": True, "search": "grid", "space": {"walk.pace": "1,2,3"}})
    study, run_dirs = Study(Walk, config.model_copy(update={"tune": space})), []
    for index, state in enumerate(("pruned", "interrupted", "pruned")):
        trial = named(config, f"study_{index}")
        group = str(study.directory) if index < 2 else "/another/study/with/a/run/of/this/name"
        assert in_a_child(partial(evaluate_and_be_killed, trial, group)) == -signal.SIGKILL
        (study.directory / str(index)).mkdir(parents=True)
        JobRecord(index=index, overrides=[], state=state, step=5).write(study.directory / str(index))
        run_dirs.append(trial.persistence.get_run_base_dir())
    study._close_trials()
    assert [RunRecord.read(path / "run.json").status for path in run_dirs] == ["KILLED", "RUNNING", "RUNNING"]
    assert RunRecord.read(run_dirs[0] / "run.json").summary["eval/return"]["step"] == 5
    study._close_trials()  # nothing remains to be delivered


@pytest.mark.parametrize("group", [None, "multirun/study"])
def test_a_new_study_does_not_take_over_existing_runs(group, walks_config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {"enabled": True, "search": "grid", "num_trials": 1, "space": {"walk.pace": "1,2"}}
    earlier = Trial(Walk, walks_config("study_1", 50.0), group=group and str(tmp_path / group))
    while not earlier.iterate()["done"]:
        pass
    study = Study(Walk, walks_config("study", tune=options))
    with pytest.raises(ConfigurationError, match=f"trieye rm {earlier.run_dir}.*another run_name"):
        study.run()
    assert not (study.directory / "sweep.json").exists()


@pytest.mark.parametrize("is_link", [True, False])
def test_a_study_deletes_no_directory_that_it_did_not_write(is_link, walks_config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = Study(Walk, walks_config("study", tune={"enabled": True, "space": {"walk.pace": "1,2"}}))
    stored_dir, other_dir = study.directory / "tune", tmp_path / "other"
    study.directory.mkdir(parents=True)
    (other_dir if is_link else stored_dir).mkdir()
    if is_link:
        stored_dir.symlink_to(other_dir)
    (stored_dir / "notes").write_text("mine")
    with pytest.raises(ConfigurationError, match=r"tune (is a link|was not written by this study)"):
        study.run()
    assert (stored_dir / "notes").read_text() == "mine"
    assert not (study.directory / "sweep.json").exists()


@pytest.fixture
def interrupted_study(walks_config, tmp_path, monkeypatch):
    """Return a function that goes to a project, and returns its study and the run directory of the first trial.

    In the first project, the study was interrupted in its first trial.
    """

    def study_in(project):
        project.mkdir(exist_ok=True)
        monkeypatch.chdir(project)
        options = {"enabled": True, "search": "grid", "num_trials": 1, "space": {"walk.pace": "1,2"}}
        root = {"root_data_dir": str(project / "root")}
        config = walks_config("herd", tune=options)
        config = config.model_copy(update={"persistence": config.persistence.model_copy(update=root)})
        study, trial = Study(Walk, config), Trial(Walk, named(config, "herd_0"), group=str(project / "multirun/herd"))
        if not study.directory.exists():
            definition = {"run_name": "herd", **study._identity()}
            SweepRecord(spec=[], size=2, working_dir=str(project), study=definition).write(study.directory)
            JobRecord(index=0, overrides=["walk.pace=1"], state="interrupted", step=5).write(study.directory / "0")
            trial.iterate()
            trial.close()
        return study, trial

    study_in(tmp_path / "first")
    return study_in


def test_a_moved_study_resumes_its_runs(interrupted_study, tmp_path):
    (tmp_path / "first").rename(tmp_path / "second")
    study, trial = interrupted_study(tmp_path / "second")
    record = SweepRecord.read(study.directory)
    assert record.at(study.directory).working_dir == str(tmp_path / "second")  # where `trieye sweep relaunch` runs
    study._check_runs(record)
    assert trial.iterate()["attempt"] == 2
    trial.close()


@pytest.mark.parametrize("is_original_gone", [False, True])
def test_a_copied_study_is_refused_before_anything_is_written(is_original_gone, interrupted_study, tmp_path):
    shutil.copytree(tmp_path / "first", tmp_path / "second", symlinks=True)
    if is_original_gone:  # but its runs are not
        shutil.rmtree(tmp_path / "first/multirun")
    study, _ = interrupted_study(tmp_path / "second")
    before = [(path, path.read_bytes()) for path in sorted(tmp_path.rglob("*.json"))]
    with pytest.raises(ConfigurationError, match=f"is a copy of .*{tmp_path / 'first'}"):
        study.run()
    assert [(path, path.read_bytes()) for path in sorted(tmp_path.rglob("*.json"))] == before
