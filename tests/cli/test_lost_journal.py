"""What `trieye verify`, `trieye close` and the next start do when the journal of a killed run is not its own."""

import shutil

import pytest

import trieye
from tests.cli.conftest import losses
from tests.curves import curves_in_tensorboard
from trieye.cli import main

JOURNAL, LOG, SHARED = "journal.db", "journal.db-wal", "journal.db-shm"


def remove(*names):
    return lambda run, _other: [(run / name).unlink(missing_ok=True) for name in names]


def replace(*names):
    return lambda run, other: [shutil.copyfile(other / name, run / name) for name in names]


def goes_on(run):
    """Start a run again from its checkpoint, and return what its hub says of the journal."""
    config = trieye.TrieyeConfig(
        app_name="agents",
        run_name="first",
        runtime={"kind": "local"},
        persistence={"root_data_dir": str(run.parents[2])},
        sinks={
            "tensorboard": {"enabled": True, "flush_interval_s": 0.1},
            "mlflow": {"enabled": False},
            "console": {"enabled": False},
        },
        stats={"processing_interval_seconds": 0.1},
    )
    with trieye.Run(config) as again:
        assert again.restore()
        assert again.step == 200
        for step in range(200, 310):
            again.log({"loss": 1.0 / (step + 1)}, step=step)
        return again.health()


@pytest.mark.parametrize(
    "harm",
    [
        replace(JOURNAL, LOG),
        replace(LOG),
        remove(LOG, SHARED),
        remove(JOURNAL, LOG, SHARED),
        remove(JOURNAL, LOG, SHARED, "journal-watermark.jsonl"),
    ],
    ids=["both replaced", "log replaced", "log gone", "all gone", "watermark gone too"],
)
def test_it_is_found_and_said_and_set_aside_and_the_curves_stay_as_they_were(killed_run, capsys, harm):
    run = killed_run("saves")
    harm(run, killed_run(where="other"))
    left = [name for name in (JOURNAL, LOG) if (run / name).exists()]
    before = curves_in_tensorboard(run)["loss"]
    assert main(["verify", str(run)]) == 1
    assert "journal" in capsys.readouterr().out
    assert main(["close", str(run)]) == 0
    assert "the journal" in (warned := capsys.readouterr().err)
    assert "was damaged" in warned
    assert bool(list(run.glob("journal.db.damaged-1*"))) is bool(left)
    after = curves_in_tensorboard(run)["loss"]
    assert after[:200] == losses(0, 200)
    assert set(after) <= set(before), "nothing of the other run"


def test_a_run_whose_log_was_not_copied_keeps_its_curves_through_all_later_starts(killed_run):
    run = killed_run("saves")
    remove(LOG, SHARED)(run, None)
    assert goes_on(run)["journal_damage"]
    assert curves_in_tensorboard(run)["loss"][:200] == losses(0, 200)
    assert goes_on(run)["journal_damage"] == []  # it rewinds what the start before has logged
    shown = curves_in_tensorboard(run)["loss"]
    assert shown[:200] == losses(0, 200)
    assert {step for step, _ in shown} == set(range(310))
    assert all(value == pytest.approx(1.0 / (step + 1)) for step, value in shown)
