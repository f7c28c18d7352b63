"""`trieye import`: runs of TensorBoard, MLflow and wandb become runs of trieye."""

import json
import math
import sqlite3
import struct
import zlib
from pathlib import Path

import mlflow
import numpy as np
import pytest
from mlflow.entities import Metric, Param
from torch.utils.tensorboard import SummaryWriter

from tests.json_schemas import validated
from tests.waiting import wait_until
from trieye.cli import main
from trieye.files.run_record import RunRecord
from trieye.history.history import read_history
from trieye.integrations.importing import import_runs
from trieye.integrations.wandb.offline import records_in
from trieye.results.loading import load

STEPS = [0, 10, 20]


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write_tensorboard(seeds=(1, 2)):
    for seed in seeds:
        with SummaryWriter(f"runs/CartPole__dqn__{seed}") as writer:
            table = f"|param|value|\n|-|-|\n|seed|{seed}|\n|learning_rate|0.001|"
            writer.add_text("hyperparameters", table)
            for step in STEPS:
                writer.add_scalar("charts/return", step * seed, step, walltime=1.7e9 + step)
            writer.add_scalar("losses/ünï", 0.5, 5, walltime=1.7e9)
            writer.add_scalar("losses/ünï", math.nan, 6, walltime=1.7e9)
    return "runs", "runs"


def log_return(directory, value, step=1, **options):
    with SummaryWriter(directory) as writer:
        writer.add_scalar("charts/return", value, step, **options)


def write_mlflow():
    client = mlflow.MlflowClient(tracking_uri="sqlite:///old.db")
    experiment = client.create_experiment("tried")
    for seed in (1, 2):
        run = client.create_run(experiment, run_name=f"dqn {seed}", start_time=1_700_000_000_000)
        points = [Metric("charts/return", step * seed, 1_700_000_000_000 + 1000 * step, step) for step in STEPS]
        points.append(Metric("losses/ünï", 0.5, 1_700_000_000_000, 5))
        client.log_batch(run.info.run_id, points, [Param("seed", str(seed)), Param("learning_rate", "0.001")])
        client.set_terminated(run.info.run_id)
    return "old.db", "tried"


def write_mlflow_files(seeds=(1, 2)):
    for seed in seeds:
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


def write_wandb():
    import wandb

    for seed in (1, 2):
        run = wandb.init(
            mode="offline",
            project="tried",
            name=f"dqn {seed}",
            config={"seed": seed, "learning_rate": 0.001},
            dir=str(Path.cwd()),  # wandb's process may have been started elsewhere, by another test
        )
        for step in STEPS:
            run.log({"charts/return": step * seed, "picture": wandb.Image(np.zeros((4, 4)))}, step=step)
        run.summary["best/return"] = 10 * seed
        run.finish()
    files = list(Path("wandb").glob("offline-run-*/*.wandb"))
    # a process of wandb's writes them, and may do so after `finish` has returned
    wait_until(lambda: all(any(record.HasField("exit") for record in records_in(path)) for path in files))
    return "wandb", "tried"


MAKERS = {
    "tensorboard": write_tensorboard,
    "mlflow": write_mlflow,
    "file store": write_mlflow_files,
    "wandb-offline": write_wandb,
}


