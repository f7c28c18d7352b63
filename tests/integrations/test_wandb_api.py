"""The documented API of wandb: each call works, or `init` announces that it is not available."""

import inspect
import json
import math
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.integrations.conftest import media, points
from trieye.config import TrieyeConfig
from trieye.exceptions import ConfigurationError, TrieyeError
from trieye.files.run_record import RunRecord
from trieye.integrations import wandb
from trieye.integrations.tensorboard import SummaryWriter
from trieye.run.run import Run


@pytest.fixture(autouse=True)
def _working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wandb._announce.cache_clear()


def status_of(name, project="p"):
    return RunRecord.read(Path(".trieye_data") / project / "runs" / name / "run.json").status


def stored_files():
    roots = Path(".trieye_data").glob("*/mlruns/*/*/artifacts")
    return {path.relative_to(root).as_posix() for root in roots for path in root.rglob("*") if path.is_file()}


def media_by_name():
    return {item.name: item for item in media()}


def missing(theirs, ours, names):
    """Return the names that `ours` lacks, and those whose parameters it does not take."""
    for name in names:
        if not hasattr(ours, name):
            yield name
        elif inspect.isfunction(call := getattr(theirs, name)) and not callable(getattr(ours, name)):
            yield f"{name}()"
        elif inspect.isfunction(call):
            parameters = inspect.signature(getattr(ours, name)).parameters
            if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
                missing_parameters = set(inspect.signature(call).parameters) - {"self", "data"} - set(parameters)
                yield from (f"{name}({parameter})" for parameter in sorted(missing_parameters))


INTERNAL = {"bind_to_run", "from_json", "get_media_subdir", "index_ref", "to_json", "has_been_logged", "__version__"}


def test_each_documented_call_is_available_or_announced_by_init(capsys):
    real = pytest.importorskip("wandb")
    with wandb.init(project="p", id="one") as run:
        announced = capsys.readouterr().err
        table, artifact = wandb.Table(["a"]), wandb.Artifact("a", "b")
        lacking = [
            *missing(real, wandb, set(real.__all__) - INTERNAL),
            *missing(real.Run, run, [name for name in vars(real.Run) if name[0] != "_"]),
            *missing(real.Artifact, artifact, [name for name in vars(real.Artifact) if name[0] != "_"]),
            *missing(real.Table, table, [name for name in vars(real.Table) if name[0] != "_" and name not in INTERNAL]),
        ]
    assert [name for name in lacking if name.isupper() is False and f"{name}," not in announced] == []
    kinds = ("Artifact", "Audio", "Histogram", "Html", "Image", "Table", "Video", "init")
    for kind in kinds:
        parameters = inspect.signature(getattr(wandb, kind)).parameters
        missing_parameters = set(inspect.signature(getattr(real, kind)).parameters) - set(parameters)
        assert (
            any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()) or not missing_parameters
        ), (kind, missing_parameters)


@pytest.mark.usefixtures("mlflow")
def test_artifacts_keep_their_complete_content_by_version():
    Path("src").mkdir()
    Path("src/train.py").write_text("1")
    Path("src/.env").write_text("SECRET=1")
    Path("model.pt").write_text("weights")
    assert all(hasattr(wandb.Artifact("a", "b"), call) for call in ("new_file", "add", "add_reference", "wait"))
    with wandb.init(project="p", id="one") as run:
        for number in range(2):
            artifact = wandb.Artifact("data", type="dataset", metadata={"rows": 3})
            with artifact.new_file("inside/a.txt", mode="w") as file:
                file.write(str(number))
            artifact.add(wandb.Table(["x"], [[1]]), "rows")
            artifact.add_reference("s3://bucket/key")
            logged = run.log_artifact(artifact, aliases=["best"], tags=["t"]).wait()
        assert (logged.version, logged.aliases, logged.digest) == ("v1", ["latest", "best"], None)
        assert Path(logged.download("copy"), "inside/a.txt").read_text() == "1"
        run.log_model("model.pt", aliases=["final"])
        run.link_model("model.pt", "registry")
        assert run.log_code("src").name == "source"
        with pytest.raises(ConfigurationError, match="pass the path"):
            run.use_artifact("other:latest")
        assert "data/rows" in media_by_name()
    assert {
        *(f"artifacts/data/v{number}/{name}" for number in range(2) for name in ("inside/a.txt", "artifact.json")),
        "artifacts/model.pt/v0/model.pt",
        "artifacts/model.pt/v1/model.pt",
        "artifacts/source/v0/train.py",
    } <= stored_files()
    assert not [name for name in stored_files() if ".env" in name]
    with pytest.raises(ConfigurationError, match="not relative"), artifact.new_file("../a"):
        pass


