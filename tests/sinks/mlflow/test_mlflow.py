import dataclasses
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest
from mlflow import MlflowClient
from mlflow.entities import ViewType

from tests.sinks.feeding import SOON_S, add, points
from tests.waiting import wait_until
from trieye.exceptions import ProcessingError, SinkGoneError, TrieyeError
from trieye.run.table import table as table_of
from trieye.sinks.mlflow.run import RUN_ID_TAG, delete_run
from trieye.sinks.mlflow.sink import MlflowSink
from trieye.sinks.thread import SinkThread
from trieye.stats.operations import LogArtifact
from trieye.stats.point import Point
from trieye.testing import MemoryHistory, SinkContract, make_run_info


def client_of(run):
    return MlflowClient(tracking_uri=run.tracking_uri)


def runs_of(run):
    client = client_of(run)
    experiment = client.get_experiment_by_name(run.app_name)
    return client.search_runs([experiment.experiment_id], run_view_type=ViewType.ALL) if experiment else []


def opened(run, **options):
    sink = MlflowSink(**options)
    sink.open(run)
    return sink


def stored_run(run, sink):
    return client_of(run).get_run(sink.run_id)


class TestContract(SinkContract):
    exactly_once = True

    def make_sink(self):
        return MlflowSink()

    def read_points(self, run):
        client = client_of(run)
        # search_runs omits metrics with 64-bit values that no float represents, so get_run lists the names
        return [
            (metric.key, metric.value, metric.step)
            for mlflow_run in runs_of(run)
            for key in client.get_run(mlflow_run.info.run_id).data.metrics
            for metric in sorted(
                client.get_metric_history(mlflow_run.info.run_id, key), key=lambda metric: metric.timestamp
            )
        ]


@pytest.fixture
def run(tmp_path):
    return make_run_info(tmp_path, app_name="my app", run_name="first try")


def test_the_mlflow_run_has_our_names_times_and_status(run):
    reported_ids = []
    sink = opened(run, on_run_id=reported_ids.append)
    mlflow_run = stored_run(run, sink)
    assert reported_ids == [sink.run_id]
    assert (mlflow_run.info.run_name, mlflow_run.info.status) == ("first try", "RUNNING")
    assert abs(mlflow_run.info.start_time - run.created * 1000) < 2
    sink.write([Point("loss", 0.25, 10, run.created)])
    (point,) = client_of(run).get_metric_history(sink.run_id, "loss")
    assert (point.value, point.step, point.timestamp) == (0.25, 10, int(run.created * 1000))
    sink.close("KILLED")
    assert stored_run(run, sink).info.status == "KILLED"
    assert client_of(run).get_experiment_by_name("my app").experiment_id == mlflow_run.info.experiment_id


def test_a_later_attempt_continues_the_mlflow_run_even_if_its_id_was_not_recorded(run):
    first = opened(run)
    assert stored_run(run, first).data.tags[RUN_ID_TAG] == run.run_id
    first.close("FAILED")
    for recorded_id in (first.run_id, None):
        later = opened(dataclasses.replace(run, mlflow_run_id=recorded_id, tags={"b": "2"}))
        assert later.run_id == first.run_id
        assert (stored_run(run, later).info.status, stored_run(run, later).data.tags["b"]) == ("RUNNING", "2")
        later.close("FINISHED")
    assert stored_run(run, later).info.status == "FINISHED"
    assert len(runs_of(run)) == 1


def test_a_run_id_unknown_to_the_store_causes_a_new_run(run, caplog):
    run = dataclasses.replace(run, mlflow_run_id="0123456789abcdef0123456789abcdef")
    sink = opened(run)
    assert sink.run_id != run.mlflow_run_id
    assert "using another one" in caplog.text


def test_parameters_are_logged_once_and_never_change(run, caplog):
    sink = opened(run)
    sink.log_params({f"p{n}": str(n) for n in range(250)})
    sink.log_params({"p1": "1", "p2": "22", "bad@name": "x", "empty": ""})
    data = stored_run(run, sink).data
    assert len(data.params) == 252
    assert (data.params["p2"], data.params["bad_x40_name"], data.params["empty"]) == ("2", "x", "")
    assert (sink.num_refused, data.tags["trieye.changed.p2"]) == (0, "22")
    assert "MLflow keeps parameter 'p2'" in caplog.text
    assert "its new value '22'" in caplog.text
    assert "'p1'" not in caplog.text
    for value in ("222", "222", "2"):
        later = opened(run)
        later.log_params({"p1": "1", "p2": value})
        data = stored_run(run, later).data
        assert (data.params["p2"], data.tags["trieye.changed.p2"]) == ("2", value)
        assert "trieye.changed.p1" not in data.tags
    assert caplog.text.count("MLflow keeps parameter 'p2'") == 3


