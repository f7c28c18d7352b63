"""`trieye verify`, `trieye close` and the next start, when a killed run lost its journal or got a foreign one."""

import shutil

import pytest

import trieye
from tests.cli.conftest import config_in, losses
from tests.curves import curves_in_tensorboard, record_of
from trieye.cli import main

JOURNAL, LOG, SHARED = "journal.db", "journal.db-wal", "journal.db-shm"


def remove(*names):
    return lambda run, _other: [(run / name).unlink(missing_ok=True) for name in names]


def replace(*names):
    return lambda run, other: [shutil.copyfile(other / name, run / name) for name in names]


def resumed_status(run):
    """Resume a run from its checkpoint, and return the journal status that its hub publishes."""
    sinks = {"tensorboard": {"enabled": True, "flush_interval_s": 0.1}}
    config = config_in(run.parents[2], sinks=sinks, stats={"processing_interval_seconds": 0.1})
    with trieye.Run(config) as resumed:
        assert resumed.restore()
        assert resumed.step == 200
        for step in range(200, 310):
            resumed.log({"loss": 1.0 / (step + 1)}, step=step)
        return resumed.health()


@pytest.mark.parametrize(
    "damage",
    [
        replace(JOURNAL, LOG),
        replace(LOG),
        remove(LOG, SHARED),
        remove(JOURNAL, LOG, SHARED),
        remove(JOURNAL, LOG, SHARED, "journal-watermark.jsonl"),
    ],
    ids=["both replaced", "log replaced", "log gone", "all gone", "watermark gone too"],
)
def test_a_foreign_or_missing_journal_is_quarantined_and_the_curves_are_unchanged(killed_run, capsys, damage):
    run = killed_run("saves")
    damage(run, killed_run(directory="other"))
    remaining = [name for name in (JOURNAL, LOG) if (run / name).exists()]
    before = curves_in_tensorboard(run)["loss"]
    assert main(["verify", str(run)]) == 1
    assert "journal" in capsys.readouterr().out
    assert main(["close", str(run)]) == 0
    assert record_of(run).status == "KILLED"
    assert "the journal" in (stderr := capsys.readouterr().err)
    assert "was damaged" in stderr
    assert bool(list(run.glob("journal.db.damaged-1*"))) is bool(remaining)
    after = curves_in_tensorboard(run)["loss"]
    assert after[:200] == losses(0, 200)
    assert set(after) <= set(before), "nothing of the other run"


def test_a_closed_run_without_sinks_notices_that_its_journal_is_missing(tmp_path):
    config = config_in(tmp_path)
    for is_damaged in (False, True):
        with trieye.Run(config) as run:
            run.log("loss", 1.0, step=1)
            assert bool(run.health()["journal_damage"]) is is_damaged
        remove(JOURNAL, LOG, SHARED, "journal-watermark.jsonl")(run.dir, None)


def test_a_run_that_lost_its_wal_keeps_its_curves_through_later_starts(killed_run):
    run = killed_run("saves")
    remove(LOG, SHARED)(run, None)
    assert resumed_status(run)["journal_damage"]
    assert curves_in_tensorboard(run)["loss"][:200] == losses(0, 200)
    assert resumed_status(run)["journal_damage"] == []  # it rewinds the entries of the previous start
    shown = curves_in_tensorboard(run)["loss"]
    assert shown[:200] == losses(0, 200)
    assert {step for step, _ in shown} == set(range(310))
    assert all(value == pytest.approx(1.0 / (step + 1)) for step, value in shown)
