import json

import pytest

from trieye.exceptions import SerializationError
from trieye.files.run_record import MAX_EARLIER_FORKS, ForkPoint, RunRecord, open_run_record


def test_a_restart_keeps_the_identity_and_counts_the_attempt(tmp_path):
    path = tmp_path / "run" / "run.json"
    first = open_run_record(path, app_name="a", run_name="r", config_hash="h1", tags={"x": "1"}, resumed_from="there")
    first.mlflow_run_id = "m"
    first.summary = {"loss": {"last": 1.5, "min": 1, "max": 2, "step": 5}}
    first.close(path, "KILLED")
    second = open_run_record(path, app_name="a", run_name="r", config_hash="h2", tags={"y": "2"})
    assert (second.run_id, second.mlflow_run_id, second.created) == (first.run_id, "m", first.created)
    assert (second.attempt, second.status, second.ended) == (2, "RUNNING", None)
    assert (second.config_hash, second.tags, second.resumed_from) == ("h2", {"x": "1", "y": "2"}, None)
    assert second.started >= first.ended
    assert second.summary == {"loss": {"last": 1.5, "min": 1, "max": 2, "step": 5}}
    assert RunRecord.read(path) == second


def test_two_runs_have_different_ids(tmp_path):
    records = [open_run_record(tmp_path / name / "run.json", app_name="a", run_name=name) for name in ("x", "y")]
    assert records[0].run_id != records[1].run_id
    assert all(len(record.run_id) == 32 for record in records)


def test_a_truncated_or_invalid_record_is_never_overwritten(tmp_path):
    path = tmp_path / "run.json"
    open_run_record(path, app_name="a", run_name="r")
    whole = path.read_bytes().rstrip()
    for content in (*(whole[:size] for size in range(len(whole))), b"[]", b'{"run_id": "x"}', b"\xff\xfe"):
        path.write_bytes(content)
        with pytest.raises(SerializationError, match=r"run\.json"):
            open_run_record(path, app_name="a", run_name="r")
        assert path.read_bytes() == content


def test_a_file_in_place_of_a_run_directory_is_named(tmp_path):
    (tmp_path / "run").touch()
    with pytest.raises(SerializationError, match=r"run is not a directory, so it contains no run$"):
        RunRecord.read(tmp_path / "run" / "run.json")


def test_fields_of_a_later_version_survive_a_restart(tmp_path):
    path = tmp_path / "run.json"
    open_run_record(path, app_name="a", run_name="r")
    content = json.loads(path.read_text()) | {"invented_later": [1]}
    path.write_text(json.dumps(content))
    open_run_record(path, app_name="a", run_name="r")
    assert json.loads(path.read_text())["invented_later"] == [1]


def test_a_record_that_cannot_be_written_is_reported_by_path(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SerializationError, match="file"):
        RunRecord(app_name="a", run_name="r").save(tmp_path / "file" / "run.json")


def test_a_record_stays_readable_after_any_number_of_forks(tmp_path):
    path, num = tmp_path / "run.json", 250
    fork = None
    for step in range(num):
        fork = ForkPoint(app_name="a", run_name="r", step=step, checkpoint="c", before=fork)
    RunRecord(app_name="a", run_name="r", forked_from=fork).save(path)
    names = RunRecord.read(path).forked_from.line.split(", which was forked from ")
    assert names == [f"a/r@{step}" for step in range(num - 1, num - 2 - MAX_EARLIER_FORKS, -1)]