@pytest.mark.parametrize("kind", [*list(MAKERS)[:-1], pytest.param("wandb-offline", marks=pytest.mark.long)])
def test_foreign_runs_are_imported_with_all_their_points(kind, capfd, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    path, app = MAKERS[kind]()
    before = load(path).runs if kind in {"tensorboard", "mlflow"} else None
    arguments = ["import", "mlflow" if kind == "file store" else kind, path, "--root", "here"]
    assert main(arguments) == 0
    output = capfd.readouterr().out
    assert "[2/2]" in output
    assert (", 1 NaN or infinite values skipped" in output) == (kind in {"tensorboard", "file store"})
    results = load(f"here/{app}")
    assert len(results.runs) == 2
    for run in results.runs:
        seed = run.seed
        assert run.params["learning_rate"] == 0.001
        assert run.status == "FINISHED"
        points = run.source.read([run], None)[run.path]
        assert points["charts/return"].steps.tolist() == STEPS
        assert points["charts/return"].values.tolist() == [step * seed for step in STEPS]
        if kind == "wandb-offline":
            assert points["best/return"].steps.tolist() == STEPS[-1:]
            assert points["best/return"].values.tolist() == [10 * seed]
            assert points.keys() == {"charts/return", "best/return"}
        else:
            assert run.created == pytest.approx(1.7e9)
            assert points["charts/return"].times.tolist() == pytest.approx([1.7e9 + step for step in STEPS], abs=0.01)
            assert points["losses/ünï"].values.tolist() == [0.5]
    assert before is None or sorted(run.seed for run in before) == sorted(run.seed for run in results.runs)
    with sqlite3.connect(f"here/{app}/mlruns/mlflow.db") as store:
        assert store.execute("SELECT count(*) FROM runs WHERE lifecycle_stage = 'active'").fetchone() == (2,)
        assert store.execute("SELECT count(*) FROM metrics WHERE key = 'charts/return'").fetchone() == (6,)


def test_imported_runs_are_unchanged_and_name_clashes_get_a_number(command):
    path, _ = write_tensorboard(seeds=[1])
    assert main(["import", "tensorboard", path, "--app", "old"]) == 0
    (run_dir,) = Path(".trieye_data/old/runs").iterdir()
    before = read_history(run_dir).num_rows
    output = command.output("import", "tensorboard", path, "--app", "../old")
    assert output.count("already imported") == 1
    assert output.endswith("compare them: trieye results table .trieye_data/old\n")
    document = validated(command.output("import", "tensorboard", path, "--app", "old", "--json"))
    assert [(run["run_dir"], run["is_new"]) for run in document["runs"]] == [(str(run_dir.resolve()), False)]
    assert document["problems"] == []
    assert (read_history(run_dir).num_rows, RunRecord.read(run_dir / "run.json").attempt) == (before, 1)
    log_return("others/CartPole__dqn__1", 5.0)
    assert main(["import", "tensorboard", "others", "--app", "old"]) == 0
    assert (run_dir.parent / "CartPole__dqn__1-2").is_dir()


@pytest.mark.long
def test_runs_of_two_projects_with_equal_relative_paths_are_both_imported_once(tmp_path, monkeypatch):
    def directory_of_import(project, path):
        monkeypatch.chdir(tmp_path / project)
        ((imported, *_), _) = import_runs("tensorboard", Path(path), root=tmp_path / "all", app="old")
        return imported.directory.name, imported.is_new

    for number, project in enumerate(("one", "two")):
        log_return(tmp_path / project / "runs/PPO_1", number, walltime=1.7e9 + number)
    assert directory_of_import("one", "runs") == ("PPO_1", True)
    assert directory_of_import("two", "runs") == ("PPO_1-2", True)
    assert directory_of_import("one", "runs") == ("PPO_1", False)
    assert directory_of_import("one", tmp_path / "two/runs") == ("PPO_1-2", False)
    (tmp_path / "two").rename(tmp_path / "moved")
    assert directory_of_import("moved", "runs") == ("PPO_1-2", False)


def test_the_seed_in_a_directory_name_is_imported():
    log_return("runs/PPO_3", 1.0)
    import_runs("tensorboard", Path("runs"), app="old")
    results = load(".trieye_data/old")
    assert results.seeds == [3]
    assert [run.params["seed"] for run in results] == [3]


def wandb_file(*records, path="wandb/offline-run-20260101_000000-one/run-one.wandb"):
    """Write a file as wandb does, and return its path and the position of each record."""
    content, positions = b":W&B\xe1\xbe\x00", []
    for record in records:
        data = record if isinstance(record, bytes) else record.SerializeToString()
        positions.append(len(content))
        content += struct.pack("<IHB", zlib.crc32(b"\1" + data), len(data), 1) + data
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content)
    return Path(path), positions


def wandb_records(rows, step_metrics=()):
    """Return records of a run that logs rows."""
    Record = pytest.importorskip("wandb.proto.wandb_internal_pb2").Record  # noqa: N806 - a class
    yield Record(run={"run_id": "one", "project": "p", "display_name": "one"})
    for pattern, axis in step_metrics:
        yield Record(metric={"glob_name" if "*" in pattern else "name": pattern, "step_metric": axis})
    for number, row in enumerate(rows):
        items = [{"nested_key": [name], "value_json": json.dumps(value)} for name, value in row.items()]
        yield Record(history={"item": items, "step": {"num": number}})


def curve(metric, run=".trieye_data/p/runs/one"):
    table = read_history(run)
    rows = zip(*(table[column].to_pylist() for column in ("metric", "step", "value")), strict=True)
    return [(step, value) for name, step, value in rows if name == metric]


def test_the_wandb_import_respects_step_metrics(capfd):
    rows = [{"env_step": 1000 * n, "train/return": n, "epoch": n / 4, "loss": n, "other": n} for n in range(8)]
    wandb_file(*wandb_records(rows, [("env_step", ""), ("train/*", "env_step"), ("loss", "epoch")]))
    assert main(["import", "wandb-offline", "wandb"]) == 0
    assert curve("train/return") == [(1000 * n, float(n)) for n in range(8)]
    assert curve("loss") == [(n, float(n)) for n in range(8)]
    assert curve("epoch") == [(n, n / 4) for n in range(8)]
    assert curve("other") == [(n, float(n)) for n in range(8)]
    assert "fractional values: epoch" in capfd.readouterr().err


