"""Artifacts for trackers: copies of logged files and of the policy's checkpoints, held until delivery."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from mlflow.tracking._tracking_service import utils as mlflow_utils

import trieye
from tests.snapshot.growing import Log
from tests.waiting import wait_until
from trieye.checkpoints.manifest import read_manifest, verify
from trieye.checkpoints.store import CheckpointStore
from trieye.exceptions import SerializationError
from trieye.hub.tracking import Artifacts
from trieye.runs import rebuild
from trieye.snapshot.encode import encode
from trieye.testing import MemorySink


@pytest.fixture
def checkpoint(tmp_path):
    log = Log()
    log.extend(10)
    return CheckpointStore(tmp_path / "checkpoints").save(1, encode({"a": np.ones(5), "log": log}, copy=False))


def artifacts(tmp_path, policy, *, with_parts=False):
    return Artifacts(tmp_path / "artifacts", policy, with_parts=with_parts, end=9, trackers=())


@pytest.mark.parametrize(("policy", "expected"), [("none", set()), ("best", {True}), ("all", {True, False})])
def test_the_policy_selects_the_checkpoints_for_trackers(checkpoint, tmp_path, policy, expected):
    staged = {best: artifacts(tmp_path, policy).stage(checkpoint, is_best=best) for best in (True, False)}
    assert {best for best, path in staged.items() if path is not None} == expected
    assert all(path.name == "checkpoint_step_1" for path in staged.values() if path is not None)


def test_incremental_parts_are_excluded_and_the_copy_is_intact(checkpoint, tmp_path):
    staged = artifacts(tmp_path, "all").stage(checkpoint, is_best=False)
    manifest = verify(staged)
    assert not manifest.part_names
    assert manifest.metadata["left_out"] == [f"parts/{path.name}" for path in checkpoint.glob("parts/*")]
    assert sorted(path.name for path in staged.iterdir()) == ["MANIFEST.json", "state.json", "state.safetensors"]


def test_with_parts_incremental_parts_are_hard_linked(checkpoint, tmp_path):
    staged = artifacts(tmp_path, "all", with_parts=True).stage(checkpoint, is_best=False)
    assert verify(staged) == read_manifest(checkpoint)
    for path in checkpoint.rglob("*.safetensors"):
        assert path.samefile(staged / path.relative_to(checkpoint))


def test_a_copy_is_deleted_after_its_delivery(checkpoint, tmp_path):
    killed = artifacts(tmp_path, "all").stage(checkpoint, is_best=False)
    copies = artifacts(tmp_path, "all")
    first, second = (copies.stage(checkpoint, is_best=False) for _ in range(2))
    copies.note_recorded(first, 5)
    copies.note_recorded(second, 7)
    assert copies.has_any
    for delivered, remaining in ((4, [first, second, killed]), (5, [second, killed]), (8, [killed]), (9, [])):
        copies.release(delivered)
        assert [path for path in (first, second, killed) if path.exists()] == remaining
    assert not copies.has_any
    assert list((tmp_path / "artifacts").iterdir()) == []


def test_a_copy_in_progress_is_not_deleted_as_a_leftover(tmp_path):
    store = artifacts(tmp_path, "all")
    (tmp_path / "big").mkdir()
    for number in range(3):
        (tmp_path / "big" / f"{number}.txt").write_text(str(number))
    under_way = store.hold(tmp_path / "big")
    assert store.has_any
    store.release(100)
    assert sorted(path.read_text() for path in under_way.iterdir()) == ["0", "1", "2"]


def test_a_copy_is_independent_of_later_writes_to_the_source(tmp_path):
    store = artifacts(tmp_path, "all")
    inside = tmp_path / "given" / "sub" / "a.bin"
    inside.parent.mkdir(parents=True)
    inside.write_bytes(b"before" * 100_000)
    (tmp_path / "given" / "link").symlink_to(inside)
    (tmp_path / "given" / "dangling").symlink_to("nowhere")
    (tmp_path / "empty").write_bytes(b"")
    copies = [store.hold(path) for path in (inside, tmp_path / "given", tmp_path / "empty")]
    with inside.open("r+b") as file:
        file.write(b"after!")
    assert [copy.name for copy in copies] == ["a.bin", "given", "empty"]
    for path in (copies[0], copies[1] / "sub" / "a.bin", copies[1] / "link"):
        assert path.read_bytes() == b"before" * 100_000
    assert copies[2].read_bytes() == b""
    assert store.hold(tmp_path / "empty").parent != copies[2].parent  # the same name may be held twice


def test_a_path_that_cannot_be_copied_is_named_and_leaves_no_files(tmp_path):
    store = artifacts(tmp_path, "all")
    (tmp_path / "given").mkdir()
    os.mkfifo(tmp_path / "given" / "pipe")
    for path in (tmp_path / "given", tmp_path / "given" / "pipe", tmp_path / "nothing"):
        with pytest.raises(SerializationError, match=f"artifact {path}"):
            store.hold(path)
    assert not store.has_any
    assert list((tmp_path / "artifacts").iterdir()) == []


@pytest.mark.parametrize("path", ["run", "run/artifacts", "project"])
def test_a_copied_directory_may_contain_the_artifacts_directory(tmp_path, path):
    for name in ("run", "project"):
        (tmp_path / name).mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    (tmp_path / "project" / "latest").symlink_to(tmp_path / "run")
    copy = artifacts(tmp_path / "run", "all").hold(tmp_path / path)
    files = [file.name for file in copy.rglob("*") if file.is_file()]
    assert files == ([] if path == "run/artifacts" else ["run.json"])


def config_of(make_config, uri=None, **persistence):
    return make_config(persistence={"mlflow_tracking_uri": uri, **persistence}, sinks={"mlflow": {"enabled": True}})


def log_temporary(run, name, content):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / name
        path.write_text(content)
        run.log_artifact(path, Path("notes"))
        path.write_text("too late")


def in_mlflow(uri):
    """Return a client of an MLflow store, and its only run."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("app").experiment_id])
    return client, run