def test_the_experiment_gets_the_training_kind_unless_it_has_one(run):
    client = MlflowClient(tracking_uri=run.tracking_uri)
    for app_name, experiment_kind in [("ours", None), ("theirs", None), ("chosen", "genai_development")]:
        if app_name != "ours":
            opened(run)  # creates the database
            client.create_experiment(
                app_name, tags={} if experiment_kind is None else {"mlflow.experimentKind": experiment_kind}
            )
        opened(dataclasses.replace(run, app_name=app_name, run_id=app_name))
        tags = client.get_experiment_by_name(app_name).tags
        assert tags["mlflow.experimentKind"] == (experiment_kind or "custom_model_development")


def test_long_values_are_truncated_with_a_warning(run, caplog):
    sink = opened(run)
    sink.log_params({"config": "x" * 7000})
    sink.log_params({"config": "x" * 7000})
    sink.set_tags({"note": "y" * 9000})
    data = stored_run(run, sink).data
    assert len(data.params["config"]) == 6000
    assert len(data.tags["note"]) == 8000
    assert sink.num_refused == 0
    assert caplog.text.count("is truncated from 7000 to 6000") == 1


def test_tags_are_replaced_and_text_that_databases_cannot_store_is_escaped(run):
    sink = opened(dataclasses.replace(run, tags={"team": "a", "mlflow.note.content": "hello"}))
    sink.log_params({"path\ud800": "/data/\udcff\0"})
    sink.set_tags({"team": "b", "x@y": "1", "path": "\udcff"})
    sink.write([Point("a\ud800\0", 1.0, 1, 1.7e9)])
    data = stored_run(run, sink).data
    assert data.params == {"path_xd800_": "/data/\\udcff\\x00"}
    tags = {"team": "b", "x_x40_y": "1", "mlflow.note.content": "hello", "path": "\\udcff"}
    assert {name: data.tags[name] for name in tags} == tags
    assert data.metrics == {"a_xd800__x0_": 1.0}


def test_files_and_directories_become_artifacts_of_the_run_and_no_other_files(run, tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "a.yaml").write_text("a: 1")
    (tmp_path / "one.txt").write_text("1")
    sink = opened(run)
    sink.log_artifact(tmp_path / "one.txt", "sub/dir")
    sink.log_artifact(tmp_path / "configs", None)
    for folder in ("", "."):
        (tmp_path / f"two{folder}").write_text("2")
        sink.log_artifact(tmp_path / f"two{folder}", folder)
    for target in ("../../outside", "/tmp/outside"):
        with pytest.raises(ProcessingError, match=r"one\.txt"):
            sink.log_artifact(tmp_path / "one.txt", target)
    artifacts = run.mlflow_dir / "artifacts" / sink.run_id / "artifacts"
    assert (artifacts / "sub" / "dir" / "one.txt").read_text() == "1"
    assert (artifacts / "configs" / "a.yaml").read_text() == "a: 1"
    assert [file.path for file in client_of(run).list_artifacts(sink.run_id)] == ["configs", "sub", "two", "two."]


def test_a_repeated_artifact_may_have_been_deleted_locally(run, tmp_path):
    (tmp_path / "one.txt").write_text("1")
    sink = opened(run)
    sink.log_artifact(tmp_path / "one.txt", "sub")
    (tmp_path / "one.txt").unlink()
    sink.log_artifact(tmp_path / "one.txt", "sub")
    with pytest.raises(ProcessingError, match="does not exist"):
        sink.log_artifact(tmp_path / "one.txt", None)


def test_invalid_names_are_mapped_with_one_warning_each(run, caplog):
    sink = opened(run)
    for step in range(3):
        sink.write(
            [Point("acc@1", 0.5, step, 1.7e9), Point("a//b", 0.5, step, 1.7e9), Point("acc_x40_1", 2.0, step, 1.7e9)]
        )
    assert stored_run(run, sink).data.metrics == {"acc_x40_1": 0.5, "a/_x2f_b": 0.5, "acc_x5f_x40_1": 2.0}
    assert caplog.text.count("'acc@1' is logged as 'acc_x40_1'") == 1
    assert sink.num_refused == 0


