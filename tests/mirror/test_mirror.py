"""The mirror thread, alone and in a run: it uploads in the background and never stops the training."""

import json
import logging
import shutil
import threading
import time

import numpy as np
import pytest

import trieye
from tests.drop_in import training_state
from tests.mirror.mirrored_run import MirroredRun
from tests.waiting import LONG_S, wait_until
from trieye.compat.actor_logic import ActorLogic
from trieye.history.history import read_history
from trieye.mirror.mirror import Mirror
from trieye.mirror.restore import restore_run
from trieye.mirror.store import MirrorStore


@pytest.fixture
def break_mirror(tmp_path):
    """Return a function that breaks the mirror by a file at the path of its directory, or repairs it."""

    def put(*, broken):
        path = tmp_path / "mirror"
        if broken:
            path.write_bytes(b"")
        else:
            path.unlink()

    return put


def restored_step(tmp_path, url):
    shutil.rmtree(tmp_path / "second", ignore_errors=True)
    other = MirroredRun(tmp_path / "second", url, begin=False)
    return None if restore_run(other.paths, url) is None else other.checkpoints.latest().step


def test_checkpoints_are_uploaded_after_saves_and_at_the_end_and_the_journal_periodically(run, url, tmp_path):
    mirror = Mirror(url, run.paths, every_s=0.2)
    wait_until(lambda: mirror.health()["mirrored_at"] is not None)
    assert mirror.health()["committed"] is None
    run.save(1)
    mirror.wake()
    wait_until(lambda: mirror.health()["committed"] == "checkpoint_step_1")
    before = mirror.health()["mirrored_at"]
    wait_until(lambda: mirror.health()["mirrored_at"] > before)
    assert mirror.close(LONG_S)
    mirror = Mirror(url, run.paths, every_s=3600)
    wait_until(lambda: mirror.health()["mirrored_at"] is not None)
    run.save(3)
    assert mirror.close(LONG_S)
    assert mirror.health()["error"] is None
    assert restored_step(tmp_path, url) == 3


def recorded_calls(monkeypatch, method, before=lambda: None):
    """Record the arguments of each call of a store method, calling `before` first; return the list of calls."""
    calls, real = [], getattr(MirrorStore, method)

    def call(self, *arguments):
        calls.append(arguments)
        before()
        return real(self, *arguments)

    monkeypatch.setattr(MirrorStore, method, call)
    return calls


def test_an_outage_is_reported_once_and_pending_saves_follow_it(run, url, tmp_path, break_mirror, caplog, monkeypatch):
    break_mirror(broken=True)
    calls = recorded_calls(monkeypatch, "list")
    mirror = Mirror(url, run.paths, every_s=3600, first_delay_s=0.02)
    run.save(1)
    mirror.wake()
    wait_until(lambda: len(calls) > 4)
    assert "NotADirectoryError" in mirror.health()["error"]
    run.save(2)
    break_mirror(broken=False)
    wait_until(lambda: mirror.health()["committed"] == "checkpoint_step_2" and mirror.health()["error"] is None)
    assert mirror.close(LONG_S)
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 2, warnings
    assert "the run continues, and the upload is retried" in warnings[0]
    assert "works again" in warnings[1]
    assert restored_step(tmp_path, url) == 2


def test_a_mirror_that_lost_all_objects_is_refilled(run, url, tmp_path, caplog):
    mirror = Mirror(url, run.paths, every_s=0.1, first_delay_s=0.02)
    run.save(1)
    mirror.wake()
    wait_until(lambda: mirror.health()["committed"] == "checkpoint_step_1")
    (tmp_path / "mirror").rename(tmp_path / "lost")
    run.journal.append("e", b"", at=5.0)
    wait_until(lambda: "is missing from the mirror" in caplog.text)
    wait_until(lambda: mirror.health()["committed"] == "checkpoint_step_1" and mirror.health()["error"] is None)
    assert mirror.close(LONG_S)
    assert restored_step(tmp_path, url) == 1


def test_closing_does_not_wait_for_an_unavailable_mirror(run, url, tmp_path, break_mirror, caplog):
    break_mirror(broken=True)
    mirror = Mirror(url, run.paths, every_s=3600, first_delay_s=3600)
    run.save(1)
    wait_until(lambda: mirror.health()["error"])
    started_at = time.monotonic()
    assert not mirror.close(LONG_S)
    assert time.monotonic() - started_at < LONG_S / 2
    assert "did not receive the end of run" in caplog.text
    assert "is uploaded when the run is restarted" in caplog.text
    break_mirror(broken=False)
    next_mirror = Mirror(url, run.paths, every_s=3600)
    assert next_mirror.close(LONG_S)
    assert restored_step(tmp_path, url) == 1


def test_closing_abandons_a_hanging_mirror_which_then_stops_writing(run, url, caplog, monkeypatch):
    before = set(threading.enumerate())
    mirror = Mirror(url, run.paths, every_s=3600)
    (thread,) = set(threading.enumerate()) - before
    wait_until(lambda: mirror.health()["mirrored_at"] is not None)
    unblock = threading.Event()
    calls = recorded_calls(monkeypatch, "put", before=lambda: unblock.wait(LONG_S))
    run.save(1)
    mirror.wake()
    wait_until(lambda: calls)
    assert not mirror.close(0.05)
    assert "timeout of 0.05 s" in caplog.text
    unblock.set()
    thread.join(LONG_S)
    assert not thread.is_alive()
    assert len(calls) == 1


