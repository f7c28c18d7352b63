"""Figures, videos and tables end to end: from threads and clients through the journal to real stores."""

import io
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from matplotlib.figure import Figure
from mlflow import MlflowClient
from PIL import Image, ImageSequence
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

import trieye
from trieye.run import media

SINKS = {"mlflow": {"enabled": True}, "tensorboard": {"enabled": True}}
TABLE = {"player": ["a|b", "c_d"], "score": [0.5, None], "won": [True, False]}


def frames_of(seed):
    return np.random.default_rng(seed).integers(0, 2, (5, 8, 8, 3), np.uint8) * np.uint8(255)


def decoded(gif):
    return np.stack([np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(Image.open(io.BytesIO(gif)))])


def figure():
    drawn = Figure(figsize=(2, 1), dpi=50)
    drawn.add_subplot().plot([1, 2, 3])
    return drawn


@pytest.fixture(scope="module")
def logged_run(tmp_path_factory):
    """Log in two attempts, where the first one is killed, and return the run and its MLflow run id."""
    root = {"root_data_dir": str(tmp_path_factory.mktemp("root"))}

    def make_config(**settings):
        return trieye.TrieyeConfig(
            app_name="app", run_name="run", runtime={"kind": "local"}, persistence=root, **settings
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        return log_all(make_config)


def log_all(make_config):
    with pytest.raises(RuntimeError), trieye.Run(make_config(sinks=SINKS)) as run:
        run.log_video("episode", frames_of(1), fps=10, step=1)
        raise RuntimeError("power cut")
    with trieye.Run(make_config(sinks=SINKS)) as run:
        run.step = 2

        def evaluate():
            with run.client() as client:
                client.log_video("episode", list(frames_of(2)), 2, fps=10)
                client.log_table("games", TABLE, step=2)

        with ThreadPoolExecutor(1) as pool:
            pool.submit(evaluate).result()
        run.log_figure("curve", figure())
        run.log_table("games", [{"player": "e", "score": 2}], step=3)
        run_id = run.mlflow_run_id(60.0)
    return run, run_id


def test_tensorboard_plays_gifs_and_shows_tables_as_markdown(logged_run):
    run, _ = logged_run
    events = EventAccumulator(str(run.dir), size_guidance={"images": 0, "tensors": 0}).Reload()
    # without a checkpoint and a restore, both attempts belong to one curve
    videos = {event.step: event.encoded_image_string for event in events.Images("episode")}
    assert videos.keys() == {1, 2}
    assert all((decoded(videos[step]) == frames_of(step)).all() for step in videos)
    (curve,) = events.Images("curve")
    assert (curve.step, curve.width, curve.height) == (2, 100, 50)
    texts = {
        event.step: tensor_util.make_ndarray(event.tensor_proto).item().decode() for event in events.Tensors("games")
    }
    assert texts[2].splitlines() == [
        "| player | score | won |",
        "| --- | --- | --- |",
        r"| a\|b | 0.5 | True |",
        r"| c\_d |  | False |",
    ]
    assert texts[3].splitlines()[2:] == ["| e | 2 |"]


def test_mlflow_stores_gifs_and_loads_tables(logged_run, monkeypatch):
    run, run_id = logged_run
    monkeypatch.setenv("MLFLOW_TRACKING_URI", run.config.persistence.MLFLOW_TRACKING_URI)  # for `load_table`
    client = MlflowClient(run.config.persistence.MLFLOW_TRACKING_URI)
    root = run.dir.parents[1] / "mlruns" / "artifacts" / run_id / "artifacts"
    artifacts = {
        str(path.relative_to(root)): path
        for path in root.rglob("*")
        if path.is_file() and "provenance" not in str(path)
    }
    pictures = {"videos/episode/step_1.gif", "videos/episode/step_2.gif", "images/curve/step_2.png"}
    tables = {"tables/games/step_2.json", "tables/games/step_3.json"}
    assert {name for name in artifacts if name.split("/")[0] in {"videos", "images", "tables"}} == pictures | tables
    assert (decoded(artifacts["videos/episode/step_2.gif"].read_bytes()) == frames_of(2)).all()
    mlflow_run = client.get_run(run_id)
    tagged = json.loads(mlflow_run.data.tags["mlflow.loggedArtifacts"])  # the MLflow UI finds tables by this tag
    assert sorted(tagged, key=str) == [{"path": name, "type": "table"} for name in sorted(tables)]
    frame = client.load_table(mlflow_run.info.experiment_id, "tables/games/step_2.json", [run_id])
    assert frame.astype(object).where(frame.notna(), None).to_dict("list") == TABLE


def test_an_object_without_savefig_is_rejected_as_a_figure():
    for thing, message in ((5, "int has no savefig"), (figure().axes[0], "pass its .figure")):
        with pytest.raises(TypeError, match=f"figure 'f': .*{message}"):
            media.figure("f", thing, step=1, time=1.7e9)
