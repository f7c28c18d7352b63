"""Checkpoints as artifacts of trackers: which ones, without replay, and safe from retention until they are there."""

import numpy as np
import pytest

import trieye
from tests.persistence.growing import Log
from trieye.persistence.checkpoint_artifacts import CheckpointArtifacts
from trieye.persistence.checkpoints import CheckpointStore
from trieye.persistence.encoding import encode
from trieye.persistence.manifest import read_manifest, verify


@pytest.fixture
def checkpoint(tmp_path):
    log = Log()
    log.extend(10)
    return CheckpointStore(tmp_path / "checkpoints").save(1, encode({"a": np.ones(5), "log": log}, copy=False))


def artifacts(tmp_path, policy, *, with_parts=False):
    return CheckpointArtifacts(tmp_path / "artifacts", policy, with_parts=with_parts)


@pytest.mark.parametrize(("policy", "taken"), [("none", set()), ("best", {True}), ("all", {True, False})])
def test_the_policy_says_which_checkpoints_trackers_get(checkpoint, tmp_path, policy, taken):
    staged = {best: artifacts(tmp_path, policy).stage(checkpoint, is_best=best) for best in (True, False)}
    assert {best for best, path in staged.items() if path is not None} == taken
    assert all(path.name == "checkpoint_step_1" for path in staged.values() if path is not None)


def test_what_grows_is_left_out_and_what_is_left_is_whole(checkpoint, tmp_path):
    staged = artifacts(tmp_path, "all").stage(checkpoint, is_best=False)
    manifest = verify(staged)
    assert not manifest.part_names
    assert manifest.metadata["left_out"] == [f"parts/{path.name}" for path in checkpoint.glob("parts/*")]
    assert sorted(path.name for path in staged.iterdir()) == ["MANIFEST.json", "state.json", "state.safetensors"]


def test_what_grows_comes_along_if_it_is_asked_for_and_takes_no_room(checkpoint, tmp_path):
    staged = artifacts(tmp_path, "all", with_parts=True).stage(checkpoint, is_best=False)
    assert verify(staged) == read_manifest(checkpoint)
    for path in checkpoint.rglob("*.safetensors"):
        assert path.samefile(staged / path.relative_to(checkpoint))


def test_a_copy_goes_when_every_tracker_has_it(checkpoint, tmp_path):
    held = artifacts(tmp_path, "all")
    first, second, killed = (held.stage(checkpoint, is_best=False) for _ in range(3))
    held.note_recorded(first, 5)
    held.note_recorded(second, 7)
    held.release(delivered=4, end=9)
    assert first.exists()
    held.release(delivered=5, end=9)
    assert (first.exists(), second.exists(), killed.exists()) == (False, True, True)
    held.release(delivered=8, end=20)
    assert (second.exists(), killed.exists()) == (False, True)
    held.release(delivered=9, end=20)
    assert not killed.exists()


def saved_run(make_config, tmp_path, policy, *, uri, objectives=(1.0, 3.0, 2.0), is_away=False):
    config = make_config(
        persistence={"log_checkpoints": policy, "keep_last": 1, "keep_best": 0, "mlflow_tracking_uri": uri},
        sinks={"mlflow": {"enabled": True}},
    )
    with trieye.Run(config) as run:
        assert (run.mlflow_run_id(0.0 if is_away else 60.0) is None) == is_away
        for step, objective in enumerate(objectives, 1):
            run.step = step
            run.save(objective=objective, model=np.full(10, step))
        run.wait_for_saves()
        return run.dir, run.health()


def logged(uri):
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    (found,) = client.search_runs([client.get_experiment_by_name("app").experiment_id])
    return client, found.info.run_id, [item.path for item in client.list_artifacts(found.info.run_id, "checkpoints")]


@pytest.mark.parametrize(("policy", "steps"), [("all", [1, 2, 3]), ("best", [1, 2])])
def test_mlflow_gets_what_the_policy_says_although_retention_deletes_it(make_config, tmp_path, policy, steps):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    run_dir, _ = saved_run(make_config, tmp_path, policy, uri=uri)
    assert [path.name for path in run_dir.glob("checkpoints/checkpoint_*")] == ["checkpoint_step_3"]
    client, run_id, found = logged(uri)
    assert found == [f"checkpoints/checkpoint_step_{step}" for step in steps]
    local = client.download_artifacts(run_id, "checkpoints", str(tmp_path))
    loaded = trieye.load_checkpoint(local, steps[-1])
    assert (loaded.objects["model"] == np.full(10, steps[-1])).all()


def test_a_checkpoint_waits_for_a_tracker_that_is_away_until_a_later_attempt(make_config, tmp_path):
    uri = f"sqlite:///{tmp_path}/store/mlflow.db"
    (tmp_path / "store").write_bytes(b"")
    run_dir, _ = saved_run(make_config, tmp_path, "all", uri=uri, objectives=(1.0, 2.0), is_away=True)
    assert len(list(run_dir.glob("artifacts/*/checkpoint_step_*"))) == 2
    (tmp_path / "store").unlink()
    (tmp_path / "store").mkdir()
    saved_run(make_config, tmp_path, "all", uri=uri, objectives=())
    assert logged(uri)[2] == ["checkpoints/checkpoint_step_1", "checkpoints/checkpoint_step_2"]
    assert not list(run_dir.glob("artifacts/*"))
