"""Jobs of Hydra programs without trieye: return values, and the files of their loggers."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf
from tensorboardX import SummaryWriter

from tests import warm
from trieye.cli import main
from trieye.exceptions import ConfigurationError
from trieye.process.lock import RunLock
from trieye.results import load
from trieye.sweeps.jobs import JobRecord
from trieye.sweeps.record import SweepRecord

WARM = warm.LIGHT
PROGRAM = """
import csv
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig


@hydra.main(version_base=None, config_path="conf", config_name="config")
def fit(config):
    output_dir = Path(HydraConfig.get().runtime.output_dir)
    (output_dir / "csv/version_0").mkdir(parents=True)
    with open(output_dir / "csv/version_0/metrics.csv", "w") as file:
        rows = csv.writer(file)
        rows.writerow(["epoch", "step", "train_loss", "val_loss", "note"])
        for step in range(20):
            rows.writerow([step // 5, step, config.lr / (step + 1), step if step % 5 == 4 else "", "x"])
    if config.model.name == "deep":
        return {"accuracy": config.lr * 2, "test": {"loss": 1.5}, "name": "deep"}
    return config.lr + config.seed


fit()
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory, warm_programs):
    """Return a project with a sweep of the trieye launcher, `ours`, and one of Hydra's basic launcher, `basic`."""
    path = tmp_path_factory.mktemp("project")
    (path / "conf/model").mkdir(parents=True)
    (path / "fit.py").write_text(PROGRAM)
    (path / "conf/config.yaml").write_text("defaults: [model: flat, _self_]\nlr: 0.1\nseed: 0\npassword: hunter2\n")
    for name in ("flat", "deep"):
        (path / f"conf/model/{name}.yaml").write_text(f"name: {name}\n")
    trieye_overrides = ["hydra/sweeper=trieye", "hydra/launcher=trieye"]
    trieye_overrides += ["hydra.launcher.isolate=none", "hydra.sweeper.mode=min"]
    subdir = "hydra.sweep.subdir=${model.name}-${lr}-${seed}"
    for name, arguments in (
        ("ours", [*trieye_overrides, subdir, "lr=0.5,0.2", "seed=0,1", "model=flat,deep"]),
        ("basic", ["lr=0.5,0.2", "seed=0,1"]),
    ):
        command = [sys.executable, "fit.py", "-m", f"hydra.sweep.dir=multirun/{name}", *arguments]
        subprocess.run(command, cwd=path, check=True, capture_output=True)
    return path


@pytest.fixture(autouse=True)
def _in_the_project(project, monkeypatch):
    monkeypatch.chdir(project)


def results_json(capsys, *arguments):
    assert main(["results", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.long
def test_a_table_title_mentions_points_if_jobs_have_several(capsys):
    assert main(["results", "table", "multirun/basic", "--metric", "train_loss"]) == 0
    title = "train_loss, mean of the last 10% of the points of each run"
    assert capsys.readouterr().out.splitlines()[0] == title


def test_jobs_have_metrics_from_returned_dicts_redacted_params_and_group_choices(capsys):
    results = load("multirun/ours").where(model="deep")
    assert {"objective/accuracy", "objective/test/loss", "train_loss"} <= set(results.metrics())
    np.testing.assert_allclose(results.values("objective/accuracy"), [[1.0, 1.0], [0.4, 0.4]])
    run = results.runs[0]
    assert (run.name, run.app, run.status, run.job, run.seed) == ("ours/1", "fit", "FINISHED", 1, 0)
    shown = "${oc.env:TRIEYE_SECRET_PASSWORD}"
    assert dict(run.params) == {"model.name": "deep", "lr": 0.5, "seed": 0, "password": shown}
    assert dict(run.varied) == {"model": "deep", "lr": 0.5, "seed": 0}


def test_each_objective_of_a_sweep_has_its_own_mode(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    SweepRecord(spec=["lr=1,2"], modes=["max", "min"], size=2, varying=["lr"]).write(tmp_path / "first")
    for index, (accuracy, time_s) in enumerate([(0.9, 5.0), (0.8, 2.0)]):
        record = JobRecord(index=index, overrides=[f"lr={index + 1}"], state="completed")
        record.recorded_objectives = {"accuracy": accuracy, "time_s": time_s}
        record.write(tmp_path / f"first/{index}")
    for metric, best in (("objective/accuracy", 1), ("objective/time_s", 2)):
        groups = results_json(capsys, "table", "first", "--metric", metric)["groups"]
        assert groups[0]["values"] == {"lr": best}
    assert main(["results", "table", "first"]) == 2
    assert "add --metric (choose from: objective/accuracy, objective/time_s)" in capsys.readouterr().err


def test_the_mode_of_a_sweep_is_unknown_if_its_record_is_damaged(tmp_path):
    JobRecord(index=0, overrides=[], state="completed", objective=0.9).write(tmp_path / "0")
    (tmp_path / "sweep.json").write_text('{"spec":')
    results = load(tmp_path)
    assert [run.mode("objective") for run in results.runs] == [None]
    assert any("its varying keys are unknown" in text for text in results.problems)


def test_sources_with_different_modes_need_an_explicit_mode(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, mode in (("first", "min"), ("second", "max")):
        SweepRecord(spec=["lr=1"], mode=mode, size=1, varying=["lr"]).write(tmp_path / name)
        JobRecord(index=0, overrides=["lr=1"], state="completed", objective=1.0).write(tmp_path / name / "0")
    assert main(["results", "select", "first", "second"]) == 2
    error = capsys.readouterr().err
    assert "objective: the recorded modes differ (min in first, max in second)" in error
    assert "--mode min" in error
    assert main(["results", "select", "first", "second", "--mode", "min"]) == 0


@pytest.mark.parametrize("name", ["ours", "basic"])
def test_csv_files_of_both_launchers_are_curves_over_their_steps(name):
    results = load(f"multirun/{name}").where({"model.name": "flat"})
    curve = results.curve("train_loss", grid=np.array([0.0, 19.0]))
    np.testing.assert_allclose(curve.y, [[[0.5, 0.025]] * 2, [[0.2, 0.01]] * 2])
    assert results.series("val_loss")[0].steps.tolist() == [4, 9, 14, 19]
    assert "note" not in results.metrics()
    assert results.problems == []


@pytest.mark.parametrize("name", ["ours", "basic"])
@pytest.mark.parametrize(("created_ns", "num_found"), [(1_700_000_000_004_000_000, 1), (1_700_000_000_000_000_000, 2)])
def test_a_renamed_sweep_counts_once_next_to_its_export_unless_its_times_are_inexact(
    name, created_ns, num_found, project, tmp_path
):
    sweep = shutil.copytree(project / "multirun" / name, tmp_path / "first", symlinks=True)
    for path in sweep.glob("**/.hydra"):
        os.utime(path, ns=(created_ns, created_ns))
    num_runs = len(load(sweep))
    load(sweep).export(tmp_path / "points.parquet")
    results = load([tmp_path / "points.parquet", sweep.rename(tmp_path / "moved")])
    assert len(results) == num_found * num_runs
    assert sum(Path(run.path).is_relative_to(tmp_path / "moved") for run in results) == num_runs


def test_rows_of_csv_files_without_a_step_or_a_time_are_reported(tmp_path):
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra/overrides.yaml").write_text("[]")
    (tmp_path / "log.csv").write_text("epoch,loss\n0.5,9\n1,3\n1.5,2\n2,1\n")
    results = load(tmp_path)
    assert results.series("loss")[0].values.tolist() == [3, 1]
    (problem,) = results.problems
    assert problem.endswith(
        "2 of 4 rows are skipped, because steps are integers and 'epoch' has fractions there; add a column step"
    )
    results.curve("loss", x="wall_time", grid=3)
    assert results.problems[-1].endswith("not on the axis wall_time: its points have no times")


def test_a_basic_launcher_sweep_is_compared_by_its_overrides(capsys):
    assert main(["results", "table", "multirun/basic"]) == 2
    assert "add --metric (choose from: epoch, train_loss, val_loss)" in capsys.readouterr().err
    rows = results_json(capsys, "table", "multirun/basic", "--metric", "train_loss", "--mode", "min")["groups"]
    assert [(row["values"], row["iqm"]["n"]) for row in rows] == [({"lr": 0.2}, 2), ({"lr": 0.5}, 2)]


def test_jobs_of_a_basic_launcher_differ_in_their_numbers_of_tokens(tmp_path):
    (tmp_path / "multirun.yaml").touch()
    for index, tokens in enumerate([8, 16]):
        directory = tmp_path / str(index)
        (directory / ".hydra").mkdir(parents=True)
        (directory / ".hydra/overrides.yaml").write_text(f"[max_token={tokens}]")
        (directory / "metrics.csv").write_text("step,loss\n1,0.5\n")
    assert sorted(run.varied["max_token"] for run in load(tmp_path).runs) == [8, 16]


def test_a_table_of_return_values_in_the_mode_of_the_sweeper_is_written_in_the_format_of_its_suffix(capsys):
    arguments = ["results", "table", "multirun/ours", "--where", "model.name=flat", "--confidence", "0.9", "-o"]
    texts = {suffix: Path(f"tables/scores.{suffix}") for suffix in ("csv", "md", "tex")}
    for suffix, path in texts.items():
        assert main([*arguments, str(path)]) == 0
        assert capsys.readouterr().out.splitlines()[0] == "objective"
        texts[suffix] = path.read_text()
    rows = [(row["lr"], row["runs"], row["missing"], row["iqm"]) for row in csv.DictReader(texts["csv"].splitlines())]
    assert [(lr, runs, missing, float(iqm)) for lr, runs, missing, iqm in rows] == [
        ("0.2", "2", "0", 0.7), ("0.5", "2", "0", 1.0)
    ]  # fmt: skip
    assert "| 90% CI |" in texts["md"].splitlines()[0]
    assert texts["md"].splitlines()[2] == "| 0.2 | 2 | 0.7 | [0.2, 1.2] | 0.7 | 0.7 | 0.7071 |"
    assert "0.2 & 2 & 0.7 & [0.2, 1.2] & 0.7 & 0.7 & 0.7071 \\\\" in texts["tex"]
    assert r"& 90\% CI &" in texts["tex"]
    assert r"run\_median" in texts["tex"]
    assert main([*arguments, "scores.mdd"]) == 2
    assert "unknown format 'mdd'; did you mean 'md'? (choose from: .csv, .md, .tex, .png" in capsys.readouterr().err


def hydra_job(directory):
    (directory / ".hydra").mkdir(parents=True)
    (directory / ".hydra/config.yaml").write_text("lr: 0.5\n")
    return directory


def test_objects_in_the_config_of_a_job_are_plain_params_and_none_is_constructed(tmp_path):
    job = hydra_job(tmp_path / "job")
    config = OmegaConf.create({"data": Path("/data/x"), "here": Path(), "lr": 0.5}, flags={"allow_objects": True})
    planted = f"bad: !!python/object/apply:os.mkdir [{tmp_path}/made]\nact: !!python/name:os.mkdir ''\n"
    nested = "net: !!python/object:net.Net {width: 8, password: hunter2}\n"
    (job / ".hydra/config.yaml").write_text(OmegaConf.to_yaml(config) + planted + nested)
    (job / "metrics.csv").write_text("step,loss\n0,0.5\n")
    results = load(job)
    params = dict(results.runs[0].params)
    assert "hunter2" not in params.pop("net.password")
    assert params == {
        "data": "/data/x", "here": ".", "lr": 0.5, "bad": [f"{tmp_path}/made"],
        "act": "tag:yaml.org,2002:python/name:os.mkdir", "net.width": 8,
    }  # fmt: skip
    assert not (tmp_path / "made").exists()
    assert results.problems == []


def test_a_damaged_config_of_a_job_is_reported(tmp_path):
    job = hydra_job(tmp_path / "job")
    (job / ".hydra/config.yaml").write_text("lr: [0.5\n")
    (job / "metrics.csv").write_text("step,loss\n0,0.5\n")
    (problem,) = load(job).problems
    assert problem.startswith(f"{job}/.hydra/config.yaml: ")
    assert "line 2" in problem


def test_event_directories_prefix_equal_tags_and_attempts_form_one_curve(tmp_path):
    job = hydra_job(tmp_path / "job")
    for directory, tag, first, values in (
        ("tb/train", "loss", 0, [3.0, 2.0]),
        ("tb/val", "loss", 0, [5.0]),
        ("lightning_logs/version_0", "acc", 0, [0.1, 0.2, 0.3]),
        ("lightning_logs/version_1", "acc", 2, [0.9, 1.0]),
    ):
        with SummaryWriter(str(job / directory)) as writer:
            for step, value in enumerate(values, first):
                writer.add_scalar(tag, value, step, walltime=1e9 + step)
    results = load(job)
    assert results.metrics() == ["acc", "tb/train/loss", "tb/val/loss"]
    (series,) = results.series("acc")
    assert series.steps.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(series.values, [0.1, 0.2, 0.9, 1.0], rtol=1e-6)
    assert results.runs[0].params == {"lr": 0.5}


def test_attempts_are_ordered_by_number_in_directories_and_files(tmp_path):
    job = hydra_job(tmp_path / "job")
    for attempt in (0, 9, 10):
        (job / f"logs/version_{attempt}").mkdir(parents=True)
        (job / f"logs/version_{attempt}/metrics.csv").write_text(f"step,loss\n{attempt},0.5\n")
        (job / f"version_{attempt}.csv").write_text(f"step,acc\n{attempt},0.5\n")
    results = load(job)
    for metric in ("loss", "acc"):
        assert results.series(metric)[0].steps.tolist() == [0, 9, 10]


def test_an_mlflow_file_store_and_an_mlflow_database_in_a_job_are_read(tmp_path):
    from mlflow import MlflowClient

    job = hydra_job(tmp_path / "job")
    run = job / "mlruns/0/abc"
    (run / "metrics/eval").mkdir(parents=True)
    (run / "metrics/eval/return").write_text("1000 1.5 0\n2000 2.5 10\n")
    (run / "meta.yaml").write_text("run_id: abc\nrun_name: x\nstatus: 3\nlifecycle_stage: active\nstart_time: 1000\n")
    (run.parent / "meta.yaml").write_text("name: Default\nlifecycle_stage: active\n")
    (series,) = load(job).series("eval/return")
    assert (series.steps.tolist(), series.values.tolist()) == ([0, 10], [1.5, 2.5])
    (run / "tags").mkdir()
    (run / "tags/variant").write_text("new")
    (run / "metrics/eval/return").write_text("1000 1.5 0\n2000 2.5 10\nx 1 11\n3000 3.5 1")  # the last one of step 12
    store = load(job / "mlruns")
    assert [loaded.name for loaded in store.where({"tags.variant": "new"}).runs] == ["x"]
    assert store.curve("eval/return", x="env_steps", grid=2).y.tolist() == [[[1.5, 2.5]]]  # as from a database
    assert any("2 of 4 lines are skipped" in text for text in store.problems)
    client = MlflowClient(tracking_uri=f"sqlite:///{job}/mlflow.db")
    run_id = client.create_run(client.create_experiment("e", artifact_location=job.as_uri())).info.run_id
    client.log_metric(run_id, "val/loss", 0.5, step=3)
    assert load(job).metrics() == ["eval/return", "val/loss"]


@pytest.mark.parametrize(
    ("text", "metrics"),
    [
        (",loss\n0,1.0\n1,0.5\n", ["loss"]),  # with an unnamed pandas index
        ("time/total_timesteps,rollout/ep_rew_mean\n2048,1\n4096,2\n", ["rollout/ep_rew_mean"]),
        ("epoch,loss\n0,1.0\n1,nan\n2", ["loss"]),  # the last row is incomplete
        (f"step,id\n0,{2**60 + 1}\n1,3\n", ["id"]),  # not exact as a float
    ],
)
def test_step_columns_of_csv_files_are_not_metrics_and_partial_rows_are_skipped(tmp_path, text, metrics):
    (hydra_job(tmp_path / "job") / "progress.csv").write_text(text)
    assert load(tmp_path / "job").metrics() == metrics
    assert len(load(tmp_path / "job").series(metrics[0])[0].steps) == 2


def test_cells_that_are_not_numbers_are_skipped_and_counted(tmp_path):
    rows = "step,loss,note,tag\n0,0.5,x,2026_1\n1,N/A,,b\n2,-,y,b\nstep,loss,note,tag\n3,nan,x,b\n4,,9,b\n"
    rows += "".join(f"{step},{step / 10},x,b\n" for step in (5, 6, 7, 8))
    (hydra_job(tmp_path / "job") / "metrics.csv").write_text(rows)
    results = load(tmp_path / "job")
    assert results.metrics() == ["loss"]
    (series,) = results.series("loss")
    assert series.steps.tolist() == [0, 3, 5, 6, 7, 8]
    np.testing.assert_array_equal(series.values, [0.5, np.nan, 0.5, 0.6, 0.7, 0.8])
    assert [text.partition("metrics.csv: ")[2].partition(" are skipped")[0] for text in results.problems] == [
        "1 of 10 cells of its column 'step'",
        "3 of 10 cells of its column 'loss'",
        "its column 'note' is left out: it has more distinct texts than numbers",
    ]


def test_a_metric_with_a_comma_and_a_value_with_operators_are_selected(tmp_path, capsys):
    for name, rule in (("first", "a=b>=c"), ("second", "a")):
        job = hydra_job(tmp_path / name)
        (job / ".hydra/config.yaml").write_text(f"rule: {rule}\n")
        (job / "metrics.csv").write_text('step,"val, loss",acc\n0,0.5,1\n')
    selected = (str(tmp_path), "--where", "rule=a=b>=c", "--metric")
    document = results_json(capsys, "table", *selected, "val, loss")
    assert (document["metric"], document["groups"][0]["iqm"]["n"]) == ("val, loss", 1)
    assert results_json(capsys, "table", *selected, "acc, other")["metric"] == "acc"
    assert results_json(capsys, "export", *selected, "val, loss", "-o", str(tmp_path / "points.csv"))["num_points"] == 1


def test_loading_only_jobs_without_points_is_an_error_with_the_supported_formats(tmp_path, capsys):
    (hydra_job(tmp_path / "job") / "data.csv").write_text("x,y\n1,2\n")
    with pytest.raises(ConfigurationError, match=r"TensorBoard, MLflow or CSV files \(return values are only"):
        load(tmp_path)


def test_a_sweep_without_results_is_an_error_with_the_supported_formats(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "plan", "seed=1,2", "-o", "first"]) == 0
    assert main(["results", "table", "first"]) == 2
    error = capsys.readouterr().err
    assert "no job of first has a trieye run, a returned number or dict, or TensorBoard, MLflow or CSV" in error
    assert "2 missing" in error
    assert "trieye sweep status first" in error


def test_unstarted_jobs_are_waiting_only_while_another_process_drives_the_sweep(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "plan", "seed=1,2", "-o", "first"]) == 0
    JobRecord(index=0, overrides=["seed=1"], state="completed").write(tmp_path / "first/0")
    program = "import sys; from pathlib import Path; from trieye.sweeps.record import lock_in\n"
    program += "with lock_in(Path('first')): print('held', flush=True); sys.stdin.read()"
    driver = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert driver.stdout.readline() == b"held\n"
    capsys.readouterr()

    def counts():
        assert main(["sweep", "status", "first", "--json"]) == 1
        return json.loads(capsys.readouterr().out)["counts"]

    assert counts() == {"completed": 1, "waiting": 1}
    driver.communicate(b"", 30)
    assert counts() == {"completed": 1, "missing": 1}
    with RunLock(tmp_path / "first/sweep.lock"):  # held by this process
        assert counts() == {"completed": 1, "missing": 1}
