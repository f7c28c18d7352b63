import dataclasses
import logging
import os
import shutil
import socket
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pytest
from mlflow import MlflowClient, environment_variables

from trieye.exceptions import ConfigurationError, SinkBusyError, TrieyeError
from trieye.sinks.mlflow.sink import MlflowSink
from trieye.sinks.mlflow.store import forget_connections, prepare_client
from trieye.testing import make_run_info

pytestmark = pytest.mark.usefixtures("warm_programs")


def test_the_activity_of_a_store_changes_with_the_writes_of_other_processes(run_with_store):
    sink = MlflowSink()
    sink.open(run_with_store)
    before = sink.store_activity()
    assert sink.store_activity() == before
    with closing(sqlite3.connect(run_with_store.mlflow_dir / "mlflow.db")) as other, other:
        other.execute("INSERT INTO experiment_tags VALUES ('tag', '', 0)")
    assert sink.store_activity() != before


def test_a_locked_database_is_busy_but_a_missing_one_is_not(run_with_store):
    class Client:
        path = run_with_store.mlflow_dir / "mlflow.db"

        def log_batch(self, run_id, **entities):  # MLflow's own waits 20 s
            with closing(sqlite3.connect(f"file:{self.path}?mode=rw", uri=True, timeout=0)) as connection:
                connection.execute("BEGIN IMMEDIATE")

    sink, run = MlflowSink(client=Client()), dataclasses.replace(run_with_store, mlflow_run_id="abc", tags={"a": "b"})
    with closing(sqlite3.connect(Client.path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SinkBusyError, match=r"mlflow\.db is locked by other processes"):
            sink.open(run)
    sink.open(run)
    Client.path = Client.path / "gone"
    with pytest.raises(TrieyeError, match="failed to write") as raised:
        sink.set_tags({"a": "b"})
    assert not isinstance(raised.value, SinkBusyError)


def test_a_store_with_a_redacted_password_is_never_contacted(tmp_path, monkeypatch):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(0)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://bob:s3cret@elsewhere")
        with pytest.raises(ConfigurationError, match=r"set the environment variable MLFLOW_TRACKING_URI") as caught:
            MlflowSink().open(make_run_info(tmp_path, tracking_uri=f"http://ann:***@{address}"))
        assert "currently http://bob:***@elsewhere" in str(caught.value)
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.fixture
def environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)
    return monkeypatch


def settings(uri=None):
    """Return MLflow's settings in a new thread, which first prepares the client for `uri` unless it is None."""
    from mlflow import environment_variables  # imported here, as a test may have reloaded MLflow

    names = ("HTTP_REQUEST_MAX_RETRIES", "HTTP_REQUEST_TIMEOUT", "ALLOW_FILE_STORE", "SUPPRESS_PRINTING_URL_TO_STDOUT")
    variables = [
        getattr(environment_variables, f"MLFLOW_{name}", None) for name in names
    ]  # older versions of MLflow lack one
    with ThreadPoolExecutor(1) as pool:  # another test may have opened a sink in this thread
        if uri is not None:
            pool.submit(prepare_client, uri).result()
        return [None if variable is None else pool.submit(variable.get).result() for variable in variables]


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("http://localhost:1", [1, 30, None, None]),
        ("https://ann:secret@localhost:1", [1, 30, None, True]),
        pytest.param(
            "file:///tmp/mlruns",
            [None, None, True, None],
            marks=pytest.mark.skipif(
                not hasattr(environment_variables, "MLFLOW_ALLOW_FILE_STORE"), reason="this MLflow allows them anyway"
            ),
        ),
    ],
)
def test_settings_of_a_store_apply_to_our_threads_only(environment, uri, expected):
    before, actual = settings(), settings(uri)
    assert before[:2] != [1, 30]
    assert [value if wanted is None else wanted for value, wanted in zip(actual, expected, strict=True)] == actual
    assert settings() == before
    assert not [name for name in os.environ if name.startswith("MLFLOW_")]


def test_user_settings_take_precedence(environment):
    environment.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "6")
    assert settings("https://localhost:1")[:2] == [6, 30]


def test_database_errors_of_mlflow_are_logged_only_outside_sink_threads(caplog, monkeypatch):
    prepare_client("sqlite:///store.db")
    monkeypatch.setattr(
        logging.getLogger("mlflow"), "propagate", True
    )  # otherwise, older versions of pytest miss its records
    fail = partial(logging.getLogger("mlflow.store.db.utils").error, "SQLAlchemy database error")
    sink = threading.Thread(target=fail, name="trieye-sink-mlflow")
    sink.start()
    sink.join()
    assert caplog.records == []
    fail()
    assert {record.name for record in caplog.records} == {"mlflow.store.db.utils"}


