"""`trieye why`: the reason of each ending, with the command that continues."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

import trieye
from tests import warm
from tests.moved import moved
from trieye.files.run_record import RunRecord
from trieye.runs import diagnose
from trieye.sweeps.jobs import JobRecord

WARM = warm.RUN
PROGRAM = """
import os, signal, sys
import trieye

config = trieye.TrieyeConfig(
    app_name="agents", run_name=sys.argv[1], runtime={"kind": "local"}, persistence={"root_data_dir": sys.argv[2]},
    sinks={"mlflow": {"enabled": False}, "console": {"enabled": False}, "tensorboard": {"enabled": True}},
)
with trieye.Run(config) as run:
    run.step = 7
    run.log({"loss": 1.0})
    run.save(state={"a": 1.0})
    run.flush()
    print("the last words of the program")
    if run.name == "failed":
        error = ValueError("no weights")
        error.add_note("a note of the program")
        raise error
    if run.name == "killed":
        parts = ("checkpoints/checkpoint_step_7/MANIFEST.json", "provenance/attempt-1.json")
        while not all((run.dir / part).exists() for part in parts):
            pass
        os.kill(os.getpid(), signal.SIGKILL)
    if run.name == "stopped":
        signal.raise_signal(signal.SIGINT)
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory, warm_programs):
    """Runs of one program that finished, failed, was killed and was interrupted."""
    directory = tmp_path_factory.mktemp("why")
    program = directory / "program.py"
    program.write_text(PROGRAM)
    names = ("finished", "failed", "killed", "stopped")
    codes = [
        subprocess.run([sys.executable, program, name, directory / "data"], check=False, capture_output=True).returncode
        for name in names
    ]
    assert codes[0] == 0
    assert codes[2] == -signal.SIGKILL
    assert 0 not in codes[1:]
    return directory / "data"


@pytest.fixture
def copied(root, tmp_path):
    """A copy of these runs that a test may change."""
    return shutil.copytree(root, tmp_path / "data")


def test_a_pruned_job_of_a_sweep_is_not_called_stopped(copied, tmp_path):
    run_dir = moved(copied / "agents/runs/stopped")
    job_dir = tmp_path / "sweep/5"
    job_dir.mkdir(parents=True)
    (job_dir / "run").symlink_to(run_dir)
    JobRecord(index=5, overrides=[], state="pruned", objective=61.5, reason="best 61.5 < 70").write(job_dir)
    record = RunRecord.read(run_dir / "run.json")
    record.group = str(tmp_path / "sweep")
    record.save(run_dir / "run.json")
    diagnosis = diagnose(run_dir)
    assert diagnosis.reason.startswith("the pruner or scheduler of its sweep stopped it after ")
    assert diagnosis.reason.endswith(" at an objective of 61.5: best 61.5 < 70")
    assert diagnosis.next_steps[0].command == f"trieye sweep status {tmp_path / 'sweep'}"
    JobRecord(index=5, overrides=[], state="pruned", ended=record.started - 1).write(job_dir)
    assert "it was stopped after" in diagnose(run_dir).reason  # it was started again since


@pytest.mark.parametrize(("name", "status", "reason"), [
    ("finished", "FINISHED", "it finished after"),
    ("failed", "FAILED", "its program failed after"),
    ("killed", "LOST", "without recording why: SIGKILL"),
    ("stopped", "KILLED", "it was stopped after"),
])  # fmt: skip
def test_each_ending_has_its_reason_last_output_and_next_step(root, name, status, reason):
    diagnosis = diagnose(name, root=root)
    assert diagnosis.run.status == status
    assert reason in diagnosis.reason
    assert "the last words of the program" in diagnosis.output
    assert diagnosis.checkpoint.step == 7
    commands = [step.command for step in diagnosis.next_steps]
    if name == "finished":
        assert commands == [f"trieye metrics {diagnosis.run.run_dir}"]
    else:
        assert commands[0].endswith(f"program.py {name} {root}")
        assert diagnosis.next_steps[0].effect == "continue from the checkpoint of step 7"
    assert (f"trieye close {diagnosis.run.run_dir}" in commands) == (name == "killed")