def notes_of(config, tmp_path):
    """Return MLflow's files under "notes", as {name: text}."""
    client, run = in_mlflow(config.persistence.MLFLOW_TRACKING_URI)
    local = Path(client.download_artifacts(run.info.run_id, "notes", str(tmp_path)))
    return {path.name: path.read_text() for path in local.iterdir()}


def test_a_logged_file_is_delivered_after_the_original_is_deleted(make_config, tmp_path):
    config = config_of(make_config)
    with trieye.Run(config) as run:
        log_temporary(run, "a.txt", "first")
        run.mlflow_run_id(60.0)
        wait_until(lambda: not list(run.dir.glob("artifacts/*")))  # the copy is deleted after delivery
        log_temporary(run, "b.txt", "second")
    assert notes_of(config, tmp_path) == {"a.txt": "first", "b.txt": "second"}
    assert not list(run.dir.glob("artifacts/*"))


@pytest.fixture
def uri(tmp_path):
    """An MLflow store that is unreachable until `repair`."""
    (tmp_path / "store").write_bytes(b"")
    return f"sqlite:///{tmp_path}/store/mlflow.db"


def repair(broken_directory):
    broken_directory.unlink()
    broken_directory.mkdir()


def test_a_rebuild_delivers_a_file_that_mlflow_refused(make_config, tmp_path):
    broken_directory = tmp_path / "root" / "app" / "mlruns" / "artifacts"
    broken_directory.parent.mkdir(parents=True)
    broken_directory.write_bytes(b"")
    config = config_of(make_config)
    with trieye.Run(config) as run:
        log_temporary(run, "a.txt", "refused")
        run.mlflow_run_id(60.0)
    repair(broken_directory)
    result = rebuild(run.dir, ["mlflow"])
    assert (result.warnings, result.missing) == ([], {})
    assert notes_of(config, tmp_path) == {"a.txt": "refused"}
    assert not list(run.dir.glob("artifacts/*"))


def test_a_file_waits_for_an_unreachable_tracker_during_an_attempt_without_it(make_config, tmp_path, uri):
    with trieye.Run(config_of(make_config, uri)) as run:
        log_temporary(run, "a.txt", "waiting")
    with trieye.Run(make_config(), sinks=[other := MemorySink("team/files")]) as run:
        log_temporary(run, "b.txt", "stored by the other tracker")
    assert [path.name for path, _ in other.artifacts if path.suffix == ".txt"] == ["a.txt", "b.txt"]
    assert [path.name for path in run.dir.glob("artifacts/*/*.txt")] == ["a.txt"]
    repair(tmp_path / "store")
    with trieye.Run(config_of(make_config, uri)) as run:
        run.mlflow_run_id(60.0)
    assert notes_of(config_of(make_config, uri), tmp_path) == {"a.txt": "waiting"}
    assert not list(run.dir.glob("artifacts/*"))