def test_a_point_that_mlflow_rejects_drops_only_itself(run, caplog):
    sink = opened(run)
    points = [Point("loss", float(step), step, 1.7e9 + step) for step in range(50)]
    points[17] = Point("odd", 0.0, 17, 1.7e9)
    sink._names["odd"] = "odd@name"  # as if MLflow rejected one more character
    sink.write(points)
    assert len(client_of(run).get_metric_history(sink.run_id, "loss")) == 49
    assert sink.num_refused == 1
    assert "'odd@name'" in caplog.text


@pytest.mark.parametrize(("first", "impossible"), [("loss", "loss/actor"), ("loss/actor", "loss")])
def test_a_name_that_a_file_store_cannot_hold_drops_only_its_own_points(tmp_path, first, impossible, caplog):
    run = make_run_info(tmp_path, tracking_uri=(tmp_path / "mlruns").as_uri())
    sink = opened(run)
    names = ["a", first, impossible, "loss/critic", f"{first}/x"]
    for begin, end in ((0, 15), (15, 20)):
        sink.write([Point(name, 0.5, step, 1.7e9) for step in range(begin, end) for name in names])
    stored_names = set(stored_run(run, sink).data.metrics)
    assert {"a", first} <= stored_names < set(names)
    for name in stored_names:
        steps = [point.step for point in client_of(run).get_metric_history(sink.run_id, name)]
        assert steps == list(range(20)), name
    assert sink.num_refused == 20 * (len(names) - len(stored_names))
    assert caplog.text.count(f"MLflow rejects metrics {impossible!r}") == 1


def test_an_error_about_a_path_with_the_word_disk_does_not_mention_a_full_disk(tmp_path):
    (tmp_path / "disk1").write_text("a file where the store belongs")
    with pytest.raises(TrieyeError, match=r"cannot be read: .*disk1") as error_info:
        delete_run((tmp_path / "disk1" / "mlruns").as_uri(), "0" * 32)
    assert "free some space" not in str(error_info.value)


def test_points_do_not_wait_for_a_broken_artifact_store(run, tmp_path, caplog):
    uploads = tmp_path / "uploads"
    uploads.write_text("a file where the artifacts belong")
    client_of(run).create_experiment("my app", artifact_location=uploads.as_uri())
    (run.run_dir / "one.txt").write_text("1")
    source = MemoryHistory([LogArtifact("one.txt", "sub"), Point("loss", 0.5, 1, 1.7e9), LogArtifact("one.txt", None)])
    thread = SinkThread(sink := MlflowSink(), run, source, first_delay_s=0.01)
    assert thread.close("FINISHED", SOON_S)
    assert stored_run(run, sink).data.metrics == {"loss": 0.5}
    assert thread.refused == 2
    uri = f"{uploads.as_uri()}/{sink.run_id}/artifacts"
    assert f"artifact one.txt cannot be uploaded to {uri}/sub: " in caplog.text
    assert f"artifacts missing in MLflow: 2 (latest: artifact one.txt cannot be uploaded to {uri}" in caplog.text
    assert f"`trieye rebuild {run.run_dir} --sink mlflow`" in caplog.text


def test_points_wait_until_a_deleted_experiment_is_restored(run, caplog):
    sink, client = opened(run), client_of(run)
    experiment_id = client.get_experiment_by_name("my app").experiment_id
    client.delete_experiment(experiment_id)
    command = f"mlflow experiments restore --experiment-id {experiment_id}"
    with pytest.raises(SinkGoneError, match=f"`MLFLOW_TRACKING_URI={run.tracking_uri} {command}`"):
        sink.write([Point("loss", 1.0, 1, 1.7e9)])
    thread = SinkThread(later := MlflowSink(), run, MemoryHistory([Point("loss", 1.0, 1, 1.7e9)]), first_delay_s=0.05)
    wait_until(lambda: command in caplog.text)
    assert "my app" in thread.error
    client.restore_experiment(experiment_id)
    assert thread.close("FINISHED", SOON_S)
    assert stored_run(run, later).data.metrics == {"loss": 1.0}


def test_points_wait_until_a_deleted_run_is_restored(run):
    sink = opened(run)
    client_of(run).delete_run(sink.run_id)
    points = [Point("loss", 1.0, 1, 1.7e9), Point("loss", 0.5, 2, 1.7e9)]
    with pytest.raises(TrieyeError, match=f"mlflow runs restore --run-id {sink.run_id}") as refusal:
        sink.write(points)
    assert f"`MLFLOW_TRACKING_URI={run.tracking_uri} mlflow" in str(refusal.value)
    with pytest.raises(TrieyeError, match="was deleted"):
        opened(make_run_info(run.mlflow_dir.parent.parent, app_name="my app", mlflow_run_id=sink.run_id))
    assert sink.num_refused == 0
    client_of(run).restore_run(sink.run_id)
    sink.write(points)
    assert len(client_of(run).get_metric_history(sink.run_id, "loss")) == 2


