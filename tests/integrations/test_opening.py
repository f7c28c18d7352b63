"""The status of runs that end with their program."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trieye.files.run_record import RunRecord
from trieye.integrations import opening, wandb
from trieye.integrations.tensorboard import SummaryWriter

PROGRAM = """
from trieye.integrations.opening import AdoptedRun

overrides = {"sinks": {"mlflow": {"enabled": False}}, "persistence": {"auto_resume_latest": True, "root_data_dir": "."}}
run = AdoptedRun.join("first", app="app", **overrides).run
state = {"loss": 1.0}
run.restore(state=state)
for step in run.steps(run.step + 3):
    run.log(state)
run.save(state=state)
"""


@pytest.mark.long
def test_a_resumed_run_finishes_with_its_program(tmp_path):
    for attempt in (1, 2):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120
        )
        record = json.loads(Path(tmp_path, "app/runs/first/run.json").read_text())
        assert (record["attempt"], record["status"]) == (attempt, "FINISHED")
        assert "was not closed" not in done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("logger", "error", "status"),
    [
        ("wandb", SystemExit(0), "FINISHED"),
        ("wandb", KeyboardInterrupt(), "KILLED"),
        ("SummaryWriter", SystemExit(2), "FAILED"),
        ("SummaryWriter", ValueError(), "FAILED"),
    ],
)
def test_loggers_end_with_the_status_of_their_with_block(tmp_path, monkeypatch, logger, error, status):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(opening.APP, "app")
    writer = wandb.init(project="app", id="one") if logger == "wandb" else SummaryWriter("runs/one")
    with pytest.raises(type(error)), writer:
        raise error
    assert RunRecord.read(Path(".trieye_data/app/runs/one/run.json")).status == status


@pytest.mark.parametrize(("restarts", "status"), [(False, "FAILED"), (True, "FINISHED")])
def test_a_shared_run_ends_with_the_status_of_a_failed_logger_unless_it_restarts(
    tmp_path, monkeypatch, restarts, status
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="diverged"), wandb.init(project="app", id="one", sync_tensorboard=True):
        writer = SummaryWriter("runs/one")
        raise ValueError("diverged")
    if restarts:
        wandb.init(project="app", id="one", resume="must").finish()
    writer.close()
    assert RunRecord.read(Path(".trieye_data/app/runs/one/run.json")).status == status


def test_an_error_of_one_logger_neither_skips_the_others_nor_leaves_the_run_open(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    adopted, statuses = opening.AdoptedRun.join("one", app="app"), []

    def fail(_status):
        raise ValueError("pending values are lost")

    adopted.before_close += [statuses.append, fail]
    with pytest.raises(ValueError, match="pending values"):
        adopted.close("FAILED")
    assert (statuses, adopted.is_closed) == (["FAILED"], True)
    assert RunRecord.read(adopted.run.dir / "run.json").status == "FAILED"