def test_a_file_is_kept_if_tensorboard_is_the_only_sink(make_config):
    with trieye.Run(make_config(sinks={"tensorboard": {"enabled": True}})) as run:
        log_temporary(run, "a.txt", "kept")
    assert [path.read_text() for path in run.dir.glob("artifacts/*/a.txt")] == ["kept"]


@pytest.mark.long
@pytest.mark.slow
def test_delivered_and_waiting_artifacts_move_with_the_project(make_config, tmp_path):
    with trieye.Run(config_of(make_config)) as run:
        run.mlflow_run_id(60.0)
        log_temporary(run, "a.txt", "delivered")
    with trieye.Run(make_config()) as run:  # without a tracker: the copy waits for one
        log_temporary(run, "b.txt", "waiting")
    assert [path.read_text() for path in run.dir.glob("artifacts/*/b.txt")] == ["waiting"]
    (tmp_path / "root").rename(tmp_path / "moved")
    mlflow_utils._artifact_repos_cache.clear()  # a new process has no cached artifact locations
    config = config_of(make_config, root_data_dir=str(tmp_path / "moved"))
    with trieye.Run(config) as run:
        run.log_image("board", np.zeros((2, 2)), step=2)
        log_temporary(run, "c.txt", "new")
        run.step = 1
        run.save(x=1)
        run.mlflow_run_id(60.0)
    assert notes_of(config, tmp_path) == {"a.txt": "delivered", "b.txt": "waiting", "c.txt": "new"}
    assert not (tmp_path / "root").exists()
    assert not list(run.dir.glob("artifacts/*"))
    assert list(tmp_path.glob("moved/app/mlruns/artifacts/*/artifacts/images/board/step_2.png"))
    _, stored = in_mlflow(config.persistence.MLFLOW_TRACKING_URI)
    assert (tmp_path / "moved" / "app" / stored.data.tags["trieye.latest_checkpoint"]).is_dir()


def saved_run(make_config, policy, *, uri, objectives=(1.0, 3.0, 2.0), is_away=False):
    config = config_of(make_config, uri, log_checkpoints=policy, keep_last=1, keep_best=0)
    with trieye.Run(config) as run:
        assert (run.mlflow_run_id(0.0 if is_away else 60.0) is None) == is_away
        for step, objective in enumerate(objectives, 1):
            run.step = step
            run.save(objective=objective, model=np.full(10, step))
        run.wait_for_saves()
        return run.dir


def checkpoints_of(client, run):
    return [item.path for item in client.list_artifacts(run.info.run_id, "checkpoints")]


def test_mlflow_gets_the_best_checkpoints_even_if_retention_deletes_them(make_config, tmp_path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    run_dir = saved_run(make_config, "best", uri=uri)
    assert [path.name for path in run_dir.glob("checkpoints/checkpoint_*")] == ["checkpoint_step_3"]
    client, run = in_mlflow(uri)
    assert checkpoints_of(client, run) == ["checkpoints/checkpoint_step_1", "checkpoints/checkpoint_step_2"]
    local = client.download_artifacts(run.info.run_id, "checkpoints", str(tmp_path))
    assert (trieye.load_checkpoint(local, 2).objects["model"] == np.full(10, 2)).all()


@pytest.mark.long
def test_checkpoints_for_an_unreachable_tracker_are_delivered_by_a_later_attempt(make_config, tmp_path, uri):
    run_dir = saved_run(make_config, "all", uri=uri, objectives=(1.0, 2.0), is_away=True)
    assert len(list(run_dir.glob("artifacts/*/checkpoint_step_*"))) == 2
    repair(tmp_path / "store")
    saved_run(make_config, "all", uri=uri, objectives=())
    assert checkpoints_of(*in_mlflow(uri)) == ["checkpoints/checkpoint_step_1", "checkpoints/checkpoint_step_2"]
    assert not list(run_dir.glob("artifacts/*"))
