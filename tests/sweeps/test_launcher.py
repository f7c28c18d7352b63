"""The launcher: Hydra's own tests of launchers, what jobs get, how they fail, and what a second start does."""

import json
import os
import textwrap

import pytest
from hydra.core.singleton import Singleton
from hydra.test_utils.launcher_common_tests import LauncherTestSuite
from hydra.version import VersionBase

from hydra_plugins.trieye.sweeps import LAUNCHER, SWEEPER
from tests.sweeps.programs import started
from trieye.config.launcher import LauncherConfig
from trieye.config.sweeper import SweeperConfig
from trieye.sweeps.jobs import JobRecord
from trieye.sweeps.status import status_of

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.mark.parametrize(("launcher_name", "overrides"), [("trieye_ray", ["hydra.launcher.isolate=worker"])])
class TestAsHydraWantsIt(LauncherTestSuite):
    """In workers of Ray."""

    @pytest.fixture(autouse=True)
    def _as_in_a_fresh_process(self, hydra_restore_singletons):
        state = Singleton.get_state()
        state["instances"].pop(VersionBase, None)  # which other tests of this process have set
        Singleton.set_state(state)


def test_the_defaults_that_every_program_with_hydra_sees_are_those_of_the_models():
    assert LauncherConfig().model_dump() == LAUNCHER
    assert SweeperConfig().model_dump() == SWEEPER


PROGRAM = textwrap.dedent("""
    import os, sys, signal, subprocess, time, pathlib
    import hydra
    from hydra.core.config_store import ConfigStore
    ConfigStore.instance().store("config", {"what": "good", "cpus": 1})
    @hydra.main(config_path=None, config_name="config", version_base="1.3")
    def main(cfg):
        here = pathlib.Path(hydra.core.hydra_config.HydraConfig.get().runtime.output_dir)
        before = len(list(here.glob("began*")))
        (here / f"began{before}").write_text(str(os.getpid()))
        what = cfg.what
        print("printed", what, flush=True)
        print("told", what, file=sys.stderr, flush=True)
        subprocess.run(["echo", f"child {what}"], check=True)
        if what == "raise": raise ZeroDivisionError("no luck")
        if what == "odd": raise type("Odd", (Exception,), {"__reduce__": lambda self: 1 / 0})("odd one")
        if what == "unpicklable": return lambda: 1
        if what == "dies" and not before: os.kill(os.getpid(), signal.SIGKILL)
        if what == "mortal": os.kill(os.getpid(), signal.SIGKILL)
        if what == "cpus":
            import ray
            return ray.get_runtime_context().get_assigned_resources()["CPU"]
        return 1.5
    main()
""")
EVERY = "what=good,raise,odd,unpicklable,dies,mortal"
RAY = ["-m", "hydra/launcher=trieye_ray", "hydra/sweeper=trieye", "hydra.sweep.dir=s"]


def told(tmp_path):
    return {job.values.get("what", job.index): job for job in status_of(tmp_path / "s")}


@pytest.mark.slow
def test_jobs_fail_and_die_without_harm_to_others(tmp_path):
    done = started(tmp_path, PROGRAM, *RAY, EVERY, "hydra.launcher.retries=1", "hydra.launcher.isolate=worker")
    assert done.returncode == 1
    assert "3 of 6 jobs failed" in done.stderr
    jobs = told(tmp_path)
    assert {what: job.how for what, job in jobs.items()} == {
        "good": "completed", "raise": "failed", "odd": "failed", "unpicklable": "completed", "dies": "completed",
        "mortal": "failed",
    }  # fmt: skip
    assert (jobs["good"].objective, jobs["dies"].objective) == (1.5, 1.5)
    assert jobs["raise"].record.error == "ZeroDivisionError: no luck"
    assert "Odd: odd one" in jobs["odd"].record.error
    assert (jobs["dies"].record.attempt, jobs["dies"].record.deaths) == (2, 1)
    assert "killed 2 times" in jobs["mortal"].record.error
    printed = {what: (tmp_path / "s" / str(job.index) / "output.log").read_text() for what, job in jobs.items()}
    for what, text in printed.items():
        assert all(f"{word} {what}" in text for word in ("printed", "told", "child"))
    assert "in main" in printed["raise"]  # a traceback
    assert "printed" not in done.stdout

    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").glob("*/status.json")}
    again = started(tmp_path, PROGRAM, *RAY, EVERY, "hydra.launcher.isolate=none", "hydra.launcher.only=[0,1,2,3]")
    assert "2 failed, 2 skipped" in again.stderr
    touched = {int(path.parent.name) for path, then in kept.items() if path.stat().st_mtime_ns != then}
    assert touched == {1, 2}

    other = started(tmp_path, PROGRAM, *RAY, "what=raise,good")
    assert other.returncode == 1
    assert "its job " in other.stderr


@pytest.mark.slow
def test_each_job_gets_the_resources_that_it_asks_for_and_a_process_of_its_own(tmp_path):
    own = ["what=cpus", "cpus=1,2", "hydra.launcher.num_cpus=${cpus}", "hydra.launcher.num_jobs=2"]
    done = started(tmp_path, PROGRAM, *RAY, *own)
    assert done.returncode == 0, done.stderr
    assert [job.objective for job in status_of(tmp_path / "s")] == [1.0, 2.0]
    pids = {path.read_text() for path in (tmp_path / "s").glob("*/began0")}
    assert len(pids) == 2


@pytest.mark.slow
def test_fail_fast_begins_nothing_after_a_failure_and_the_rest_runs_later(tmp_path):
    words = [*RAY, "hydra.launcher.isolate=none", "what=good,raise,fine"]
    first = started(tmp_path, PROGRAM, *words, "hydra.launcher.fail_fast=true")
    assert first.returncode == 1
    assert {what: job.how for what, job in told(tmp_path).items()} == {
        "good": "completed", "raise": "failed", "fine": "missing",
    }  # fmt: skip
    second = started(tmp_path, PROGRAM, *words)
    assert "1 done, 1 failed, 1 skipped" in second.stderr


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("hydra.launcher.num_cpu=2", "num_cpu"),
        ("hydra.launcher.num_jobs=0", "hydra.launcher.num_jobs=0: an integer >= 1 or null is expected"),
        ("hydra.launcher.isolate=proces", "did you mean 'process'"),
        ("hydra.sweeper.kind=gird", "did you mean 'grid'"),
    ],
)
def test_an_option_that_is_wrong_is_refused_before_anything_runs(tmp_path, option, said):
    done = started(tmp_path, PROGRAM, *RAY, "what=good", option)
    assert done.returncode == 1
    assert said in done.stderr
    assert not (tmp_path / "s").exists()


def test_a_job_is_known_to_be_dead_by_its_process(tmp_path):
    process = started(tmp_path, "import psutil; print(psutil.Process().create_time(), psutil.Process().pid)")
    began, pid = process.stdout.split()
    record = JobRecord(index=0, overrides=["a=1"], pid=int(pid), process_began=float(began))
    record.write(tmp_path / "0")
    assert JobRecord.read(tmp_path / "0").state_now == "lost"
    import psutil

    record.pid, record.process_began = os.getpid(), psutil.Process().create_time()
    assert record.state_now == "running"
    record.process_began -= 100  # another process had the number
    assert record.state_now == "lost"
    record.host, record.heartbeat = "elsewhere", record.started
    assert record.state_now == "running"
    record.heartbeat -= 1000
    assert record.state_now == "lost"
    held = json.loads((tmp_path / "0" / "status.json").read_text())
    assert (held["state"], held["overrides"]) == ("running", ["a=1"])
