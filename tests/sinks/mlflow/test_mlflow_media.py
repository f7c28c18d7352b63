"""Images and texts become artifacts of the MLflow run."""

import io
import json

import numpy as np
import pytest
from mlflow import MlflowClient
from PIL import Image

from trieye.exceptions import TrieyeError
from trieye.run import media, table
from trieye.sinks.base import MediaSink
from trieye.sinks.mlflow.sink import MlflowSink

PIXELS = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)


def image(name="board", step=7):
    return media.image(name, PIXELS, step=step, time=1.7e9)


def text(name="note", step=7, text="# Größe\n"):
    return media.text(name, text, step=step, time=1.7e9)


@pytest.fixture
def sink(run):
    sink = MlflowSink()
    sink.open(run)
    return sink


def files(run, sink):
    root = run.mlflow_dir / "artifacts" / sink.run_id / "artifacts"
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_an_image_is_stored_under_its_name_and_step(run, sink):
    assert isinstance(sink, MediaSink)
    sink.log_media(image("eval/board", 7))
    sink.log_media(image("eval/board", -8))
    stored_files = files(run, sink)
    assert set(stored_files) == {"images/eval/board/step_7.png", "images/eval/board/step_-8.png"}
    assert (np.asarray(Image.open(io.BytesIO(stored_files["images/eval/board/step_7.png"]))) == PIXELS).all()


def test_a_text_is_stored_as_markdown(run, sink):
    sink.log_media(text())
    assert files(run, sink) == {"texts/note/step_7.md": "# Größe\n".encode()}


def test_a_repeated_text_replaces_the_earlier_one(run, sink):
    sink.log_media(text(text="first"))
    sink.log_media(text(text="second"))
    assert files(run, sink) == {"texts/note/step_7.md": b"second"}


def test_a_histogram_is_ignored_without_an_error(run, sink):
    sink.log_media(media.histogram("weights", [1.0, 2.0], step=1, time=1.7e9))
    assert files(run, sink) == {}


@pytest.mark.parametrize(
    "name",
    [
        "../../outside",
        "/etc/x",
        "a/../../../b",
        "..",
        ".",
        "a//b",
        "a b:c",
        "acc@1",
        "é" * 300,
        "x" * 250,
        "a\\b",
        "%2e",
    ],
)
def test_image_names_cannot_escape_the_image_directory(run, sink, name, tmp_path):
    before = set(tmp_path.rglob("*.png"))
    sink.log_media(image(name))
    ((path, content),) = files(run, sink).items()
    assert path.startswith("images/")
    assert path.endswith("/step_7.png")
    assert content == image(name).png
    assert len(set(tmp_path.rglob("*.png")) - before) == 1


def test_names_that_differ_only_at_the_end_stay_distinct(run, sink):
    for name in ("é" * 250, "é" * 251, "@" * 60, "@" * 61):
        sink.log_media(text(name))
    assert len(files(run, sink)) == 4


def test_a_failed_write_can_be_retried(run, sink):
    directory = run.mlflow_dir / "artifacts" / sink.run_id / "artifacts"
    directory.parent.mkdir(parents=True, exist_ok=True)
    directory.write_text("a file where the artifacts belong")
    with pytest.raises(TrieyeError, match=f"step_7.png cannot be uploaded to file://{directory}"):
        sink.log_media(image())
    directory.unlink()
    sink.log_media(image())
    assert MlflowClient(tracking_uri=run.tracking_uri).list_artifacts(sink.run_id, "images/board")


def test_the_tag_of_logged_tables_stays_within_the_limit_of_mlflow(run, sink):
    names = ["/".join([f"{number:03}", *(["x" * 45] * 4)]) for number in range(45)]  # 45 names have 10,000 characters
    for number, name in enumerate([*names, names[-2]]):  # repeats one name
        sink.log_media(table.table(name, {"a": [number]}, step=1, time=1.7e9))
    tag = MlflowClient(run.tracking_uri).get_run(sink.run_id).data.tags["mlflow.loggedArtifacts"]
    listed = [entry["path"].split("/")[1] for entry in json.loads(tag)]
    assert listed == [*(f"{number:03}" for number in range(45 - len(listed), 43)), "044", "043"]
    assert 7500 < len(tag) <= 8000
    assert len(files(run, sink)) == 45