@pytest.mark.long
def test_a_patient_close_waits_while_uploads_progress(run, url, tmp_path, monkeypatch):
    mirror = Mirror(url, run.paths, every_s=3600)
    wait_until(lambda: mirror.health()["mirrored_at"] is not None)
    calls = recorded_calls(monkeypatch, "put", before=lambda: time.sleep(0.25))  # simulates a slow store
    for step in range(1, 9):
        run.save(step)
    assert mirror.close(3.0, patient=True)
    assert len(calls) * 0.25 > 3.0
    assert restored_step(tmp_path, url) == 8


def test_a_namesake_in_the_mirror_is_left_unchanged_and_stops_the_uploads_but_not_the_run(run, url, tmp_path, caplog):
    run.save(1)
    run.upload()
    before = run.store().list()
    other = MirroredRun(tmp_path / "second", url)
    mirror = Mirror(url, other.paths, every_s=0.01)
    wait_until(lambda: mirror.health()["error"])
    assert "has another run with the name" in mirror.health()["error"]
    assert not mirror.close(LONG_S)
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert sum("has another run" in error for error in errors) == 1
    assert run.store().list() == before
    other.journal.close()


def train(config, steps, *, stop_at=None):
    """Train, and save every fifth step; return the last total and step, the attempt, and the mirror's health."""
    with trieye.Run(config) as run:
        total = np.zeros(1000)
        if run.restore():
            total = run.restored["total"]
        for step in run.steps(steps):
            total = total + step
            run.log("total", float(total[0]))
            if step % 5 == 0:
                run.save(total=total)
            if step == stop_at:
                break
        return total, run.step, run.attempt, run.health()["mirror"]


def test_a_run_resumes_on_another_machine_with_its_identity_state_and_curves(make_config, tmp_path, url):
    def config(machine):
        store = {"mlflow_tracking_uri": f"sqlite:///{tmp_path}/mlflow.db"}
        persistence = {"root_data_dir": str(tmp_path / machine), "mirror": url, "keep_last": 2, **store}
        sinks = {"mlflow": {"enabled": True}, "tensorboard": {"enabled": True}}
        stats = {"metrics": [{"name": "total", "log_frequency_steps": 1}], "hub_metrics_interval_s": 0}
        return make_config(persistence=persistence, sinks=sinks, stats=stats)

    train(config("first"), 30, stop_at=15)
    shutil.rmtree(tmp_path / "first")
    total, step, attempt, mirror = train(config("second"), 30)
    assert (step, attempt, total[0], mirror["error"]) == (30, 2, sum(range(31)), None)
    run_dir = tmp_path / "second" / "app" / "runs" / "run"
    points = read_history(run_dir)
    curve = dict(zip(points["step"].to_pylist(), points["value"].to_pylist(), strict=True))
    assert curve == {step: sum(range(step + 1)) for step in range(1, 31)}
    assert "is restored from the mirror" in next((run_dir / "logs").glob("*.log")).read_text()
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    (mlflow_run,) = client.search_runs([client.get_experiment_by_name("app").experiment_id])
    assert mlflow_run.info.run_id == json.loads((run_dir / "run.json").read_text())["mlflow_run_id"]
    steps = [metric.step for metric in client.get_metric_history(mlflow_run.info.run_id, "total")]
    assert sorted(steps) == list(range(1, 31))


def test_retained_checkpoints_are_restored_in_the_background(make_config, tmp_path, url):
    def config(machine):
        persistence = {"root_data_dir": str(tmp_path / machine), "mirror": url, "keep_last": 3}
        return make_config(persistence=persistence)

    train(config("first"), 25)
    with trieye.Run(config("second")) as run:
        run.flush()  # the first use of the run starts the attempt
        checkpoints = run.dir / "checkpoints"
        wait_until(lambda: len(list(checkpoints.glob("checkpoint_step_*"))) == 3)
        assert sorted(path.name[-2:] for path in checkpoints.glob("checkpoint_step_*")) == ["15", "20", "25"]


def test_a_run_of_the_drop_in_api_is_restored_with_its_buffer(make_config, tmp_path, url):
    def logic(machine):
        persistence = {"root_data_dir": str(tmp_path / machine), "mirror": url, "auto_resume_latest": True}
        return ActorLogic(make_config(persistence=persistence)).open()

    first = logic("first")
    first.save_training_state(**training_state(7, buffer_content=[1, 2, 3], save_buffer=True))
    first.shutdown()
    second = logic("second")
    loaded = second.load_initial_state()
    assert (loaded.checkpoint_data.global_step, loaded.buffer_data.buffer_list) == (7, [1, 2, 3])
    assert second.files.record.run_id == first.files.record.run_id
    assert second.files.record.attempt == 2
    second.shutdown()
