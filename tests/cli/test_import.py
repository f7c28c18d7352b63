"""`trieye import`: what TensorBoard, MLflow and wandb hold, as runs."""

import math
import sqlite3
from pathlib import Path

import mlflow
import numpy as np
import pytest
from mlflow.entities import Metric, Param
from torch.utils.tensorboard import SummaryWriter

from tests.waiting import wait_until
from trieye.cli import main
from trieye.files.run_record import RunRecord
from trieye.history.history import read_history
from trieye.integrations.wandb.offline import records_in
from trieye.results.loading import load

STEPS = [0, 10, 20]


@pytest.fixture(autouse=True)
def _own_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def of_tensorboard():
    for seed in (1, 2):
        writer = SummaryWriter(f"runs/CartPole__dqn__{seed}")
        table = f"|param|value|\n|-|-|\n|seed|{seed}|\n|learning_rate|0.001|"
        writer.add_text("hyperparameters", table)
        for step in STEPS:
            writer.add_scalar("charts/return", step * seed, step, walltime=1.7e9 + step)
        writer.add_scalar("losses/ünï", 0.5, 5, walltime=1.7e9)
        writer.add_scalar("losses/ünï", math.nan, 6, walltime=1.7e9)
        writer.close()
    return "runs", "runs"


def of_mlflow():
    client = mlflow.MlflowClient(tracking_uri="sqlite:///old.db")
    experiment = client.create_experiment("tried")
    for seed in (1, 2):
        run = client.create_run(experiment, run_name=f"dqn {seed}", start_time=1_700_000_000_000)
        points = [Metric("charts/return", step * seed, 1_700_000_000_000 + 1000 * step, step) for step in STEPS]
        points.append(Metric("losses/ünï", 0.5, 1_700_000_000_000, 5))
        client.log_batch(run.info.run_id, points, [Param("seed", str(seed)), Param("learning_rate", "0.001")])
        client.set_terminated(run.info.run_id)
    return "old.db", "tried"


def of_a_file_store():
    for seed in (1, 2):
        run = f"mlruns/7/{seed:032x}"
        files = {
            "mlruns/7/meta.yaml": "name: tried\nexperiment_id: '7'\n",
            f"{run}/meta.yaml": f"run_id: '{seed:032x}'\nrun_name: dqn {seed}\nstatus: 3\nlifecycle_stage: active\n"
            "start_time: 1700000000000\n",
            f"{run}/params/seed": str(seed),
            f"{run}/params/learning_rate": "0.001",
            f"{run}/metrics/charts/return": "".join(
                f"{1700000000000 + 1000 * step} {step * seed} {step}\n" for step in STEPS
            ),
            f"{run}/metrics/losses/ünï": "1700000000000 0.5 5\n1700000000000 nan 6\n",
        }
        for name, text in files.items():
            path = Path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return ".", "tried"


def of_wandb():
    import wandb

    for seed in (1, 2):
        run = wandb.init(
            mode="offline", project="tried", name=f"dqn {seed}", config={"seed": seed, "learning_rate": 0.001}
        )
        for step in STEPS:
            run.log({"charts/return": step * seed, "picture": wandb.Image(np.zeros((4, 4)))}, step=step)
        run.finish()
    files = list(Path("wandb").glob("offline-run-*/*.wandb"))
    # a process of wandb's writes them, and may do so after `finish` has returned
    wait_until(lambda: all(any(record.HasField("exit") for record in records_in(path)) for path in files))
    return "wandb", "tried"


MAKERS = {"tensorboard": of_tensorboard, "mlflow": of_mlflow, "file store": of_a_file_store, "wandb-offline": of_wandb}


@pytest.mark.parametrize("kind", MAKERS)
def test_runs_of_others_are_runs_with_all_their_points(kind, capsys, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    path, app = MAKERS[kind]()
    before = load(path).runs if kind in {"tensorboard", "mlflow"} else None
    words = ["import", "mlflow" if kind == "file store" else kind, path, "--root", "here"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "[2/2]" in said
    assert (", 1 that are NaN or infinite left out" in said) == (kind in {"tensorboard", "file store"})
    found = load(f"here/{app}")
    assert len(found.runs) == 2
    for run in found.runs:
        seed = run.seed
        assert run.params["learning_rate"] == 0.001
        assert run.status == "FINISHED"
        points = run.source.read([run], None)[run.path]
        assert points["charts/return"].steps.tolist() == STEPS
        assert points["charts/return"].values.tolist() == [step * seed for step in STEPS]
        if kind != "wandb-offline":
            assert run.created == pytest.approx(1.7e9)
            assert points["charts/return"].times.tolist() == pytest.approx([1.7e9 + step for step in STEPS], abs=0.01)
            assert points["losses/ünï"].values.tolist() == [0.5]
    assert before is None or sorted(run.seed for run in before) == sorted(run.seed for run in found.runs)
    with sqlite3.connect(f"here/{app}/mlruns/mlflow.db") as store:
        assert store.execute("SELECT count(*) FROM runs WHERE lifecycle_stage = 'active'").fetchone() == (2,)
        assert store.execute("SELECT count(*) FROM metrics WHERE key = 'charts/return'").fetchone() == (6,)


def test_runs_that_are_here_are_left_as_they_are_and_names_that_are_taken_get_a_number(capsys):
    path, _ = of_tensorboard()
    assert main(["import", "tensorboard", path, "--app", "old"]) == 0
    (first, second) = sorted((Path(".trieye_data/old/runs")).iterdir())
    before = read_history(first).num_rows
    assert main(["import", "tensorboard", path, "--app", "old"]) == 0
    assert capsys.readouterr().out.count("was imported before") == 2
    assert (read_history(first).num_rows, RunRecord.read(first / "run.json").attempt) == (before, 1)
    writer = SummaryWriter("others/CartPole__dqn__1")
    writer.add_scalar("charts/return", 5.0, 1)
    writer.close()
    assert main(["import", "tensorboard", "others", "--app", "old"]) == 0
    assert (first.parent / "CartPole__dqn__1-2").is_dir()
    assert second.is_dir()


def test_a_run_that_has_grown_is_imported_anew_and_shows_each_point_once():
    of_tensorboard()
    assert main(["import", "tensorboard", "runs"]) == 0
    writer = SummaryWriter("runs/CartPole__dqn__1")
    writer.add_scalar("charts/return", 7.0, 30)
    writer.close()
    assert main(["import", "tensorboard", "runs"]) == 0
    table = read_history(".trieye_data/runs/runs/CartPole__dqn__1")
    rows = zip(table["metric"].to_pylist(), table["step"].to_pylist(), strict=True)
    dropped = [("trieye/dropped/non_finite", 30), ("trieye/dropped/non_finite/losses/ünï", 6)]
    assert sorted(rows) == [*(("charts/return", step) for step in [*STEPS, 30]), ("losses/ünï", 5), *dropped]


@pytest.mark.parametrize("words", [["tensorboard", "nowhere"], ["mlflow", "."], ["wandb-offline", "."]], ids=str)
def test_a_place_without_runs_is_named(words, capsys):
    assert main(["import", *words]) != 0
    said = capsys.readouterr().err
    assert "nowhere" in said or "no run" in said


def test_runs_of_ours_are_not_imported(make_config, capsys):
    import trieye

    with trieye.Run(make_config(sinks={"tensorboard": {"enabled": True}})) as run:
        run.log("a", 1.0)
    assert main(["import", "tensorboard", str(run.dir)]) != 0
    assert "those of trieye already" in capsys.readouterr().err
