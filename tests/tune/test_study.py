import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tune.walks import curve_in
from trieye.files.run_record import RunRecord
from trieye.sweeps.jobs import JobRecord

ROOT = Path(__file__).parents[2]
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

    def run(self, *words, code=0):
        done = subprocess.run(
            [sys.executable, *words], cwd=self.directory, env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def cli(self, *words, code=0):
        return self.run("-m", "trieye.cli", *words, code=code)

    @property
    def environment(self):
        return {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "160"}

    def run_dir(self, name):
        return self.directory / ".trieye_data" / "walks" / "runs" / name

    def statuses(self, study):
        done = subprocess.run(
            [sys.executable, "-m", "trieye.cli", "sweep", "status", f"multirun/{study}", "--json"],
            cwd=self.directory, env=self.environment, capture_output=True, text=True,
        )  # fmt: skip
        return {job["index"]: job for job in json.loads(done.stdout)["jobs"]}


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def test_a_study_stops_what_is_behind_and_its_best_config_runs_again(project):
    words = ["walk.py", "run_name=first", "tune=asha", "tune.reduction=2", "tune.num_trials=4", SPACE]
    printed = project.run(*words, "sinks=[mlflow]")
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
    again, best = project.run_dir("again"), project.run_dir(f"first_{summary['best']}")
    for metric in ("position", "noise", "eval/return"):
        assert curve_in(again, metric) == curve_in(best, metric)
        assert curve_in(again, metric)

    assert "is finished" in project.run(*words, "sinks=[mlflow]")
    refused = project.run(*words, "tune.num_trials=5", code=2)
    assert "was begun with tune.num_trials=4, and now it is 5" in refused
    assert "leave one of them out" in project.run(*words, "-m", code=2)
    project.cli("sweep", "status", "multirun/first")
    assert "pace" in project.cli("results", "table", "multirun/first", "--by", "walk.pace")
    assert "has no grid: it is a search or a study" in project.cli("sweep", "show", "1", "-d", "multirun/first", code=2)


def test_a_study_that_is_interrupted_goes_on(project):
    words = ["walk.py", "run_name=cut", "tune=grid", "tune.retries=1", "walk.gait=slow"]
    space = "tune.space.walk.pace='2,3,60'"
    study = subprocess.Popen(
        [sys.executable, *words, space], cwd=project.directory, env=project.environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    until = time.monotonic() + 120
    directory = project.directory / "multirun" / "cut"
    while time.monotonic() < until:
        record = JobRecord.read(directory / "0")
        if study.poll() is not None or (record is not None and (record.step or 0) >= 5):
            break
        time.sleep(0.05)
    study.send_signal(signal.SIGINT)
    printed, _ = study.communicate(timeout=120)
    assert study.returncode == 130, printed
    assert "trieye sweep relaunch" in printed
    printed = project.cli("sweep", "relaunch", "multirun/cut", code=1)
    assert "too fast for this path" in printed
    states = [job["state"] for _, job in sorted(project.statuses("cut").items())]
    assert states == ["completed", "completed", "failed"]
    for index, pace in enumerate([2, 3]):
        assert curve_in(project.run_dir(f"cut_{index}")) == [(step, 2.0 * pace * step) for step in range(1, 21)]
