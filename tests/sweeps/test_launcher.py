"""The launcher: failed, killed and earlier jobs, and the resources of each job."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hydra_plugins.trieye.sweeps import LAUNCHER, SWEEPER
from trieye.config.launcher import LauncherConfig
from trieye.config.sweeper import SweeperConfig
from trieye.exceptions import ConfigurationError, RunLockedError
from trieye.sweeps import orphans
from trieye.sweeps.jobs import RunningJob
from trieye.sweeps.record import LOCK, SweepRecord, lock_in


def done(cfg):
    """Be a job that has nothing to do."""
    del cfg
    return 1


def values(returned):
    """Return what jobs returned, and the words of their errors."""
    return [job._return_value if job.status.name == "COMPLETED" else str(job._return_value) for job in returned]


def test_jobs_that_fail_stop_no_other_and_leave_what_they_printed(sweep, ray_cluster):
    class StubbornError(Exception):
        def __init__(self, first, second):
            super().__init__(f"{first} {second}")

    def task(cfg):
        print(f"printed by {cfg.what}")  # noqa: T201
        print("to stderr", file=sys.stderr)  # noqa: T201
        subprocess.run([sys.executable, "-c", "print('a child speaks')"], check=True)
        if cfg.what == "raise":
            raise ValueError("that is no number")
        if cfg.what == "stubborn":
            raise StubbornError("cannot be", "unpickled")
        if cfg.what == "leave":
            sys.exit(3)
        return threading.Lock() if cfg.what == "lock" else 7

    whats = ["raise", "fine", "stubborn", "leave", "lock", "well"]
    returned = sweep.launch(task, [f"what={word}" for word in whats])
    returned_values = values(returned)
    assert returned_values[1] == returned_values[5] == 7
    assert returned_values[0] == "that is no number"
    assert "StubbornError: cannot be unpickled" in returned_values[2]
    assert "3" in returned_values[3]
    assert returned_values[4] is None
    assert sweep.states(6) == ["failed", "completed", "failed", "failed", "completed", "completed"]
    assert sweep.record(0).error == "ValueError: that is no number"
    assert sweep.record(5).objective == 7.0
    logs = [(sweep.directory / str(index) / "output.log").read_text() for index in range(6)]
    for word, log in zip(whats, logs, strict=True):
        assert f"printed by {word}" in log
        assert "to stderr" in log
        assert "a child speaks" in log
    assert "Traceback" in logs[0]
    assert "ValueError: that is no number" in logs[0]
    assert "cannot be pickled" in logs[4]


def test_a_config_that_cannot_be_composed_fails_its_job_alone(sweep, ray_cluster):
    def task(cfg):
        del cfg

    returned = sweep.launch(task, ["what=fine", "whta=x"])
    assert sweep.states(2) == ["completed", "failed"]
    assert "whta" in values(returned)[1]
    assert "whta" in (sweep.directory / "1" / "output.log").read_text()


def test_fail_fast_begins_no_other_job(sweep, ray_cluster):
    def task(cfg):
        raise ValueError(cfg.what)

    sweep.launch(task, [f"what={n}" for n in range(4)], "hydra.launcher.fail_fast=true", "hydra.launcher.num_jobs=1")
    assert sweep.states(4) == ["failed", None, None, None]


def test_a_job_that_is_killed_gets_another_process_until_it_has_had_its_retries(sweep, ray_cluster):
    def task(cfg):
        if cfg.what == "always" or not Path("been_here").exists():
            Path("been_here").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return 1

    options = ["hydra.launcher.retries=1", "hydra.job.chdir=true"]
    returned = sweep.launch(task, ["what=once", "what=always"], *options)
    once, always = sweep.record(0), sweep.record(1)
    assert (once.state, once.attempt, once.deaths) == ("completed", 2, 1)
    assert (always.state, always.attempt, always.deaths) == ("failed", 2, 2)
    assert "killed 2 times" in always.error
    assert values(returned)[0] == 1
    assert "killed 2 times" in values(returned)[1]


def test_each_job_has_the_cpus_that_its_own_config_asks_for(sweep, ray_cluster):
    def task(cfg):
        import ray

        return ray.get_runtime_context().get_assigned_resources()["CPU"]

    jobs = ["cpus=1", "cpus=2", "cpus=0.5", "cpus=1000"]
    returned = sweep.launch(task, jobs, "hydra.launcher.num_cpus='${cpus}'")
    assert values(returned)[:3] == [1.0, 2.0, 0.5]
    assert "hydra.launcher.num_cpus=1000: this machine has 2" in values(returned)[3]
    assert sweep.states(4) == ["completed"] * 3 + ["failed"]
    assert "hydra.launcher.num_cpus='${cpus}'" in SweepRecord.of(sweep.directory).own


def test_a_fraction_of_a_gpu_is_asked_of_ray(sweep, ray_cluster):
    returned = sweep.launch(print, ["what=x"], "hydra.launcher.num_gpus=0.25")
    assert "hydra.launcher.num_gpus=0.25: this machine has 0" in values(returned)[0]


def test_no_more_jobs_run_at_once_than_are_allowed(sweep, ray_cluster):
    directory = sweep.directory  # the fixture's own class is not to be found in a worker

    def task(cfg):
        began = time.time()
        (directory / f"began{cfg.what}").touch()
        while len(list(directory.glob("began*"))) < 2:  # two do run at once
            time.sleep(0.01)
        time.sleep(0.2)
        return began, time.time()

    options = ["hydra.launcher.num_jobs=2", "hydra.launcher.num_cpus=0.25"]
    times = values(sweep.launch(task, [f"what={n}" for n in range(4)], *options))
    assert max(sum(began <= moment < ended for began, ended in times) for moment, _ in times) == 2


@pytest.mark.parametrize(("isolate", "num_processes"), [("process", 2), ("worker", 1)])
def test_jobs_have_a_process_each_or_share_one(sweep, ray_cluster, isolate, num_processes):
    def pid(cfg):
        del cfg
        return os.getpid()

    options = [f"hydra.launcher.isolate={isolate}", "hydra.launcher.num_jobs=1"]
    pids = values(sweep.launch(pid, ["what=a", "what=b"], *options))
    assert len(set(pids)) == num_processes
    assert os.getpid() not in pids


def test_what_a_job_does_to_hydra_reaches_no_other_job_of_its_process(sweep, ray_cluster):
    def task(cfg):
        from hydra.core.config_store import ConfigStore
        from omegaconf import OmegaConf

        outcomes = (OmegaConf.has_resolver("mine"), "mine.yaml" in ConfigStore.instance().repo, os.getpid())
        OmegaConf.register_new_resolver("mine", lambda: cfg.what)
        ConfigStore.instance().store("mine", {"a": 1})
        return outcomes

    outcomes = values(sweep.launch(task, ["what=a", "what=b"], "hydra.launcher.num_jobs=1"))
    assert [outcome[:2] for outcome in outcomes] == [(False, False)] * 2
    assert outcomes[0][2] == outcomes[1][2]


def test_a_sweep_that_is_started_again_runs_what_is_not_completed(sweep):
    def task(cfg):
        with (sweep.directory / "ran").open("a") as file:
            file.write(f"{cfg.what} ")
        if cfg.what == "1" and len((sweep.directory / "ran").read_text().split()) == 2:
            raise ValueError("the first time")
        return float(cfg.what)

    alone, jobs = "hydra.launcher.isolate=none", ["what='0'", "what='1'"]
    sweep.launch(task, jobs, alone)
    assert sweep.states(2) == ["completed", "failed"]
    assert values(sweep.launch(task, jobs, alone)) == [0.0, 1.0]
    assert (sweep.directory / "ran").read_text() == "0 1 1 "
    assert (sweep.record(1).attempt, sweep.record(1).deaths, sweep.record(1).state) == (2, 0, "completed")


def test_a_job_that_would_be_another_one_is_refused_before_any_begins(sweep):
    alone = "hydra.launcher.isolate=none"
    sweep.launch(done, ["what=a", "what=b"], alone)
    (sweep.directory / "0" / "status.json").unlink()
    with pytest.raises(ConfigurationError, match="job 1 was 'what=b' and would be 'what=c'"):
        sweep.launch(done, ["what=a", "what=c"], alone)
    assert sweep.states(2) == [None, "completed"]


def test_a_second_driver_of_a_sweep_is_refused_and_changes_nothing(sweep):
    sweep.directory.mkdir()
    with lock_in(sweep.directory), pytest.raises(RunLockedError, match=r"sweep 'sweep' .*hydra.sweep.dir"):
        sweep.launch(done, ["what=a"], "hydra.launcher.isolate=none")
    assert sorted(path.name for path in sweep.directory.iterdir()) == [LOCK]


def test_a_job_that_another_process_runs_is_left_out_and_fails_the_sweep(sweep, monkeypatch):
    monkeypatch.setattr(orphans, "ORPHAN_WAIT_S", 0.2)
    with RunningJob(sweep.directory / "0", 0, ["what=a"]).running():
        returned = sweep.launch(done, ["what=a", "what=b"], "hydra.launcher.isolate=none")
        assert sweep.states(2) == ["running", "completed"]
    assert f"job 0 is skipped: process {os.getpid()} on" in values(returned)[0]
    assert sweep.record(0).state == "completed"


def test_the_defaults_of_the_plugins_are_those_of_their_models():
    assert LauncherConfig().model_dump() == LAUNCHER
    assert SweeperConfig().model_dump() == SWEEPER