@pytest.fixture
def moved(run_with_store, tmp_path):
    """Move a store with a finished and an unfinished run, each with a file; return the moved run and the run ids."""
    (tmp_path / "a.txt").write_text("a")
    opened = {}
    for run_id, status in (("ended", "FINISHED"), ("alive", "RUNNING")):
        opened[run_id] = sink = MlflowSink()
        sink.open(dataclasses.replace(run_with_store, run_id=run_id))
        # written directly, as MLflow caches the artifact directory of a run for the life of the process
        directory = run_with_store.mlflow_dir / "artifacts" / sink.run_id / "artifacts"
        directory.mkdir(parents=True)
        (directory / "a.txt").write_text("a")
        sink.close(status)
    (tmp_path / "app").rename(tmp_path / "app.moving")
    (tmp_path / "new").mkdir()
    (tmp_path / "app.moving").rename(tmp_path / "new" / "app")
    return make_run_info(tmp_path / "new"), {name: sink.run_id for name, sink in opened.items()}


def artifact_uris(run, ids):
    client = MlflowClient(tracking_uri=run.tracking_uri)
    return {name: client.get_run(run_id).info.artifact_uri for name, run_id in ids.items()}


def artifact_uri(run, run_id):
    return (run.mlflow_dir / "artifacts" / run_id / "artifacts").as_uri()


def test_a_moved_store_updates_artifact_paths_except_of_running_runs(moved, tmp_path, caplog):
    run, ids = moved
    before = artifact_uris(run, ids)
    sink = MlflowSink()
    sink.open(dataclasses.replace(run, run_id="new"))
    sink.log_artifact(tmp_path / "a.txt", None)
    assert artifact_uris(run, ids) == {"ended": artifact_uri(run, ids["ended"]), "alive": before["alive"]}
    assert "was moved: the artifacts of 1 MLflow runs" in caplog.text
    MlflowSink().open(dataclasses.replace(run, run_id="alive", mlflow_run_id=ids["alive"]))
    assert artifact_uris(run, ids)["alive"] == artifact_uri(run, ids["alive"])
    client = MlflowClient(tracking_uri=run.tracking_uri)
    listed = {name: [file.path for file in client.list_artifacts(run_id)] for name, run_id in ids.items()}
    assert listed == {"ended": ["a.txt"], "alive": ["a.txt"]}
    assert not (tmp_path / "app").exists()


def test_a_copied_store_writes_nothing_into_the_original(moved, tmp_path):
    run, ids = moved
    shutil.copytree(tmp_path / "new", tmp_path / "app_of_before")
    (tmp_path / "app_of_before" / "app").rename(tmp_path / "app")  # the rows of both stores refer to this path
    sink = MlflowSink()
    sink.open(dataclasses.replace(run, run_id="alive", mlflow_run_id=ids["alive"]))
    sink.log_artifact(tmp_path / "a.txt", "more")
    assert (run.mlflow_dir / "artifacts" / ids["alive"] / "artifacts" / "more" / "a.txt").exists()
    assert not list((tmp_path / "app").rglob("more"))


def test_unmoved_artifacts_and_user_defined_locations_are_unchanged(moved, tmp_path):
    run, ids = moved
    shutil.move(run.mlflow_dir / "artifacts", tmp_path / "app" / "mlruns" / "artifacts")  # only the database has moved
    before = artifact_uris(run, ids)
    client = MlflowClient(tracking_uri=run.tracking_uri)
    chosen = client.create_experiment("other", artifact_location=(tmp_path / "gone" / "mlruns" / "artifacts").as_uri())
    MlflowSink().open(dataclasses.replace(run, run_id="ended", mlflow_run_id=ids["ended"]))
    assert artifact_uris(run, ids) == before
    assert client.get_experiment(chosen).artifact_location == (tmp_path / "gone" / "mlruns" / "artifacts").as_uri()


def test_a_replaced_database_is_reopened(tmp_path):
    path, backup = tmp_path / "mlflow.db", tmp_path / "backup.db"
    client = MlflowClient(f"sqlite:///{path}")
    client.create_experiment("first")
    shutil.copyfile(path, backup)
    client.create_experiment("second")
    path.unlink()
    backup.rename(path)
    forget_connections(path)
    client.create_experiment("third")
    with closing(sqlite3.connect(path)) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM experiments")}
    assert names == {"Default", "first", "third"}
