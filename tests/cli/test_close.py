import contextlib
import os
import re
import socket

import msgspec
import pytest

import trieye
from tests.cli.conftest import change_config, losses
from tests.curves import curves_in_mlflow, curves_in_tensorboard, mlflow_runs, record_of
from tests.damage import contents, flip
from trieye.cli import main
from trieye.hub.status import read_status
from trieye.journal.journal import Journal, Snapshot
from trieye.process.lock import RunLock

NOWHERE = "http://127.0.0.1:9"


def test_closing_a_killed_run_delivers_its_points_and_records_it_as_killed(killed_run, command):
    run = killed_run("mlflow")
    died = read_status(run)["time"]
    assert "mlflow, tensorboard: delivered all " in command.output("close", run)
    in_tensorboard, in_mlflow = curves_in_tensorboard(run), curves_in_mlflow(run)
    assert in_tensorboard["loss"] == losses()
    assert in_mlflow["loss"] == losses()
    assert [step for step, _ in in_tensorboard["reward/mean"]] == [0, 70, 140, 210, 280, 299]
    assert mlflow_runs(run)[1][0].info.status == "KILLED"
    record = record_of(run)
    assert (record.status, record.attempt, record.ended) == ("KILLED", 1, died)
    before = contents(run)
    assert "'first' is recorded as KILLED; already complete: mlflow and tensorboard" in command.output("close", run)
    assert contents(run) == before


@pytest.mark.long
def test_windows_stay_open_if_another_attempt_can_close_them(killed_run):
    run = killed_run("saves")
    assert main(["close", str(run)]) == 0
    shown = curves_in_tensorboard(run)
    assert shown["loss"] == losses()
    assert [step for step, _ in shown["reward/mean"]] == [0, 70, 140, 210, 280]


@pytest.mark.parametrize("command", ["close", "rebuild"])
def test_an_active_run_is_not_closed_and_its_process_is_named(make_config, capfd, command):
    with trieye.Run(make_config(sinks={"tensorboard": {"enabled": True}})) as run:
        assert main([command, str(run.dir)]) == 3
        assert run.health()["accepted"] == 0
    err = capfd.readouterr().err
    assert all(part in err for part in ("'run'", f"process {os.getpid()} ", socket.gethostname()))


def test_an_unreachable_sink_delays_no_other_sink_and_catches_up_later(killed_run, command):
    run = killed_run()
    change_config(run, "sinks", mlflow={"enabled": True})
    change_config(run, "persistence", mlflow_tracking_uri=NOWHERE)
    err = command.error("close", run, "--timeout", "0.2", code=1)
    assert re.search(rf"mlflow: 3\d\d items are missing: .*{NOWHERE}", err)
    assert "`trieye close` continues" in err
    assert record_of(run).status == "KILLED"
    assert curves_in_tensorboard(run)["loss"] == losses()
    change_config(run, "persistence", mlflow_tracking_uri=None)
    assert main(["close", str(run)]) == 0
    assert curves_in_mlflow(run)["loss"] == losses()
    assert curves_in_tensorboard(run)["loss"] == losses()


def test_intact_entries_of_a_damaged_journal_are_delivered_and_the_loss_is_reported(killed_run, capfd):
    run = killed_run()
    log = run / "journal.db-wal"
    flip(log, log.read_bytes().index(b"pass", log.stat().st_size // 2))
    assert main(["close", str(run)]) == 0
    assert "warning: the journal" in capfd.readouterr().err
    assert (run / "journal.db.damaged-1").exists()
    assert read_status(run)["dropped"]["journal_damage"] >= 1
    assert curves_in_tensorboard(run)["loss"][:200] == losses(end=200)


def test_a_run_that_fails_to_open_is_not_recorded_as_closed(killed_run):
    run = killed_run()
    with contextlib.closing(Journal(run / "journal.db")) as journal:
        journal.commit(Snapshot(journal.last_pos, 0, 0.0, b"of another version"), keep_after=0)
    with pytest.raises(msgspec.MsgspecError):
        main(["close", str(run)])
    record = record_of(run)
    assert (record.status, record.ended) == ("RUNNING", None)
    RunLock(run / "run.lock").acquire().release()


def test_closing_a_run_outside_a_root_says_where_to_move_it(killed_run, tmp_path, command):
    moved = killed_run().rename(tmp_path / "first")
    before = contents(moved)
    assert f"move it to <root>/<app>/runs/{moved.name}" in command.error("close", moved)
    assert contents(moved) == before


def test_an_unreadable_config_is_named(killed_run, command):
    run = killed_run()
    for content in (None, "", "{", "[]", '{"sinks": {}}', '{"persistence": 1, "sinks": {}}'):
        (run / "configs.json").unlink(missing_ok=True)
        if content is not None:
            (run / "configs.json").write_text(content)
        err = command.error("close", run)
        assert err.startswith(f"error: {run / 'configs.json'}")
        assert "cannot be read: " in err
