"""The summary of a sweep in its parent run."""

import json
from pathlib import Path

import pytest
from mlflow import MlflowClient

import trieye
from trieye.sinks.mlflow.run import PARENT_TAG
from trieye.sweeps.jobs import RUN, JobRecord
from trieye.sweeps.record import SweepRecord
from trieye.sweeps.status import status_of, sum_up
from trieye.sweeps.tracking import show_in_mlflow


@pytest.fixture
def sweep(make_config, tmp_path):
    """Return the directory of a sweep, its MLflow store, and a function that adds a completed job with its run."""
    directory, uri = tmp_path / "multirun" / "s", f"sqlite:///{tmp_path}/mlflow.db"

    def add(index: int, lr: str, objective: float) -> str:
        persistence = {"mlflow_tracking_uri": uri}
        config = make_config(run_name=f"s_{index}", sinks={"mlflow": {"enabled": True}}, persistence=persistence)
        with trieye.Run(config, group=str(directory)) as run:
            member = run.mlflow_run_id(60.0)
        job = JobRecord(index=index, overrides=[f"lr={lr}"], state="completed", objective=objective)
        job.write(directory / str(index))
        (directory / str(index) / RUN).symlink_to(run.dir)
        return member

    return directory, uri, add


def shown(directory, size):
    record = SweepRecord(spec=["lr=0.1,0.9"], size=size, varying=["lr"])
    record.write(directory)
    sum_up(status_of(directory), record)
    show_in_mlflow(directory, record, status_of(directory))


def test_a_sweep_is_summarized_in_its_parent_run_and_grows(sweep, tmp_path):
    directory, uri, add = sweep
    members = [add(0, "0.1", 2.0), add(1, "a|b", 5.0)]
    shown(directory, 2)
    client = MlflowClient(tracking_uri=uri)
    (parent_id,) = {client.get_run(member).data.tags[PARENT_TAG] for member in members}
    parent = client.get_run(parent_id).data
    assert parent.params == {"lr": "0.1, a|b"}
    assert parent.metrics == {"jobs/completed": 2.0, "best_objective": 5.0}
    note = parent.tags["mlflow.note.content"].splitlines()
    assert note == [
        "2 jobs: 2 completed",
        "",
        "| job | lr | objective |",
        "| --- | --- | --- |",
        r"| 1 | a\|b | 5 |",
        "| 0 | 0.1 | 2 |",
    ]
    table = json.loads(Path(client.download_artifacts(parent_id, "jobs.json", str(tmp_path))).read_text())
    assert table["columns"] == ["job", "state", "lr", "objective", "run"]
    assert table["data"] == [[0, "completed", "0.1", 2.0, members[0]], [1, "completed", "a|b", 5.0, members[1]]]
    add(2, "0.9", 7.0)
    shown(directory, 3)
    parent = client.get_run(parent_id).data
    assert (parent.params["lr"], parent.tags["lr"]) == ("0.1, a|b", "0.1, a|b, 0.9")  # parameters are immutable
    assert parent.metrics == {"jobs/completed": 3.0, "best_objective": 7.0}


def test_a_store_that_fails_is_reported_and_stops_no_sweep(sweep, tmp_path, capsys):
    directory, _, add = sweep
    add(0, "0.1", 2.0)
    (tmp_path / "mlflow.db").write_bytes(b"no database" * 100)
    shown(directory, 1)
    assert "trieye: sweep: the sweep cannot be shown in MLflow at sqlite:///" in capsys.readouterr().err