def test_the_traceback_is_shown_once_and_its_last_line_is_the_reason(root, command):
    text = command.output("why", "failed", "--root", root)
    assert text.count("ValueError: no weights\n") == 2  # the reason, and the end of the traceback
    assert text.count("a note of the program") == 1
    assert text.count("Traceback (most recent call last)") == 1
    assert diagnose("finished", root=root).error is None


def test_a_later_attempt_that_finishes_hides_the_earlier_error(copied):
    record = copied / "agents/runs/failed/run.json"
    record.write_text(record.read_text().replace('"attempt": 1', '"attempt": 2').replace("FAILED", "FINISHED"))
    diagnosis = diagnose("failed", root=copied)
    assert diagnosis.error is None
    assert "finished" in diagnosis.reason


def test_the_state_at_the_error_is_a_next_step(copied):
    checkpoints = moved(copied / "agents" / "runs" / "failed") / "checkpoints"
    shutil.copytree(checkpoints / "checkpoint_step_7", checkpoints / "crash-8")
    step = diagnose("failed", root=copied).next_steps[1]
    assert step.command == f"trieye checkpoints {checkpoints.parent}"
    assert step.effect.endswith("persistence.load_checkpoint_path=failed:crash-8")


def test_a_running_run_is_explained_without_a_restart(run):
    run.log({"loss": 1.0}, step=1)
    run.flush()
    diagnosis = diagnose(run.dir)
    assert diagnosis.reason.startswith("it is running")
    assert [step.command for step in diagnosis.next_steps] == [f"trieye watch {run.dir}"]


def test_the_next_steps_of_a_copy_never_continue_the_original_run(run, root, tmp_path):
    run.save(step=1, state={"a": 1.0}).wait()
    of_running = shutil.copytree(run.dir, run.dir.with_name("copy"))
    of_killed = shutil.copytree(root / "agents/runs/killed", tmp_path / "copies/agents/runs/killed")
    for copy, original in ((of_running, run.dir), (of_killed, root / "agents/runs/killed")):
        diagnosis = diagnose(copy)
        assert (diagnosis.run.status, str(original) in diagnosis.reason) == ("LOST", True)
        assert [step.command for step in diagnosis.next_steps] == [f"trieye fork {copy}", f"trieye rm {copy}"]


def test_a_renamed_run_with_a_name_fixed_in_code_offers_no_command_that_starts_another_run(root):
    original = root / "agents" / "runs" / "failed"
    renamed = original.rename(original.with_name("renamed"))
    (step, *_) = diagnose(renamed).next_steps
    renamed.rename(original)
    assert step.effect == f"run its program, which does not find the run in {renamed}"


def test_a_pipe_or_a_terminal_code_in_the_place_of_output_does_no_harm(copied, command):
    logs = copied / "agents" / "runs" / "failed" / "logs"
    for name in ("output.log", "failure_of_attempt_1.txt"):
        (logs / name).unlink()
        os.mkfifo(logs / name)
    assert diagnose("failed", root=copied).output == []
    (logs / "output.log").unlink()
    (logs / "output.log").write_text("\x1b]0;title\x07 [bold]text\n")
    text = command.output("why", "failed", "--root", copied)
    assert "\x1b" not in text
    assert "[bold]text" in text


def test_a_run_whose_files_are_gone_is_still_explained(copied):
    run_dir = moved(copied / "agents" / "runs" / "killed")
    for part in ("logs", "checkpoints", "provenance", "journal.db", "history"):
        shutil.rmtree(run_dir / part, ignore_errors=True)
        (run_dir / part).unlink(missing_ok=True)
    diagnosis = diagnose("killed", root=copied)
    assert (diagnosis.output, diagnosis.output_path, diagnosis.checkpoint) == ([], None, None)
    assert diagnosis.next_steps[0].command.startswith("trieye close")


def test_a_killed_run_is_not_listed_with_a_step_before_its_checkpoint(make_config):
    with trieye.Run(make_config(stats={"processing_interval_seconds": 3600})) as run:  # publishes no status until then
        run.log({"loss": 1.0}, step=7)
        run.save(step=7, state={"a": 1.0}).wait()
        diagnosis = diagnose(run.dir)  # as it would be after SIGKILL
    assert (diagnosis.run.step, diagnosis.checkpoint.step) == (7, 7)
