import contextlib
import json
import os
import re
import socket

import msgspec
import pytest

import trieye
from tests.cli.conftest import losses
from tests.curves import curves_in_mlflow, curves_in_tensorboard, mlflow_runs, record_of
from tests.damage import contents, flip
from trieye.cli import main
from trieye.hub.status import read_status
from trieye.journal.journal import Journal, Snapshot
from trieye.process.lock import RunLock

NOWHERE = "http://127.0.0.1:9"


def change_config(run_dir, part, **changes):
    path = run_dir / "configs.json"
    record = json.loads(path.read_text())
    record[part].update(changes)
    path.write_text(json.dumps(record))


def test_close_delivers_what_a_killed_run_left_and_records_it_as_killed(killed_run, capsys):
    run = killed_run("mlflow")
    died = read_status(run)["time"]
    assert main(["close", str(run)]) == 0
    shown, stored = curves_in_tensorboard(run), curves_in_mlflow(run)
    assert shown["loss"] == losses()
    assert stored["loss"] == losses()
    assert [step for step, _ in shown["reward/mean"]] == [0, 70, 140, 210, 280, 299]
    assert mlflow_runs(run)[1][0].info.status == "KILLED"
    record = record_of(run)
    assert (record.status, record.attempt, record.ended) == ("KILLED", 1, died)
    assert "mlflow, tensorboard: delivered all " in capsys.readouterr().out


def test_a_run_that_has_nothing_to_deliver_is_not_touched(killed_run, capsys):
    run = killed_run()
    assert main(["close", str(run)]) == 0
    before = contents(run)
    assert main(["close", str(run)]) == 0
    assert contents(run) == before
    assert "'first' is recorded as KILLED; already complete: tensorboard" in capsys.readouterr().out


def test_windows_stay_open_if_another_attempt_can_close_them(killed_run):
    run = killed_run("saves")
    assert main(["close", str(run)]) == 0
    shown = curves_in_tensorboard(run)
    assert shown["loss"] == losses()
    assert [step for step, _ in shown["reward/mean"]] == [0, 70, 140, 210, 280]


@pytest.mark.parametrize("command", ["close", "rebuild"])
def test_a_run_that_is_alive_is_left_alone_and_its_holder_named(make_config, capsys, command):
    with trieye.Run(make_config(sinks={"tensorboard": {"enabled": True}})) as run:
        assert main([command, str(run.dir)]) == 3
        assert run.health()["accepted"] == 0
    err = capsys.readouterr().err
    assert all(part in err for part in ("'run'", f"process {os.getpid()} ", socket.gethostname()))


def test_a_sink_that_does_not_answer_costs_the_others_nothing_and_can_be_served_later(killed_run, capsys):
    run = killed_run()
    change_config(run, "sinks", mlflow={"enabled": True})
    change_config(run, "persistence", mlflow_tracking_uri=NOWHERE)
    assert main(["close", str(run), "--timeout", "0.2"]) == 1
    err = capsys.readouterr().err
    assert re.search(rf"mlflow: 3\d\d items are missing: .*{NOWHERE}", err)
    assert "`trieye close` continues" in err
    assert record_of(run).status == "KILLED"
    assert curves_in_tensorboard(run)["loss"] == losses()
    change_config(run, "persistence", mlflow_tracking_uri=None)
    assert main(["close", str(run)]) == 0
    assert curves_in_mlflow(run)["loss"] == losses()
    assert curves_in_tensorboard(run)["loss"] == losses()


def test_what_is_whole_in_a_damaged_journal_is_delivered_and_the_loss_is_told(killed_run, capsys):
    run = killed_run()
    log = run / "journal.db-wal"
    flip(log, log.read_bytes().index(b"pass", log.stat().st_size // 2))
    assert main(["close", str(run)]) == 0
    assert "warning: the journal" in capsys.readouterr().err
    assert (run / "journal.db.damaged-1").exists()
    assert read_status(run)["dropped"]["journal_damage"] >= 1
    assert curves_in_tensorboard(run)["loss"][:200] == losses(end=200)


def test_a_run_killed_before_its_hub_had_a_journal_can_be_closed(killed_run):
    run = killed_run()
    for path in run.glob("journal.db*"):
        path.unlink()
    assert main(["close", str(run)]) == 0
    assert record_of(run).status == "KILLED"
    assert Journal(run / "journal.db").damage == []


def test_a_run_that_cannot_be_opened_stays_one_to_be_closed(killed_run):
    run = killed_run()
    with contextlib.closing(Journal(run / "journal.db")) as journal:
        journal.commit(Snapshot(journal.last_pos, 0, 0.0, b"of another version"), keep_after=0)
    with pytest.raises(msgspec.MsgspecError):
        main(["close", str(run)])
    record = record_of(run)
    assert (record.status, record.ended) == ("RUNNING", None)
    RunLock(run / "run.lock").acquire().release()


def test_close_says_what_the_user_can_do_about_a_run_that_is_not_where_runs_are(killed_run, tmp_path, capsys):
    moved = killed_run().rename(tmp_path / "first")
    before = contents(moved)
    assert main(["close", str(moved)]) == 2
    assert f"move it to <root>/<app>/runs/{moved.name}" in capsys.readouterr().err
    assert contents(moved) == before


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"sinks": {}}', '{"persistence": 1, "sinks": {}}'])
def test_a_config_that_cannot_be_read_is_named(killed_run, capsys, content):
    run = killed_run()
    (run / "configs.json").unlink()
    if content is not None:
        (run / "configs.json").write_text(content)
    assert main(["close", str(run)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {run / 'configs.json'}")
    assert "cannot be read: " in err