@pytest.mark.parametrize("deleted", ["database", "run"])
def test_a_store_deleted_during_a_run_is_refilled_at_the_next_start(run, caplog, deleted):
    source, sink = MemoryHistory(points(0, 10)), MlflowSink()
    thread = SinkThread(sink, run, source, first_delay_s=0.01)
    assert thread.flush(SOON_S)
    if deleted == "database":
        shutil.rmtree(run.mlflow_dir)
    else:  # by `mlflow gc`
        with closing(sqlite3.connect(run.mlflow_dir / "mlflow.db")) as connection, connection:
            connection.executescript(
                "DELETE FROM latest_metrics; DELETE FROM metrics; DELETE FROM tags; DELETE FROM runs"
            )
    for first in range(10, 40, 10):
        add(thread, source, points(first, 10))
        assert not thread.flush(0.1)
    assert thread.health.is_gone
    started_at = time.monotonic()
    assert not thread.close("FINISHED", SOON_S)
    assert time.monotonic() - started_at < SOON_S / 2
    (warning,) = (record.getMessage() for record in caplog.records if "trieye rebuild" in record.getMessage())
    assert f"`trieye rebuild {run.run_dir} --sink mlflow`" in warning
    next_thread = SinkThread(sink := MlflowSink(), dataclasses.replace(run, mlflow_run_id=sink.run_id), source)
    assert next_thread.close("FINISHED", SOON_S)
    assert sorted(m.step for m in client_of(run).get_metric_history(sink.run_id, "m")) == list(range(40))


def test_a_store_that_cannot_be_created_is_explained(tmp_path):
    run = make_run_info(tmp_path)
    run.mlflow_dir.write_text("a file where the directory of the store belongs")
    with pytest.raises(TrieyeError, match=r"MLflow at sqlite:.* failed to open: .*directory is writable"):
        opened(run)


PROGRAM_WITHOUT_HOME = """
import os, pathlib, sys
from trieye.sinks.mlflow.sink import MlflowSink
from trieye.testing import make_run_info

del os.environ["HOME"]
os.getuid = lambda: 2**31 - 2  # as in a container, without an entry in /etc/passwd
MlflowSink().open(make_run_info(pathlib.Path(sys.argv[1])))
"""


def test_a_user_without_a_home_directory_is_told_to_set_home(tmp_path):
    arguments = [sys.executable, "-c", PROGRAM_WITHOUT_HOME, str(tmp_path)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=120)
    assert "set the environment variable HOME" in done.stderr.splitlines()[-1]


def test_an_injected_client_and_run_are_used_unchanged(run, tmp_path):
    client = client_of(run)
    run_id = client.create_run(client.create_experiment("theirs")).info.run_id
    injected = make_run_info(tmp_path / "here", mlflow_run_id=run_id)
    sink = opened(injected, client=client)
    sink.write([Point("loss", 1.0, 1, 1.7e9)])
    assert client.get_run(run_id).data.metrics == {"loss": 1.0}
    assert not injected.mlflow_dir.exists()


def test_a_failed_write_is_an_error_even_with_asynchronous_logging(run_with_store, monkeypatch):
    monkeypatch.setenv("MLFLOW_ENABLE_ASYNC_LOGGING", "true")
    sink = opened(run_with_store)
    with closing(sqlite3.connect(run_with_store.mlflow_dir / "mlflow.db")) as database:
        for table in ("metrics", "params", "tags"):
            database.execute(f"CREATE TRIGGER t_{table} BEFORE INSERT ON {table} BEGIN DELETE FROM gone; END")  # noqa: S608
    calls = {
        "write": lambda: sink.write([Point("loss", 0.5, 3, 1.7e9)]),
        "log_params": lambda: sink.log_params({"lr": "0.1"}),
        "set_tags": lambda: sink.set_tags({"note": "x"}),
        "log_media": lambda: sink.log_media(table_of("games", {"a": [1]}, step=1, time=1.7e9)),
    }
    for name, call in calls.items():
        with pytest.raises(TrieyeError, match="failed to write"):
            pytest.fail(f"{name} returned {call()}")