@pytest.mark.usefixtures("mlflow")
def test_files_keep_their_names_in_artifacts_and_their_paths_in_save():
    for name in ("a/model.pt", "b/model.pt"):
        Path(name).parent.mkdir()
        Path(name).write_text(name)
    with wandb.init(project="p", id="one") as run:
        artifact = wandb.Artifact("models", "model")
        artifact.add_file("a/model.pt", name="best.pt")
        artifact.add_file("b/model.pt", name="more/last.pt")
        artifact.add_dir("b", name="all")
        with pytest.raises(ConfigurationError, match="the file does not exist"):
            artifact.add_file("nothing")
        run.log_artifact(artifact)
        assert sorted(wandb.save("*/model.pt")) == ["a/model.pt", "b/model.pt"]
        Path("a/model.pt").unlink()
        with pytest.raises(ConfigurationError, match=r"'models': these added files no longer exist: a/model\.pt"):
            run.log_artifact(artifact)
    names = {f"artifacts/models/v0/{name}" for name in ("best.pt", "more/last.pt", "all/model.pt", "artifact.json")}
    assert names | {"files/a/model.pt", "files/b/model.pt"} <= stored_files()
    assert not [name for name in stored_files() if "/v1/" in name]


@pytest.mark.usefixtures("mlflow")
def test_calls_without_effect_succeed_and_print_a_note(capsys):
    assert wandb.login(key="x", relogin=True) is True
    run = wandb.init(project="p", settings=wandb.Settings(run_id="one", console="off"), entity="me", monitor_gym=True)
    run.alert("low", "accuracy", level=wandb.AlertLevel.WARN)
    run.alert("low", "accuracy", level="WARN", wait_duration=300)
    run.mark_preempting()
    epoch = run.define_metric("epoch")
    run.define_metric("acc", step_metric=epoch, summary="mean")
    wandb.log({"epoch": 3, "acc": 0.5})
    assert run.display(height=3) is None
    assert (run.id, run.url, run.entity, run.offline, run.status().sync_time) == ("one", None, None, True, None)
    assert run.restore("nothing.pt") is None
    chart = wandb.plot.line(wandb.Table(["x", "y"], [[1, 2.0]]), "x", "y", title="t")
    curve = wandb.plot.confusion_matrix(y_true=[0, 1], preds=[1, 1], class_names=["a", "b"])
    series = wandb.plot.line_series(xs=[0, 1], ys=[[1, 2], [3, 4]], keys=["u", "v"])
    wandb.log({"chart": chart, "curve": curve, "series": series, "sound": wandb.Audio(np.zeros(8), sample_rate=8)})
    logged = media_by_name()
    assert logged["chart"].rows() == (["x", "y"], [[1, 2.0]])
    assert logged["curve"].rows() == (["y_true", "preds", "class_names"], [[0, 1, "a"], [1, 1, "b"]])
    assert len(logged["series"].rows()[1]) == 4
    wandb.finish()
    assert "media/audio/sound/1.wav" in stored_files()
    assert ("acc", 3, 0.5) in points("one")
    output = capsys.readouterr().err
    assert output.count("low: accuracy") == 1
    assert "entity, monitor_gym has no effect" in output
    assert "summary='mean') is not available" in output


def test_tables_are_built_from_columns_or_rows_of_equal_lengths():
    table = wandb.Table(columns=[], data=[])
    table.add_column("a", [1, 2])
    table.add_column("b", [3, 4])
    assert (table.columns, table.data) == (["a", "b"], [[1, 3], [2, 4]])
    with pytest.raises(ValueError, match="row 1: the table has 2 columns, the row 1 cells"):
        wandb.Table(["a", "b"], [[1, 2], [3]])