def test_numbers_only_in_a_wandb_summary_are_imported_at_the_last_step():
    *records, last = wandb_records([{"loss": 3}, {"loss": 1}])
    values = {"loss": 1, "test": {"accuracy": 0.5}, "note": "good", "_runtime": 9}
    items = [{"key": name, "value_json": json.dumps(value)} for name, value in values.items()]
    wandb_file(*records, last, type(last)(summary={"update": items}))
    assert main(["import", "wandb-offline", "wandb"]) == 0
    assert curve("test.accuracy") == [(1, 0.5)]
    assert curve("loss") == [(0, 3.0), (1, 1.0)]
    assert set(read_history(".trieye_data/p/runs/one")["metric"].to_pylist()) == {"loss", "test.accuracy"}


def test_a_damaged_wandb_file_is_named_and_read_up_to_the_damage(capfd):
    path, positions = wandb_file(*wandb_records([{"a": n} for n in range(4)]))
    content = bytearray(path.read_bytes())
    content[content.index(b"2", positions[3])] = ord("7")  # the value of a row
    path.write_bytes(content)
    assert main(["import", "wandb-offline", "wandb"]) == 0
    assert curve("a") == [(0, 0.0), (1, 1.0)]
    output = capfd.readouterr().err
    assert f"{path}: read up to the first damaged record: the record at byte {positions[3]} has checksum" in output


def test_unreadable_values_of_a_wandb_file_are_reported_in_one_line(capfd):
    first, *rows = wandb_records([{"a": 1}, {"a": 2}, {"a": 3}])
    for row, json_text in zip(rows[1:], ("{", "1" * 400), strict=True):  # not JSON; a huge number
        row.history.item[0].value_json = json_text
    path, _ = wandb_file(first, *rows)
    assert main(["import", "wandb-offline", "wandb"]) == 0
    notes = [line for line in capfd.readouterr().err.splitlines() if str(path) in line]
    assert len(notes) <= 1
    assert "Traceback" not in "".join(notes)
    assert curve("a") == [(0, 1.0)]


def test_a_file_that_is_not_from_wandb_is_named(capfd):
    path, _ = wandb_file()
    path.write_bytes(b"not wandb at all, but long enough for a header")
    assert main(["import", "wandb-offline", "wandb"]) != 0
    assert f"{path}: skipped: it has no intact run record" in capfd.readouterr().err


def test_damaged_mlflow_meta_files_are_named_and_other_runs_are_imported(command):
    write_mlflow_files(seeds=(1, 2, 3))
    damage = {
        1: ("start_time: abc", "start_time='abc' is not a number of milliseconds since 1970"),
        2: ("name: 'open", "found unexpected end of stream"),
    }
    paths = {seed: Path("mlruns/7") / f"{seed:032x}" / "meta.yaml" for seed in damage}
    for seed, (line, _) in damage.items():
        paths[seed].write_text(f"run_id: x\nrun_name: edited\nstatus: 3\n{line}\n")
    lines = command.error("import", "mlflow", ".", code=1).splitlines()
    for seed, (_, reason) in damage.items():
        (note,) = [line for line in lines if str(paths[seed]) in line]
        assert reason in note
    assert [path.name for path in Path(".trieye_data/tried/runs").iterdir()] == ["dqn_3"]


def test_tags_of_an_imported_run_select_it():
    write_mlflow_files(seeds=[1, 2])
    for name, text in (("variant", "new"), ("mlflow.user", "me")):
        path = Path("mlruns/7") / f"{2:032x}" / "tags" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert main(["import", "mlflow", "."]) == 0
    (run,) = load(".trieye_data/tried").where({"tags.variant": "new"}, strict=True)
    assert (run.name, run.tags) == ("dqn_2", {"tags.variant": "new"})


def test_an_unknown_mlflow_status_is_named(capfd):
    write_mlflow_files(seeds=[1])
    path = Path("mlruns/7") / f"{1:032x}" / "meta.yaml"
    path.write_text("run_id: x\nrun_name: edited\nstatus: [3]\n")
    assert main(["import", "mlflow", "."]) == 0
    assert f"{path}: status=[3] is unknown (choose from: 1=RUNNING" in capfd.readouterr().err


