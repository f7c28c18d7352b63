"""A sweep on nodes with separate disks and one shared directory."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

import trieye
from tests import warm
from tests.waiting import wait_until
from trieye.cli import main
from trieye.cli.sweep_merge import _fetch
from trieye.exceptions import RunLockedError
from trieye.files.atomic import relink
from trieye.files.run_files import RunFiles
from trieye.mirror.local import LocalRun
from trieye.sweeps.jobs import JobRecord

pytestmark = pytest.mark.usefixtures("warm_programs")
WARM = warm.RUN

PROGRAM = """
import time
import trieye

@trieye.main("pkg://trieye.conf", "trieye")
def train(config: trieye.TrieyeConfig) -> float:
    with trieye.Run(config) as run:
        run.restore()
        for step in run.steps(30):
            run.log("loss", 1.0 / step)
            if config.tags.get("slow") and not run.resumed:
                time.sleep(0.1)
            if run.save_due:
                run.save()
        return float(run.resumed)

if __name__ == "__main__":
    train()
"""


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """Return the directory that all nodes share, with a planned sweep of two jobs."""
    disk = tmp_path / "shared"
    disk.mkdir()
    monkeypatch.chdir(disk)
    Path("train.py").write_text(PROGRAM)
    options = ["persistence.root_data_dir=${oc.env:DISK}", f"persistence.mirror=file://{disk}/mirror"]
    options += ["persistence.mirror_interval_s=1", "persistence.checkpoint_save_freq_steps=5"]
    arguments = ["runtime=local", "sinks=[]", "app_name=nodes", *options, "seed=0,1", "+tags.slow=yes"]
    assert main(["sweep", "plan", "train.py", *arguments, "-o", "sweep"]) == 0
    return disk


def record_job(shared, run, state="completed"):
    """Record job 0 of the sweep with a link to its run."""
    job = shared / "sweep" / "0"
    JobRecord(index=0, overrides=["seed=0"], state=state).write(job)
    (job / "run").symlink_to(run)


def node(disk, job):
    """Run a job like a node with a separate disk."""
    command = [sys.executable, "-m", "trieye.cli", "sweep", "run", "-d", "sweep", "-i", str(job)]
    return subprocess.Popen(command, env=os.environ | {"DISK": str(disk)})


@pytest.mark.long
def test_jobs_resume_on_another_node_and_one_mlflow_store_has_all_runs(shared, tmp_path, command, capfd):
    one, two = tmp_path / "one", tmp_path / "two"
    first = node(one, 0)
    saved = shared / "mirror" / "nodes"
    wait_until(lambda: list(saved.glob("*/checkpoints/*/MANIFEST.json")))
    os.kill(JobRecord.read(shared / "sweep" / "0").pid, signal.SIGKILL)
    first.wait()
    shutil.rmtree(one)  # with the node
    assert node(two, 0).wait(120) == 0
    assert JobRecord.read(shared / "sweep" / "0").objective == 1.0  # it resumed
    shutil.rmtree(two)
    assert "1 of 1 runs are in .trieye_data" in command.output("sweep", "merge", "sweep")
    assert node(two, 1).wait(120) == 0
    for _ in range(2):
        assert "2 of 2 runs are in .trieye_data" in command.output("sweep", "merge", "sweep")
    client = MlflowClient(f"sqlite:///{shared}/.trieye_data/nodes/mlruns/mlflow.db")
    (experiment,) = [entry for entry in client.search_experiments() if entry.name == "nodes"]
    runs = [run for run in client.search_runs([experiment.experiment_id]) if "loss" in run.data.metrics]
    assert len(runs) == 2
    for run in runs:
        points = sorted((point.step, point.value) for point in client.get_metric_history(run.info.run_id, "loss"))
        assert points == [(step, pytest.approx(1.0 / step)) for step in range(1, 31)]
    assert {run.info.status for run in runs} == {"FINISHED"}

    shutil.rmtree(next(saved.glob("*_0")))
    assert main(["sweep", "merge", "sweep"]) == 1
    output = capfd.readouterr().out
    assert "job 0: run 'sweep_0' is not in file://" in output
    assert "1 of 2 runs are in .trieye_data" in output
    assert "a mirror URL needs a scheme" in command.error("sweep", "merge", "sweep", "--mirror", "/mirror")


def test_a_run_that_is_alive_is_never_replaced_by_its_mirror(make_config, tmp_path):
    mirror = f"file://{tmp_path}/mirror"
    config = make_config(persistence={"mirror": mirror, "mirror_interval_s": 3600.0})
    local = LocalRun(RunFiles(config.persistence))
    link = tmp_path / "run"

    def is_mirrored(path):
        health = run.health()["mirror"]
        return health["committed"] == path.name and not health["pending"]

    with trieye.Run(config) as run:
        for step in (1, 2):
            run.step = step
            path = run.save(x=step).wait()
            wait_until(lambda path=path: is_mirrored(path))
        link.symlink_to(run.dir)
        inode = run.dir.stat().st_ino
        # the uploader has published a state, and not recorded it yet
        local.store_record(local.record().model_copy(update={"generation": 1}))
        with pytest.raises(RunLockedError):
            _fetch(link, mirror, config.persistence.get_run_base_dir().parents[2])
        assert run.dir.stat().st_ino == inode


def test_runs_that_mlflow_lacks_are_delivered_until_it_has_them(shared, make_config, tmp_path, command):
    store = tmp_path / "store"
    uri = f"sqlite:///{store}/mlflow.db"
    persistence = {"mirror": f"file://{shared}/mirror", "mlflow_tracking_uri": uri}
    config = make_config(app_name="nodes", sinks={"console": {"enabled": False}}, persistence=persistence)
    with trieye.Run(config) as run:
        run.log("loss", 1.0, step=1)
    record_job(shared, run.dir)
    store.touch()  # a file in the place of the directory
    merge = ["sweep", "merge", "sweep", "--timeout", "0.1", "--root"]
    here, central = tmp_path / "root", tmp_path / "central"
    for root in (here, central, central):
        code, out, _ = command(*merge, root)
        assert code == 1
        assert re.search("job 0: mlflow: . items are missing", out)
    store.unlink()
    store.mkdir()
    for _ in range(2):
        assert "1 of 1 runs" in command.output(*merge, central)
    client = MlflowClient(uri)
    (experiment,) = [entry for entry in client.search_experiments() if entry.name == "nodes"]
    (copy,) = [entry for entry in client.search_runs([experiment.experiment_id]) if entry.data.metrics]
    assert copy.data.metrics["loss"] == 1.0


def test_a_job_that_is_still_running_here_is_not_opened_for_delivery(shared, make_config, command):
    config = make_config(app_name="nodes", persistence={"mirror": f"file://{shared}/mirror"})
    with trieye.Run(config) as run:
        record_job(shared, run.dir, state="running")
        output = command.output("sweep", "merge", "sweep", "--root", config.persistence.root_data_dir)
    assert "job 0 is still running; merge again after it has ended" in output


def test_a_link_to_a_missing_run_is_reported_with_its_job(shared, capfd):
    record_job(shared, "short")
    assert main(["sweep", "merge", "sweep"]) == 1
    output = capfd.readouterr()
    assert "job 0: " in output.out
    assert "points to 'short'" in output.out
    assert "Traceback" not in output.err


def test_merge_never_replaces_another_run_of_the_same_name_and_never_takes_it_for_the_run(
    shared, make_config, tmp_path, command
):
    def train(mirror, root, attempts):
        persistence = {"mirror": f"file://{tmp_path}/{mirror}", "root_data_dir": str(root)}
        config = make_config(app_name="nodes", run_name="first_0", persistence=persistence)
        for _ in range(attempts):  # each uploads a state
            with trieye.Run(config) as run:
                run.log("loss", 1.0, step=1)
        return run.dir

    central = tmp_path / "central"
    own_run = train("own_mirror", central, attempts=2)
    for mirror, attempts in (("newer", 3), ("older", 1)):
        job = shared / "sweep" / "0"
        job.mkdir(exist_ok=True)
        JobRecord(index=0, overrides=["seed=0"], state="completed").write(job)
        relink(job / "run", train(mirror, tmp_path / mirror, attempts))
        files = {path: path.read_bytes() for path in own_run.rglob("*") if path.is_file()}
        code, out, _ = command("sweep", "merge", "sweep", "--mirror", f"file://{tmp_path}/{mirror}", "--root", central)
        assert code == 1
        assert f"job 0: {own_run} is another run than first_0 of the mirror file://{tmp_path}/{mirror}" in out
        assert {path: path.read_bytes() for path in own_run.rglob("*") if path.is_file()} == files