@pytest.mark.usefixtures("mlflow")
def test_masks_boxes_and_images_in_tables_are_stored():
    box = {"position": {"minX": 0.1, "maxX": 0.2, "minY": 0.3, "maxY": 0.4}, "class_id": 1}
    image = wandb.Image(
        np.zeros((4, 4, 3), np.uint8),
        masks={"prediction": {"mask_data": np.eye(4, dtype=np.int64), "class_labels": {1: "cat"}}},
        boxes={"truth": {"box_data": [box], "class_labels": {1: "dog"}}},
    )
    table = wandb.Table(["id", "picture"], [[7, wandb.Image(np.zeros((2, 2), np.uint8), caption="c")]])
    with wandb.init(project="p", id="one"):
        wandb.log({"seen": image, "rows": table})
        logged = media_by_name()
    assert {"seen", "seen/masks/prediction", "rows", "rows/picture/0", "rows/picture/0/caption"} == set(logged)
    assert logged["rows"].rows()[1] == [[7, "rows/picture/0"]]
    (text,) = [path.read_text() for path in Path(".trieye_data").rglob("mlruns/*/*/artifacts/media/images/seen/0.json")]
    assert '"minX": 0.1' in text
    assert '"cat"' in text
    assert '"dog"' in text


def test_create_new_opens_an_independent_run():
    one = wandb.init(project="p", id="one")
    two = wandb.init(project="p", id="two", reinit="create_new")
    assert wandb.run is one
    with pytest.raises(ConfigurationError, match="already opened"):
        wandb.init(project="p", id="two", reinit="create_new")
    two.log({"a": 2.0})
    one.log({"a": 1.0})
    two.finish()
    wandb.log({"a": 3.0})
    wandb.finish()
    assert (points("one"), points("two")) == ([("a", 0, 1.0), ("a", 1, 3.0)], [("a", 0, 2.0)])
    assert (status_of("one"), status_of("two")) == ("FINISHED", "FINISHED")


def test_cleanrl_with_track_is_one_run():
    config = {"seed": 1, "learning_rate": 2.5e-4, "track": True}
    wandb.init(project="cleanRL", id="dqn", sync_tensorboard=True, config=config, name="dqn", monitor_gym=True)
    writer = SummaryWriter("runs/CartPole__dqn__1")
    rows = "\n".join(f"|{key}|{value}|" for key, value in config.items())
    writer.add_text("hyperparameters", f"|param|value|\n|-|-|\n{rows}")
    for step in range(5):
        writer.add_scalar("charts/return", step, 100 * step)
    wandb.log({"extra": 1.0})
    writer.close()
    wandb.finish()
    records = list(Path(".trieye_data").glob("*/runs/*/run.json"))
    assert [path.parent.name for path in records] == ["dqn"]
    expected = [("charts/return", 100 * step, float(step)) for step in range(5)]
    assert sorted(points("dqn", "cleanRL")) == [*expected, ("extra", 0, 1.0)]
    assert any(Path("runs/CartPole__dqn__1").glob("*tfevents*"))
    with wandb.init(project="cleanRL", id="dqn", resume="must", sync_tensorboard=True) as run:
        assert run.step == 1
        assert run.config["learning_rate"] == 2.5e-4


def test_an_id_never_resumes_a_run_with_another_id():
    for chosen, value in (("exp-1", 1.0), ("1", 2.0)):
        with wandb.init(project="p", id=chosen, resume="allow") as run:
            assert not run.resumed
            run.log({"a": value})
    assert (points("exp-1"), points("1")) == ([("a", 0, 1.0)], [("a", 0, 2.0)])


def test_a_config_file_and_excluded_keys_are_supported():
    Path("config.yaml").write_text("lr: {value: 0.1}\nbatch: 8\nsecret_path: x\n")
    with wandb.init(project="p", id="one", config="config.yaml", config_exclude_keys=["secret_path"]) as run:
        assert dict(run.config) == {"lr": 0.1, "batch": 8}


