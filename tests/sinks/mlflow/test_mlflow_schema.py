"""Creating the MLflow database, also after a process was killed during its creation."""

import contextlib
import logging
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests import warm
from tests.waiting import LONG_S, wait_until
from trieye.exceptions import TrieyeError
from trieye.sinks.mlflow import store
from trieye.sinks.mlflow.sink import MlflowSink
from trieye.sinks.mlflow.store import prepare_database
from trieye.stats.point import Point
from trieye.testing import make_run_info

pytestmark = pytest.mark.usefixtures("warm_programs")

PROGRAM = """
import importlib
import sys
from pathlib import Path
import mlflow.store.tracking.sqlalchemy_store
from trieye.sinks.mlflow import store
from trieye.sinks.mlflow.sink import MlflowSink
importlib.reload(store)  # a warm program copies tables instead of creating them
from trieye.testing import make_run_info
print("ready", flush=True)
MlflowSink().open(make_run_info(Path(sys.argv[1])))
"""


@pytest.fixture
def _real_tables(monkeypatch):
    """Let MLflow create the tables, which other tests copy."""
    monkeypatch.setattr(store, "_make_tables", warm.make_tables)


def database_of(tmp_path):
    return make_run_info(tmp_path).mlflow_dir / "mlflow.db"


def open_and_write(tmp_path):
    run = make_run_info(tmp_path)
    sink = MlflowSink()
    sink.open(run)
    sink.write([Point("loss", 0.5, 1, 1.7e9)])
    sink.close("FINISHED")
    assert MlflowClient(tracking_uri=run.tracking_uri).get_run(sink.run_id).data.metrics == {"loss": 0.5}
    return sink.run_id


def names_in(directory):
    return {path.name for path in directory.iterdir() if not path.name.endswith(("-wal", "-shm", ".lock"))}


def execute(path, *statements):
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        return [connection.execute(statement).fetchall() for statement in statements]


@pytest.mark.long
@pytest.mark.usefixtures("_real_tables")
def test_a_process_killed_during_migrations_leaves_them_to_another_and_no_partial_database(tmp_path):
    path = database_of(tmp_path)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    drafts = {child: path.with_name(f"mlflow.db.new-{child.pid}") for child in children}
    for child in children:
        assert child.stdout.readline() == "ready\n"
    wait_until(lambda: path.exists() or any(num_tables_in(draft) >= 20 for draft in drafts.values()))
    killed, other = sorted(children, key=lambda child: not drafts[child].exists())
    killed.kill()
    for child in children:
        child.communicate(timeout=LONG_S)
    assert other.returncode == 0
    assert open_and_write(tmp_path)
    assert names_in(path.parent) == {"mlflow.db"}


def num_tables_in(path):
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            return connection.execute("SELECT count(*) FROM sqlite_master WHERE type = 'table'").fetchone()[0]
    except sqlite3.Error:  # missing or locked
        return -1


@pytest.fixture
def path(run_with_store):
    """Return the path of an intact database without runs."""
    return run_with_store.mlflow_dir / "mlflow.db"


def test_a_file_that_is_no_database_is_reported_and_unchanged(tmp_path, path):
    path.write_bytes(b"not a database " * 1000)
    with pytest.raises(TrieyeError, match="file is not a database"):
        MlflowSink().open(make_run_info(tmp_path))
    assert path.read_bytes().startswith(b"not a database")


def test_an_intact_database_without_runs_is_reused(tmp_path, path):
    execute(path, "INSERT INTO workspaces (name) VALUES ('of the user')")
    open_and_write(tmp_path)
    assert execute(path, "SELECT count(*) FROM workspaces WHERE name = 'of the user'") == [[(1,)]]
    assert names_in(path.parent) == {"mlflow.db"}


@pytest.mark.usefixtures("_real_tables")
def test_drafts_of_dead_processes_and_orphaned_journals_are_removed(tmp_path):
    path = database_of(tmp_path)
    path.parent.mkdir(parents=True)
    for suffix in (".new-1", ".new-1-journal", "-wal", "-journal"):
        path.with_name(f"mlflow.db{suffix}").write_bytes(b"x" * 5000)
    prepare_database(path)
    assert [child.name for child in path.parent.iterdir()] == ["mlflow.db"]
    assert execute(path, "PRAGMA journal_mode", "PRAGMA integrity_check") == [[("wal",)], [("ok",)]]


@pytest.mark.usefixtures("_real_tables")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_database_is_created_durably_at_the_target_of_a_link(tmp_path, monkeypatch, caplog, capfd):
    link, target = database_of(tmp_path), tmp_path / "a b [1] ü#" / "real.db"
    link.parent.mkdir(parents=True)
    link.symlink_to(target)
    synced, fsync = [], os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda file: (synced.append(Path(f"/proc/self/fd/{file}").readlink()), fsync(file))
    )
    with caplog.at_level(logging.WARNING):
        assert open_and_write(tmp_path)
    assert (caplog.records, capfd.readouterr().err) == ([], "")
    assert synced[-1] == target.parent
    assert link.is_symlink()
    assert names_in(target.parent) == {"real.db"}
    assert execute(target, "SELECT count(*) FROM runs") == [[(1,)]]
    still_open = [str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    assert [file for file in still_open if ".new-" in file] == []
