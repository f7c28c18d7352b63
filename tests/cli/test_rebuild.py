import shutil
import time

import pytest

import trieye
from tests.cli.conftest import config_in, losses
from tests.curves import curves_in_mlflow, curves_in_tensorboard, mlflow_runs, record_of
from tests.damage import contents
from tests.moved import moved
from trieye.cli import main
from trieye.runs.config import config_of


@pytest.fixture(scope="session")
def _closed(tmp_path_factory):
    """A run that was finished, with TensorBoard and MLflow."""
    root = tmp_path_factory.mktemp("closed")
    config = config_in(root, sinks={sink: {"enabled": True} for sink in ("tensorboard", "mlflow", "console")})
    with trieye.Run(config) as run:
        run.log_params({"lr": 0.1})
        for step in range(300):
            run.log("loss", 1.0 / (step + 1), step=step)
    assert main(["close", str(run.dir)]) == 0  # on a busy machine MLflow may not have got everything
    return root


@pytest.fixture
def closed_run(_closed, tmp_path):
    shutil.copytree(_closed, tmp_path / "root")
    return moved(tmp_path / "root" / "agents" / "runs" / "first")


def delete_event_files(run_dir):
    for path in run_dir.glob("events.*"):
        path.unlink()


@pytest.mark.long
def test_rebuild_refills_deleted_stores_and_duplicates_no_points(closed_run, command):
    before = record_of(closed_run)
    delete_event_files(closed_run)
    shutil.rmtree(closed_run.parents[1] / "mlruns")
    assert "mlflow, tensorboard: delivered all 3" in command.output("rebuild", closed_run)
    mlflow_run_id = record_of(closed_run).mlflow_run_id
    command.output("rebuild", closed_run)
    assert curves_in_tensorboard(closed_run)["loss"] == losses()
    assert curves_in_mlflow(closed_run)["loss"] == losses()
    _, (run,) = mlflow_runs(closed_run)
    assert (run.info.run_id, run.info.status, run.data.params["lr"]) == (mlflow_run_id, "FINISHED", "0.1")
    assert record_of(closed_run) == before.model_copy(update={"mlflow_run_id": mlflow_run_id})


@pytest.mark.long
def test_a_run_in_the_mlflow_trash_fails_at_once_with_the_restore_command(closed_run, capfd):
    client, (run,) = mlflow_runs(closed_run)
    client.delete_run(run.info.run_id)
    began = time.monotonic()
    assert main(["rebuild", str(closed_run)]) == 1
    assert time.monotonic() - began < 60  # of 300 without progress
    assert f"mlflow runs restore --run-id {run.info.run_id}" in capfd.readouterr().err
    client.restore_run(run.info.run_id)
    assert main(["close", str(closed_run)]) == 0
    assert curves_in_mlflow(closed_run)["loss"] == losses()


def test_only_the_selected_sinks_are_opened(closed_run):
    store = closed_run.parents[1] / "mlruns"
    shutil.rmtree(store)
    delete_event_files(closed_run)
    assert main(["rebuild", str(closed_run), "--sink", "tensorboard"]) == 0
    assert curves_in_tensorboard(closed_run)["loss"] == losses()
    assert not (store / "mlflow.db").exists()


def test_rebuilding_a_killed_run_closes_it(killed_run):
    run = killed_run()
    assert main(["rebuild", str(run)]) == 0
    assert curves_in_tensorboard(run)["loss"] == losses()
    assert record_of(run).status == "KILLED"


@pytest.mark.long
def test_rebuild_omits_points_superseded_by_a_rewind(killed_run):
    run_dir = killed_run("saves")
    with trieye.Run(config_of(run_dir)) as run:
        assert run.restore()
        for step in range(200, 250):
            run.log("loss", -1.0, step=step)
    record = record_of(run_dir)
    assert main(["rebuild", str(run_dir)]) == 0
    assert curves_in_tensorboard(run_dir)["loss"] == [*losses(end=200), *((step, -1.0) for step in range(200, 250))]
    assert record_of(run_dir) == record
    assert (record.attempt, record.status) == (2, "FINISHED")


def test_a_sink_that_the_run_lacks_is_rejected(closed_run, command):
    before = contents(closed_run)
    for name, hint in (("tensorbord", "did you mean 'tensorboard'?"), ("console", "")):
        err = command.error("rebuild", closed_run, "--sink", name)
        assert all(part in err for part in (f"--sink {name}: ", hint, "(it has: mlflow, tensorboard)"))
    assert contents(closed_run) == before