def error_in_fork(call):
    """Return the message of the error that a call raises in a forked child."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            call()
        except TrieyeError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as file:
        return file.read()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_logging_from_a_forked_process_raises_an_error_that_names_the_owner():
    run = wandb.init(project="p", id="one")
    writer = SummaryWriter("runs/other")
    calls = (lambda: run.log({"a": 1.0}, step=5), lambda: writer.add_scalar("a", 1.0, 1), writer.flush)
    outcomes = [error_in_fork(call) for call in calls]
    assert all("fork" in text and str(os.getpid()) in text for text in outcomes), outcomes
    writer.close()


@pytest.mark.usefixtures("mlflow")
def test_versions_of_an_artifact_continue_when_a_run_starts_again():
    for start in range(2):
        Path(f"{start}.pt").write_text("weights")
        with wandb.init(project="p", id="one") as run:
            assert run.config.as_dict() == {}
            assert run.log_artifact(f"{start}.pt", name="model").version == f"v{start}"
            run.config.update({"start": start})
    versions = {name for name in stored_files() if name.endswith(".pt")}
    assert versions == {"artifacts/model/v0/0.pt", "artifacts/model/v1/1.pt"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"config": "nofile.yaml"}, r"config='nofile.yaml'\): .*No such file"),
        ({"config": "list.yaml"}, r"config='list.yaml'\): not a YAML file with a dict"),
        ({"config": "broken.yaml"}, r"config='broken.yaml'\): .*line 1"),
        ({"config": ["secret"]}, r"config=\.\.\.\): expected a dict, .*, not list"),
        ({"config": 5}, r"config=\.\.\.\): expected a dict, .*, not int"),
        ({"id": 5}, r"id=5\): .*string"),
        ({"project": 5}, r"project=5\): .*string"),
    ],
)
def test_an_invalid_argument_of_init_is_named_and_no_run_is_opened(arguments, message):
    Path("list.yaml").write_text("[1]")
    Path("broken.yaml").write_text("a: [")
    with pytest.raises(ConfigurationError, match=message):
        wandb.init(**{"project": "p", "id": "one", **arguments})
    assert not wandb._active
    assert not Path(".trieye_data").exists()


def test_a_resumed_run_continues_at_the_latest_value_of_its_step_metric():
    for epoch in (3, 4):
        with wandb.init(project="p", id="one", resume="allow") as run:
            run.define_metric("*", step_metric="epoch")
            wandb.log({"loss": 0.5})
            wandb.log({"epoch": epoch})
    assert [point for point in points("one") if point[0] == "loss"] == [("loss", 0, 0.5), ("loss", 3, 0.5)]


@pytest.mark.long
def test_each_thread_that_logs_gets_its_own_rows():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with wandb.init(project="p", id="one"), ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda number: wandb.log({"a": number}), range(300)))
    finally:
        sys.setswitchinterval(interval)
    assert sorted(step for _, step, _ in points("one")) == list(range(300))
    assert sorted(value for _, _, value in points("one")) == list(range(300))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_finish_in_a_forked_process_keeps_the_run_resumable():
    run = wandb.init(project="p", resume="auto")
    assert error_in_fork(wandb.finish) == ""
    assert wandb._auto_id() == run.id
    wandb.finish()
    assert wandb._auto_id() is None


def test_equal_values_may_be_recorded_again_and_other_objects_are_stored_as_text():
    with wandb.init(project="p", id="one") as run:
        sparse = torch.eye(2).to_sparse()
        # equal sets have different texts here
        for sizes, number, array, names in (((1, 2), 1, np.arange(3.0), {8, 0}), ([1, 2], 1.0, [0, 1, 2], {0, 8})):
            values = {"array": array, "nan": math.nan, "sparse": sparse.clone(), "names": names}
            run.config.update(values, sizes=sizes, number=number)
        with pytest.raises(ConfigurationError, match="allow_val_change"):
            run.config.update({"array": np.arange(4)})
        run.summary["sparse"] = sparse
        run.summary["a"] = 1
    stored = [json.loads((Path(run.dir) / f"wandb-{kind}.json").read_text()) for kind in ("config", "summary")]
    assert stored[0]["array"] == [0, 1, 2]
    assert all("sparse" in items["sparse"] for items in stored)
    assert stored[1]["a"] == 1


def test_log_code_leaves_out_the_runs(monkeypatch):
    monkeypatch.setenv("TRIEYE_ROOT", "runs")
    Path("train.py").write_text("1")
    for _ in range(2):
        with wandb.init(project="p", id="one") as run:
            assert set(run.log_code(".").entries) == {"train.py"}


def test_an_id_names_its_run_although_a_copy_exists():
    for start in range(2):
        with wandb.init(project="p", id="one", resume="allow") as run:
            wandb.log({"a": float(start)})
        shutil.copytree(run.dir, Path(run.dir).parent / f"backup{start}-one")
    assert points("one") == [("a", 0, 0.0), ("a", 1, 1.0)]


def test_an_id_in_a_record_precedes_a_run_that_is_only_named_like_it():
    for start in range(2):
        with wandb.init(project="p", id="one", name="tagged", resume="allow") as run:
            wandb.log({"a": float(start)})
        with Run(TrieyeConfig(app_name="p", run_name="one", runtime={"kind": "local"})) as other:
            other.log("b", 1.0, step=start)
    assert Path(run.dir).name == "tagged-one"
    assert points("one") == [("b", 0, 1.0), ("b", 1, 1.0)]
