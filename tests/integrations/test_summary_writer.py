"""`SummaryWriter` compared with torch's: the same calls, read back from event files, MLflow and the history."""

import os
import sqlite3
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter as TorchWriter

import trieye
from trieye.files.run_record import RunRecord
from trieye.history.history import read_history
from trieye.integrations import opening, tensorboard
from trieye.integrations.tensorboard import SummaryWriter
from trieye.runs import attempts

CLEANRL = "|param|value|\n|-|-|\n|learning_rate|0.00025|\n|seed|1|"


@pytest.fixture(autouse=True)
def _in_project(tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")


def run_dir(name="first"):
    return Path(".trieye_data/project/runs") / name


def read(directory):
    shown = EventAccumulator(str(directory), size_guidance={"scalars": 0, "images": 0, "tensors": 0})
    shown.Reload()
    return shown


def scalars(directory):
    shown = read(directory)
    return {tag: sorted((one.step, one.value) for one in shown.Scalars(tag)) for tag in shown.Tags()["scalars"]}


def in_mlflow(name="first"):
    with sqlite3.connect(".trieye_data/project/mlruns/mlflow.db") as store:
        rows = store.execute(
            "SELECT m.key, m.step, m.value FROM metrics m JOIN runs r USING (run_uuid) WHERE r.name = ?"
            " ORDER BY m.key, m.step, m.value",
            (name,),
        )
        return list(rows)


def points(name="first"):
    table = read_history(run_dir(name))
    return list(zip(table["metric"].to_pylist(), table["step"].to_pylist(), table["value"].to_pylist(), strict=True))


def call_both(calls):
    """Make the same calls of both writers, and return the events that TensorBoard reads from each."""
    for writer in (TorchWriter("theirs"), SummaryWriter("runs/first")):
        with writer:
            calls(writer)
    return read("theirs"), read("runs/first")


@pytest.mark.usefixtures("mlflow")
def test_scalars_equal_those_of_torch(tmp_path):
    def calls(writer):
        for step in range(20):
            writer.add_scalar("losses/policy", torch.tensor(step / 3.0, requires_grad=True), step)
            writer.add_scalar("losses/policy", np.float32(step + 100), step)
        writer.add_scalar("charts/ünï code", np.array([2.5]), np.int64(7))
        writer.add_scalar("charts/later first", 2, 30)
        writer.add_scalar("charts/later first", 1, 10)
        writer.add_scalar("no step", np.True_)
        writer.add_scalar("half", torch.tensor([[0.5]], dtype=torch.bfloat16), 3.0)

    call_both(calls)
    assert scalars("runs/first") == scalars("theirs")
    expected = sorted((tag, step, value) for tag, values in scalars("theirs").items() for step, value in values)
    for actual in (in_mlflow(), sorted(points())):
        assert [(tag, step, float(np.float32(value))) for tag, step, value in actual] == expected


def test_add_scalars_logs_one_metric_per_name_and_wall_times_are_preserved():
    with SummaryWriter("runs/first") as writer:
        writer.add_scalar("a", 1.0, 1, walltime=1_700_000_000.5)
        writer.add_scalars("returns", {"train": 1.0, "eval": torch.tensor(2.0)}, 5)
    assert scalars("runs/first") == {"a": [(1, 1.0)], "returns/eval": [(5, 2.0)], "returns/train": [(5, 1.0)]}
    assert read("runs/first").Scalars("a")[0].wall_time == 1_700_000_000.5
    assert read_history(run_dir(), ["a"])["wall_time"].to_pylist() == [1_700_000_000.5]


def test_histograms_contain_the_counts_of_torch():
    values = torch.randn(5000)

    def calls(writer):
        for bins in ("tensorflow", "auto", 10):
            writer.add_histogram(str(bins), values, 3, bins=bins)

    theirs, ours = call_both(calls)
    for tag in ("tensorflow", "auto", "10"):
        ((expected,), (actual,)), proto = (theirs.Histograms(tag), ours.Tensors(tag)), ours.Tensors(tag)[0].tensor_proto
        rows = np.array(proto.float_val or np.frombuffer(proto.tensor_content, "<f8")).reshape(-1, 3)
        assert actual.step == expected.step == 3
        assert rows[:, 2].sum() == expected.histogram_value.num == 5000
        buckets = zip(expected.histogram_value.bucket_limit, expected.histogram_value.bucket, strict=True)
        num_negative = sum(count for limit, count in buckets if limit <= 0)
        assert rows[rows[:, 1] <= 1e-9][:, 2].sum() == pytest.approx(num_negative, abs=5000 / 20)


def pixels(shown, tag):
    from io import BytesIO

    from PIL import Image

    (one,) = shown.Images(tag)
    return one.step, np.asarray(Image.open(BytesIO(one.encoded_image_string)).convert("RGB")).astype(int)


def test_images_and_tiled_batches_equal_those_of_torch():
    pictures = {
        "CHW": torch.rand(3, 8, 12) * 1.2,
        "HWC": torch.randint(0, 255, (8, 12, 3), dtype=torch.uint8),
        "HW": torch.rand(8, 12),
    }
    batch = torch.rand(11, 3, 6, 5)

    def calls(writer):
        for layout, picture in pictures.items():
            writer.add_image(layout, picture, 4, dataformats=layout)
        writer.add_image("gray", pictures["HW"][None], 4)
        writer.add_images("batch", batch, 4)

    theirs, ours = call_both(calls)
    for tag in (*pictures, "gray", "batch"):
        (step, expected), (our_step, actual) = pixels(theirs, tag), pixels(ours, tag)
        assert step == our_step == 4
        assert np.abs(expected - actual).max() <= 1, tag


def test_figures_are_drawn_and_closed():
    from matplotlib import pyplot as plt

    def calls(writer):
        one = plt.figure(figsize=(2, 1))
        one.gca().plot([1, 2])
        writer.add_figure("figure", one, 2)
        writer.add_figure("figures", [plt.figure(figsize=(1, 1)), plt.figure(figsize=(1, 1))], 2)
        assert plt.get_fignums() == []

    theirs, ours = call_both(calls)
    assert np.abs(pixels(theirs, "figure")[1] - pixels(ours, "figure")[1]).max() <= 1
    assert pixels(theirs, "figures")[1].shape == pixels(ours, "figures")[1].shape


def test_a_video_is_logged():
    with SummaryWriter("runs/first") as writer:
        writer.add_video("play", torch.randint(0, 255, (2, 5, 3, 8, 8), dtype=torch.uint8), 6, fps=10)
    assert len(read("runs/first").Images("play")) == 1


@pytest.mark.long
@pytest.mark.usefixtures("mlflow")
def test_texts_equal_those_of_torch_and_a_parameter_table_becomes_parameters():
    def calls(writer):
        writer.add_text("hyperparameters", CLEANRL)
        writer.add_text("note", "grüße " + "x" * 1_000_000, 5)

    theirs, ours = call_both(calls)
    for tag in ("hyperparameters/text_summary", "note/text_summary"):
        (expected,), (actual,) = theirs.Tensors(tag), ours.Tensors(tag)
        assert (expected.step, expected.tensor_proto.string_val) == (actual.step, actual.tensor_proto.string_val)
    with sqlite3.connect(".trieye_data/project/mlruns/mlflow.db") as store:
        params = dict(store.execute("SELECT key, value FROM params"))
    assert params == {"learning_rate": "0.00025", "seed": "1"}


@pytest.mark.usefixtures("mlflow")
def test_hyperparameters_become_parameters_of_the_run():
    with SummaryWriter("runs/first") as writer:
        writer.add_hparams({"lr": 0.1, "on": True}, {"hparam/accuracy": 0.9})
        with pytest.raises(TypeError, match="expected dicts as hparam_dict and metric_dict"):
            writer.add_hparams({"seed": 1}, 0.5)
    assert scalars("runs/first") == {"hparam/accuracy": [(0, pytest.approx(0.9))]}
    with sqlite3.connect(".trieye_data/project/mlruns/mlflow.db") as store:
        assert dict(store.execute("SELECT key, value FROM params")) == {"lr": "0.1", "on": "True"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_calls_that_only_tensorboard_shows_print_a_note(capsys):
    def calls(writer):
        writer.add_graph(torch.nn.Linear(3, 2), torch.zeros(1, 3))
        writer.add_pr_curve("pr", torch.tensor([0, 1, 1]), torch.tensor([0.1, 0.7, 0.8]), 0)
        writer.add_embedding(torch.randn(3, 4), global_step=0)

    theirs, ours = call_both(calls)
    assert theirs.Tags()["graph"]
    assert ours.Tags()["graph"]
    assert "pr" in ours.Tags()["tensors"]
    output = capsys.readouterr().err
    for name in ("add_graph", "add_pr_curve", "add_embedding"):
        assert output.count(f"{name} is shown by TensorBoard only") == 1


@pytest.mark.long
def test_a_value_that_is_not_a_number_is_rejected():
    with SummaryWriter("runs/first") as writer:
        for value in ("text", None, torch.zeros(3), {"a": 1}):
            with pytest.raises((TypeError, ValueError)):
                writer.add_scalar("a", value, 1)


def test_the_log_directory_is_a_link_to_the_run_unless_it_exists(capsys):
    Path("runs/second").mkdir(parents=True)
    with SummaryWriter("runs/first") as writer, SummaryWriter("runs/second"):
        assert writer.log_dir == writer.get_logdir() == "runs/first"
        Path("runs/first/model.pt").write_bytes(b"x")  # as CleanRL saves its models
    assert (run_dir() / "model.pt").exists()
    assert [Path("runs", name).is_symlink() for name in ("first", "second")] == [True, False]
    assert "runs/second already exists and is not replaced by a link" in capsys.readouterr().err


def test_a_log_directory_below_the_link_of_a_deleted_run_is_not_linked(capsys):
    Path("runs").mkdir()
    Path("runs/first").symlink_to("deleted")
    with SummaryWriter("runs/first/eval") as writer:
        writer.add_scalar("a", 1.0, 1)
    assert points("first-eval") == [("a", 1, 1.0)]
    error = capsys.readouterr().err
    assert "runs/first/eval cannot become a link" in error
    assert f"the run is in {writer.run.dir}" in error


def test_run_names_never_leave_the_root():
    for log_dir, name in (("../../etc/x y", "etc-x_y"), ("logs/a/b", "logs-a-b"), ("runs/a:b*c", "a_b_c")):
        with SummaryWriter(log_dir) as writer:
            assert writer.run.name == name
            assert writer.run.dir.parent == run_dir().parent.resolve()


@pytest.mark.long
def test_equally_named_log_directories_are_separate_runs(tmp_path):
    log_dirs = [tmp_path / "exp1/seed0/tb", tmp_path / "exp2/seed0/tb", Path("seed0/tb"), Path("runs/seed0-tb")]
    dirs = []
    for attempt in (1, 2):
        dirs = []
        for number, log_dir in enumerate(log_dirs):
            with SummaryWriter(log_dir) as writer:
                writer.add_scalar("a", float(number), attempt)
            dirs.append(writer.run.dir)
    assert [path.name.partition("-tb")[0] for path in dirs] == ["seed0"] * 4
    assert dirs[0].name == "seed0-tb"
    for number, path in enumerate(dirs):
        assert read_history(path)["value"].to_pylist() == [float(number)] * 2


def test_projects_with_equal_names_of_directories_share_no_run(tmp_path, monkeypatch):
    monkeypatch.setenv("TRIEYE_ROOT", str(tmp_path / "all"))
    for attempt in (1, 2):
        for project in ("a", "b"):
            (tmp_path / project / "src").mkdir(parents=True, exist_ok=True)
            monkeypatch.chdir(tmp_path / project / "src")
            with SummaryWriter("runs/first") as writer:
                writer.add_scalar("loss", 1.0, attempt)
    attempts = [RunRecord.read(path / "run.json").attempt for path in (tmp_path / "all/src/runs").iterdir()]
    assert attempts == [2, 2]


@pytest.mark.long
def test_a_moved_project_and_a_run_without_a_recorded_log_directory_are_resumed(tmp_path, monkeypatch):
    for log_dir in ("runs/first", tmp_path / "logs/seed0/tb"):
        SummaryWriter(log_dir).close()
    path = run_dir("seed0-tb") / "run.json"
    record = RunRecord.read(path)
    record.tags = {}  # as before this tag
    record.save(path)
    (tmp_path / "moved").mkdir()
    moved = Path.cwd().rename(tmp_path / "moved/project")
    monkeypatch.chdir(moved)
    for log_dir in ("runs/first", tmp_path / "logs/seed0/tb"):
        SummaryWriter(log_dir).close()
    attempts = {path.name: RunRecord.read(path / "run.json").attempt for path in run_dir().parent.iterdir()}
    assert attempts == {"first": 2, "seed0-tb": 2}


@pytest.mark.parametrize(("method", "value"), [("add_scalar", 1.0), ("add_text", "note")])
def test_purge_step_at_the_start_of_a_new_run_is_no_resume(capsys, method, value):
    for is_new in (True, False):
        with SummaryWriter("runs/first", purge_step=0) as writer:
            getattr(writer, method)("a", value, 5)
        assert ("resumes at step 0" in capsys.readouterr().err) != is_new
        assert not is_new or [row.number for row in attempts(run_dir())] == [1]


def test_a_writer_reopened_in_one_program_shows_each_step_once():
    for value in (1.0, 2.0):
        with SummaryWriter("runs/first") as writer:
            writer.add_scalar("a", value, 5)
    writer.add_scalar("a", 3.0, 6)
    writer.close()
    assert [(step, value) for _, step, value in points()] == [(5, 2.0), (6, 3.0)]


@pytest.mark.usefixtures("mlflow")
def test_sinks_of_a_resumed_script_show_the_same_points_as_its_history():
    for first, value in ((0, 1.0), (6, 2.0)):
        with SummaryWriter("runs/first") as writer:
            for epoch in range(first, 8):
                for step in range(10 * epoch, 10 * epoch + 10):
                    writer.add_scalar("loss", value, step)
                writer.add_scalar("val", 1.0, epoch)
                writer.flush()
            writer.add_text("hyperparameters", CLEANRL)
    shown = {"loss": [(step, 1.0 if step < 60 else 2.0) for step in range(80)], "val": [(k, 1.0) for k in range(8)]}
    assert scalars("runs/first") == shown
    for name, curve in shown.items():
        assert sorted((step, value) for metric, step, value in points() if metric == name) == curve
    losses = [(step, 1.0) for step in range(80)] + [(step, 2.0) for step in range(60, 80)]
    logged = [("loss", *point) for point in losses] + [("val", *point) for point in shown["val"]]
    assert in_mlflow() == sorted(logged), "MLflow keeps each point that differs, once"
    assert len(read("runs/first").Tensors("hyperparameters/text_summary")) == 2, "texts supersede nothing"
    record = RunRecord.read(run_dir() / "run.json")
    assert (record.attempt, record.status) == (2, "FINISHED")


def test_an_unknown_method_suggests_the_closest_one():
    with SummaryWriter("runs/first") as writer, pytest.raises(AttributeError, match="did you mean 'add_scalar'"):
        writer.add_scaler("a", 1.0, 1)


def test_an_empty_log_directory_selects_the_default():
    with SummaryWriter("", comment="_c") as writer:
        assert Path(writer.log_dir).match("runs/*_c")


def test_two_programs_that_start_in_one_second_write_to_separate_runs(monkeypatch):
    monkeypatch.setattr(tensorboard, "datetime", SimpleNamespace(now=lambda: datetime(2026, 1, 1, tzinfo=UTC)))
    with SummaryWriter() as first, monkeypatch.context() as other_program:
        other_program.setattr(opening.AdoptedRun, "_open", {})
        with SummaryWriter() as second:
            second.add_scalar("a", 1.0, 1)
    assert second.log_dir == f"{first.log_dir}_{os.getpid()}"
    assert points(Path(second.log_dir).name) == [("a", 1, 1.0)]


def test_two_writers_share_a_run():
    one, two = SummaryWriter("runs/first"), SummaryWriter("runs/first")
    one.add_scalar("a", 1.0, 1)
    one.close()
    two.add_scalar("b", 1.0, 1)
    two.close()
    assert [name for name, *_ in points()] == ["a", "b"]
    assert RunRecord.read(run_dir() / "run.json").attempt == 1


def test_a_writer_that_replaces_an_interrupted_one_closes_the_run():
    for error in (KeyboardInterrupt, None):  # the cell of a notebook, executed again
        writer = SummaryWriter("runs/first")
        with suppress(KeyboardInterrupt):
            writer.add_scalar("a", 1.0, 1)
            if error is not None:
                raise error
            writer.close()
    record = RunRecord.read(run_dir() / "run.json")
    assert (record.status, record.attempt) == ("FINISHED", 1)


@pytest.mark.long
def test_purge_step_supersedes_points_and_texts_beyond_the_last_logged_step():
    with SummaryWriter("runs/first") as writer:
        for step in (60, 78, 65):
            writer.add_scalar("lr", 1.0, step)
        writer.add_text("note", "far", 90)
    assert "note/text_summary" in read("runs/first").Tags()["tensors"]
    with SummaryWriter("runs/first", purge_step=80) as writer:
        writer.run.flush()
    assert "note/text_summary" not in read("runs/first").Tags()["tensors"]
    with SummaryWriter("runs/first", purge_step=73) as writer:
        writer.run.flush()
    assert [step for name, step, _ in points() if name == "lr"] == [60, 65]


def test_superseded_points_stay_hidden_in_later_attempts(make_config):
    with trieye.Run(make_config()) as run:
        for step in range(10):
            run.log("a", 1.0, step=step)
    run = trieye.Run(make_config()).open()
    run.supersede(4)
    run.log("a", 2.0, step=4)
    run.flush()
    run.close("KILLED")
    with trieye.Run(make_config()) as resumed:
        assert max(metric_summary["step"] for metric_summary in resumed.summary().values()) == 4
    table = read_history(run.dir, ["a"])
    assert table["value"].to_pylist() == [1.0] * 4 + [2.0]
