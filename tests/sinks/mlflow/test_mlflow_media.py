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


@pytest.fixture
def sink(run):
    sink = MlflowSink()
    sink.open(run)
    return sink


def files(run, sink):
    root = run.mlflow_dir / "artifacts" / sink.run_id / "artifacts"
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_images_and_texts_are_stored_under_their_name_and_step(run, sink):
    assert isinstance(sink, MediaSink)
    for step in (7, -8):
        sink.log_media(media.image("eval/board", PIXELS, step=step, time=1.7e9))
    for text in ("first", "# Größe\n"):  # the second one replaces the first one
        sink.log_media(media.text("note", text, step=7, time=1.7e9))
    sink.log_media(media.histogram("weights", [1.0, 2.0], step=1, time=1.7e9))  # ignored
    stored = files(run, sink)
    assert set(stored) == {"images/eval/board/step_7.png", "images/eval/board/step_-8.png", "texts/note/step_7.md"}
    assert (np.asarray(Image.open(io.BytesIO(stored["images/eval/board/step_7.png"]))) == PIXELS).all()
    assert stored["texts/note/step_7.md"] == "# Größe\n".encode()


def test_names_of_images_stay_distinct_and_cannot_escape_the_image_directory(run, sink, tmp_path):
    names = ["../../outside", "/etc/x", "a/../../../b", "..", ".", "a//b", "a b:c", "acc@1", "a\\b", "%2e"]
    names += ["x" * 250, "é" * 300, "é" * 301, "@" * 60, "@" * 61]
    for name in names:
        sink.log_media(media.image(name, PIXELS, step=7, time=1.7e9))
    stored_files = files(run, sink)
    assert len(stored_files) == len(names)
    assert all(path.startswith("images/") and path.endswith("/step_7.png") for path in stored_files)
    assert len(list(tmp_path.rglob("*.png"))) == len(names)


def test_a_failed_write_can_be_retried(run, sink):
    image = media.image("board", PIXELS, step=7, time=1.7e9)
    directory = run.mlflow_dir / "artifacts" / sink.run_id / "artifacts"
    directory.parent.mkdir(parents=True, exist_ok=True)
    directory.write_text("a file where the artifacts belong")
    with pytest.raises(TrieyeError, match=f"step_7.png cannot be uploaded to file://{directory}"):
        sink.log_media(image)
    directory.unlink()
    sink.log_media(image)
    assert set(files(run, sink)) == {"images/board/step_7.png"}


def test_the_tag_of_logged_tables_stays_within_the_limit_of_mlflow(run, sink):
    names = ["/".join([f"{number:03}", *(["x" * 45] * 4)]) for number in range(45)]  # 45 names have 10,000 characters
    for number, name in enumerate([*names, names[-2]]):  # repeats one name
        sink.log_media(table.table(name, {"a": [number]}, step=1, time=1.7e9))
    tag = MlflowClient(run.tracking_uri).get_run(sink.run_id).data.tags["mlflow.loggedArtifacts"]
    listed = [entry["path"].split("/")[1] for entry in json.loads(tag)]
    assert listed == [*(f"{number:03}" for number in range(45 - len(listed), 43)), "044", "043"]
    assert 7500 < len(tag) <= 8000
    assert len(files(run, sink)) == 45