def test_links_out_of_a_foreign_mlflow_store_are_not_followed(tmp_path, command):
    write_mlflow_files(seeds=[1])
    run, outside = tmp_path / "mlruns/7" / f"{1:032x}", tmp_path / "outside"
    (outside / "metrics").mkdir(parents=True)
    (outside / "id_rsa").write_text("PRIVATE")
    (outside / "metrics/secret").write_text("1 2 3\n")
    (outside / "meta.yaml").write_text("run_id: 'f'\nrun_name: foreign\nstatus: 3\nname: other\n")
    (run / "params/key").symlink_to(outside / "id_rsa")
    (run / "tags").symlink_to(outside)
    (run / "metrics/more").symlink_to(outside / "metrics")
    (run / "metrics/secret").symlink_to(outside / "metrics/secret")
    (tmp_path / "mlruns/7/linked").symlink_to(outside)
    (tmp_path / "mlruns/8").symlink_to(outside)
    output = command.error("import", "mlflow", ".", code=1)
    for link in ("params/key", "tags", "metrics/more", "metrics/secret"):
        assert f"{Path('mlruns/7') / run.name / link}: skipped: it is a link out of the store" in output
    (imported,) = load(".trieye_data/tried").runs
    assert imported.name == "dqn_1"
    assert "PRIVATE" not in str(imported.params)
    (points,) = imported.source.read([imported], None).values()
    assert "secret" not in points


def test_media_omitted_from_a_tensorboard_import_are_named(capfd):
    with SummaryWriter("runs/CartPole__dqn__1") as writer:
        writer.add_scalar("charts/return", 1.0, 0)
        writer.add_histogram("weights", np.arange(4.0), 0)
        writer.add_image("frame", np.zeros((3, 2, 2)), 0)
        writer.add_text("note", "hello", 0)
    assert main(["import", "tensorboard", "runs"]) == 0
    (note,) = [line for line in capfd.readouterr().err.splitlines() if "only scalars" in line]
    assert all(name in note for name in ("CartPole__dqn__1", "histograms: weights", "images: frame", "texts: note"))


def test_invalid_times_and_steps_of_event_files_are_named_and_cost_no_other_point(capfd):
    for name, walltimes in (("invalid", (-5.0, 1.7e12)), ("valid", (1.7e9, 1.7e9))):
        with SummaryWriter(f"runs/{name}") as writer:
            for step, walltime in enumerate(walltimes):
                writer.add_scalar("a", 1.0, step, walltime=walltime)
            writer.add_scalar("a", 2.0, 2**62, walltime=1.7e9)
            writer.add_scalar("a", 3.0, 2**62 + 1, walltime=1.7e9)
    assert main(["import", "tensorboard", "runs"]) == 0
    output = capfd.readouterr()
    assert output.out.count("1 metrics, 3 points\n") == 2
    assert output.err.count("left out 1 points: a step must be within") == 2
    assert "runs/invalid: 2 points have no valid Unix time" in output.err
    assert output.err.count("no valid Unix time") == 1
    for run in load(".trieye_data/runs").runs:
        assert curve("a", run.path) == [(0, 1.0), (1, 1.0), (2**62, 2.0)]
        assert 1.7e9 <= run.created < 2e9
        assert run.status == "FINISHED"


def test_a_grown_run_is_imported_again_without_duplicate_points():
    write_tensorboard(seeds=[1])
    assert main(["import", "tensorboard", "runs"]) == 0
    log_return("runs/CartPole__dqn__1", 7.0, step=30)
    assert main(["import", "tensorboard", "runs"]) == 0
    table = read_history(".trieye_data/runs/runs/CartPole__dqn__1")
    rows = zip(table["metric"].to_pylist(), table["step"].to_pylist(), strict=True)
    dropped = [("trieye/dropped/non_finite", 30), ("trieye/dropped/non_finite/losses/ünï", 6)]
    assert sorted(rows) == [*(("charts/return", step) for step in [*STEPS, 30]), ("losses/ünï", 5), *dropped]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tensorboard", "nowhere"], "nowhere does not exist"),
        (["mlflow", "."], "no runs found"),
        (["wandb-offline", "."], "contains no wandb run"),
    ],
    ids=str,
)
def test_a_directory_without_runs_is_named(arguments, message, capfd):
    assert main(["import", *arguments]) != 0
    assert message in capfd.readouterr().err


def test_runs_of_trieye_are_not_imported(make_config, capfd):
    import trieye

    with trieye.Run(make_config(sinks={"tensorboard": {"enabled": True}})) as run:
        run.log("a", 1.0)
    assert main(["import", "tensorboard", str(run.dir)]) != 0
    assert "contains only trieye runs" in capfd.readouterr().err
