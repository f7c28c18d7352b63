"""`trieye sweep status`: its table on terminals of different widths."""

import os
import signal
import sys

import pytest

from tests.cli.conftest import Screen
from tests.forked import forked
from trieye.cli import main
from trieye.sweeps.jobs import JobRecord
from trieye.sweeps.record import SweepRecord, lock_in
from trieye.sweeps.status import ENDED_BY

ERROR = "ValueError: the shape of the input\nis not the shape of the first layer"


@pytest.fixture
def status(tmp_path, monkeypatch):
    """Return a function that returns the lines of a sweep with a failed and a completed job."""
    SweepRecord(spec=["lr=1,2"], size=2, varying=["lr"]).write(tmp_path)

    def lines(width, step=None):
        for index, error in enumerate((ERROR, None)):
            state = "failed" if error else "completed"
            JobRecord(index=index, overrides=[f"lr={index}"], state=state, error=error, step=step).write(
                tmp_path / str(index)
            )
        monkeypatch.setenv("COLUMNS", str(width))
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", screen := Screen())
            assert main(["sweep", "status", str(tmp_path)]) == 1
        return [line.strip() for line in screen.text().splitlines()]

    return lines


def test_errors_are_shown_below_a_narrow_table_and_inside_a_wide_one(status):
    error = " ".join(ERROR.split())
    assert f"job 0: {error}" in status(80)
    assert any(line.startswith("0 ") and line.endswith(error) for line in status(200))


def test_the_status_of_a_running_sweep_names_its_process(status, tmp_path):
    def hold_lock(report):
        with lock_in(tmp_path):
            report(os.getpid())
            signal.pause()

    with forked(hold_lock) as output:
        process = f"process {output.readline().strip()}"
        assert f"{process} is running the sweep, and starts the jobs that are left" in status(200)
    assert f"run unfinished jobs: trieye sweep relaunch {tmp_path}" in status(200)


def test_only_runs_of_trieye_have_a_step(status):
    assert not any("step" in line for line in status(200))
    assert any("step" in line for line in status(200, step=30))


def test_counts_agree_with_their_nouns(status, tmp_path):
    assert "2 jobs: 1 completed, 1 failed" in status(200)
    SweepRecord(spec=["lr=1"], size=1, varying=[]).write(tmp_path)
    assert "1 job: 1 failed" in status(200)


@pytest.mark.parametrize("limit", [None, "tune.target reached"])
def test_trials_that_had_not_started_when_a_limit_ended_their_study_are_pruned(limit, tmp_path, capsys):
    summary = {} if limit is None else {ENDED_BY: limit}
    SweepRecord(spec=[], size=2, study={"run_name": "s"}, summary=summary).write(tmp_path)
    JobRecord(index=0, overrides=[], state="completed").write(tmp_path / "0")
    assert main(["sweep", "status", str(tmp_path)]) == (1 if limit is None else 0)
    printed = capsys.readouterr().out
    assert ("trieye sweep relaunch" in printed) == (limit is None)
    assert ("1 completed, 1 pruned" in printed) == (str(limit) in printed) == (limit is not None)
