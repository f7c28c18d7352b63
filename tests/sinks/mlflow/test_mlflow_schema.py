"""What a process that dies while it makes the MLflow database leaves to the next one."""

import contextlib
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy
from mlflow import MlflowClient
from mlflow.store.db import utils as mlflow_db

from tests.waiting import LONG_S, wait_until
from trieye.exceptions import TrieyeError
from trieye.sinks.mlflow.sink import MlflowSink
from trieye.sinks.mlflow.store import prepare_database
from trieye.stats.point import Point
from trieye.testing import make_run

PROGRAM = """
import sys
from pathlib import Path
if sys.argv[2] == "warm":
    import mlflow.store.tracking.sqlalchemy_store
from trieye.sinks.mlflow.sink import MlflowSink
from trieye.testing import make_run
print("ready", flush=True)
MlflowSink().open(make_run(Path(sys.argv[1])))
print("opened", flush=True)
sys.stdin.readline()
"""


def database_of(tmp_path):
    return make_run(tmp_path).mlflow_dir / "mlflow.db"


def start(tmp_path, how):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), how]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def kill(child):
    child.kill()
    child.communicate(timeout=LONG_S)


def open_and_write(tmp_path):
    run = make_run(tmp_path)
    sink = MlflowSink()
    sink.open(run)
    sink.write([Point("loss", 0.5, 1, 1.7e9)])
    sink.close("FINISHED")
    assert MlflowClient(tracking_uri=run.tracking_uri).get_run(sink.run_id).data.metrics == {"loss": 0.5}
    return sink.run_id


def names_in(directory):
    return {path.name for path in directory.iterdir()} - {"mlflow.db-wal", "mlflow.db-shm", "mlflow.db.lock"}


def execute(path, *statements):
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        return [connection.execute(statement).fetchall() for statement in statements]


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.8, 2.0])
def test_a_process_killed_in_its_first_seconds_does_not_stop_the_next(tmp_path, caplog, after_s):
    child = start(tmp_path, "cold")
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(after_s)
    kill(child)
    assert open_and_write(tmp_path)
    assert names_in(database_of(tmp_path).parent) == {"mlflow.db"}
    assert "damaged" not in caplog.text


@pytest.mark.parametrize("num_tables", [1, 20])
def test_a_process_killed_amid_the_migrations_leaves_no_database(tmp_path, num_tables):
    child = start(tmp_path, "warm")
    assert child.stdout.readline() == "ready\n"
    path = database_of(tmp_path)
    draft = path.with_name(f"mlflow.db.new-{child.pid}")
    wait_until(lambda: num_tables_in(draft) >= num_tables or path.exists())
    kill(child)
    assert draft.exists() or path.exists()
    assert open_and_write(tmp_path)
    assert names_in(path.parent) == {"mlflow.db"}


def num_tables_in(path):
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            return connection.execute("SELECT count(*) FROM sqlite_master WHERE type = 'table'").fetchone()[0]
    except sqlite3.Error:  # not there yet, or locked
        return -1


@pytest.fixture
def path(run_with_store):
    """Return where a copy of a whole and empty database is."""
    return run_with_store.mlflow_dir / "mlflow.db"


def test_a_file_that_is_no_database_is_left_alone_and_explained(tmp_path, path):
    path.write_bytes(b"not a database " * 1000)
    with pytest.raises(TrieyeError, match="file is not a database"):
        MlflowSink().open(make_run(tmp_path))
    assert path.read_bytes().startswith(b"not a database")


def test_a_whole_database_without_runs_is_used_as_it_is(tmp_path, path):
    execute(path, "INSERT INTO workspaces (name) VALUES ('of the user')")
    open_and_write(tmp_path)
    assert execute(path, "SELECT count(*) FROM workspaces WHERE name = 'of the user'") == [[(1,)]]
    assert names_in(path.parent) == {"mlflow.db"}


def test_drafts_of_dead_processes_and_journals_without_their_database_go(tmp_path):
    path = database_of(tmp_path)
    path.parent.mkdir(parents=True)
    for suffix in (".new-1", ".new-1-journal", "-wal", "-journal"):
        path.with_name(f"mlflow.db{suffix}").write_bytes(b"x" * 5000)
    prepare_database(path)
    assert [child.name for child in path.parent.iterdir()] == ["mlflow.db"]
    assert execute(path, "PRAGMA journal_mode", "PRAGMA integrity_check") == [[("wal",)], [("ok",)]]


def test_a_database_is_made_in_a_directory_with_an_odd_name(tmp_path):
    path = tmp_path / "a b [1] ü#" / "mlflow.db"
    path.parent.mkdir()
    prepare_database(path)
    assert [child.name for child in path.parent.iterdir()] == ["mlflow.db"]


def test_a_link_to_a_database_elsewhere_stays_a_link(tmp_path):
    link, target = database_of(tmp_path), tmp_path / "other disk" / "real.db"
    link.parent.mkdir(parents=True)
    link.symlink_to(target)
    assert open_and_write(tmp_path)
    assert link.is_symlink()
    assert execute(target, "SELECT count(*) FROM runs") == [[(1,)]]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nothing_keeps_the_draft_open(tmp_path):
    open_and_write(tmp_path)
    targets = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert [target for target in targets if ".new-" in target] == []


def test_the_tables_are_those_that_mlflow_makes_itself(tmp_path, path):
    theirs = tmp_path / "theirs.db"
    engine = sqlalchemy.create_engine(f"sqlite:///{theirs}", poolclass=sqlalchemy.NullPool)
    mlflow_db._initialize_tables(engine)
    assert shape_of(path) == shape_of(theirs)


def shape_of(path):
    """Return tables, indexes and columns; the order of constraints in the SQL text varies between processes."""
    (objects,) = execute(path, "SELECT type, name FROM sqlite_master ORDER BY type, name")
    columns = {
        name: sorted(column[1:3] for column in execute(path, f"PRAGMA table_info('{name}')")[0])
        for kind, name in objects
        if kind == "table"
    }
    return objects, columns
