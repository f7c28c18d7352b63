"""What `trieye sweep slurm` writes: a bash that reads it, and an sbatch that runs its tasks."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.json_schemas import validated
from tests.waiting import wait_until
from trieye.cli import main
from trieye.exceptions import ConfigurationError
from trieye.sweeps.jobs import JobRecord, RunningJob
from trieye.sweeps.slurm import ArrayRequest, memory_text, numbers, ranges, script_of, time_text
from trieye.sweeps.status import status_of

PROGRAM = """
import time
from pathlib import Path
import trieye

@trieye.main("pkg://trieye.conf", "trieye")
def train(config: trieye.TrieyeConfig) -> float:
    with trieye.Run(config) as run:
        run.restore()
        for step in run.steps(20):
            run.log("loss", 1.0 / step)
            if config.tags.get("slow") and not run.resumed:
                Path("begun").touch()
                time.sleep(0.2)
            if run.save_due:
                run.save()
        return run.step + (100.0 if run.resumed else 0.0)

if __name__ == "__main__":
    train()
"""
SBATCH = """#!{python}
import json, os, subprocess, sys
from pathlib import Path
*options, script = sys.argv[1:]
assert options == ["--parsable"], options
text = Path(script).read_text()
here = Path(__file__).parent
if (here / "refusal").exists():
    sys.exit((here / "refusal").read_text())
subprocess.run(["bash", "-n", script], check=True)
(here / "submitted").write_text(script)
print("4711;cluster")
"""
SCONTROL = '#!/bin/bash\necho "$@" >> "$(dirname "$0")/requeued"\n'


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Return a directory with an sbatch and a scontrol, which are on the path."""
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    for name, text in (("sbatch", SBATCH.replace("{python}", sys.executable)), ("scontrol", SCONTROL)):
        (bin_dir / name).write_text(text)
        (bin_dir / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_dir}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return bin_dir


def plan(*words):
    Path("train.py").write_text(PROGRAM)
    quick = ["runtime=local", "sinks=[]", "persistence.root_data_dir=data"]
    assert main(["sweep", "plan", "train.py", *quick, *words, "-o", "sweep"]) == 0


def task(number):
    """Start a task of the array that was written, as Slurm does."""
    environment = os.environ | {"SLURM_ARRAY_TASK_ID": str(number), "SLURM_JOB_ID": f"4711{number}"}
    with Path("said").open("a") as file:
        return subprocess.Popen(["bash", "sweep/slurm.sh"], env=environment, stdout=file, stderr=file)


@pytest.mark.parametrize(
    ("hours", "text"), [(3, "2:59:59"), (1, "0:59:59"), (0.5, "0:29:59"), (100, "99:59:59"), (1 / 60, "0:00:59")]
)
def test_a_time_limit_ends_a_second_below_so_many_hours(hours, text):
    assert time_text(hours) == text


def test_memory_is_told_in_whole_units():
    assert [memory_text(gigs) for gigs in (4, 4.0, 0.5, 1.5)] == ["4G", "4G", "512M", "1536M"]


@given(st.sets(st.integers(0, 60), min_size=1))
def test_numbers_are_told_in_ranges(indices):
    assert numbers(ranges(sorted(indices))) == sorted(indices)


@pytest.mark.parametrize("text", ["", "a", "3-", "1,,2", "-1"])
def test_what_names_no_jobs_is_refused(text):
    with pytest.raises(ConfigurationError, match="expected indices of jobs, such as 7 or 0-9,12"):
        numbers(text)


def test_the_script_asks_for_what_its_jobs_need(tmp_path):
    request = ArrayRequest(
        hours=3,
        memory_gib=2,
        cpus=2,
        gpus=0.25,
        per_task=8,
        max_concurrent=4,
        max_tasks=5,
        name="it's one",
        options=["qos=long"],
    )
    script = script_of(tmp_path / "a sweep", [0, 1, 2, 5, *range(7, 20)], request, working_dir="/some where")
    header = dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", script, re.MULTILINE))
    assert header["array"] == "0-2%5"
    assert (header["time"], header["mem"], header["cpus-per-task"], header["gres"]) == ("2:59:59", "8G", "8", "gpu:1")
    assert (header["signal"], header["requeue"], header["qos"]) == ("B:USR1@120", "", "long")
    assert "jobs=(0-2,5,7-10 11-18 19)\n" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--hours", "0"], r"--hours 0: expected between a minute"),
        (["--hours", "1", "--per-task", "0"], r"--per-task 0: expected 1 or more"),
        (["--hours", "1", "--max-concurrent", "2"], r"--max-concurrent 2: expected at most --per-task 1"),
        (["--hours", "1", "--memory-gib", "-1"], r"--memory-gib -1: expected a value above 0"),
        (["--hours", "0.02", "--signal", "120"], r"--signal 120: expected less than --hours 0.02, which is 72 s"),
        (["--hours", "1", "--option=--qos=x"], r"--option '--qos=x': expected KEY=VALUE or KEY"),
        (["--hours", "1", "--only", "failled"], r"did you mean 'failed'"),
    ],
)
def test_mistakes_are_named(slurm, capfd, words, message):
    plan("seed=1,2")
    assert main(["sweep", "slurm", "sweep", *words]) == 2
    assert re.search(message, capfd.readouterr().err)


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ("sbatch: error: Batch job submission failed: Invalid account or account/partition combination", "--account"),
        ("sbatch: error: invalid partition specified: gpus\n", "`sinfo -s` lists"),
        (
            "sbatch: error: Batch job submission failed: Requested time limit is invalid (missing or exceeds some",
            "less",
        ),
        ("sbatch: error: Memory specification can not be satisfied", "lower --memory-gib"),
        ("sbatch: error: Batch job submission failed: Invalid job array specification", "raise --per-task"),
        ("sbatch: error: Unable to contact slurm controller (connect failure)", "try again later"),
        ("something new", "refused the script: something new"),
    ],
)
def test_what_sbatch_refuses_is_told_with_a_way_out(slurm, capfd, message, hint):
    plan("seed=1,2")
    (slurm / "refusal").write_text(message)
    assert main(["sweep", "slurm", "sweep", "--hours", "1", "--submit"]) == 2
    output = capfd.readouterr().err
    assert hint in output
    assert message.removeprefix("sbatch: error: ").strip() in output


def test_where_there_is_no_sbatch_it_is_said(slurm, capfd):
    plan("seed=1,2")
    (slurm / "sbatch").unlink()
    assert main(["sweep", "slurm", "sweep", "--hours", "1", "--submit"]) == 2
    assert "sbatch is not installed on this machine; submit the script elsewhere: sbatch " in capfd.readouterr().err


def test_jobs_that_are_running_are_left_out_of_the_array(slurm, capfd):
    plan("seed=0,1,2")
    with RunningJob(Path("sweep/1"), 1, ["seed=1"]).running():
        assert main(["sweep", "slurm", "sweep", "--hours", "1", "--json"]) == 0
    output = capfd.readouterr()
    assert "skipping running jobs: 1" in output.err
    document = validated(output.out.splitlines()[-1])
    assert (document["jobs"], document["num_tasks"], document["submitted"]) == ([0, 2], 2, None)


@pytest.mark.long
def test_the_tasks_of_an_array_run_what_is_missing(slurm, capfd):
    plan("seed=0,1,2,3")
    assert main(["sweep", "run", "-d", "sweep", "-i", "1"]) == 0
    assert main(["sweep", "slurm", "sweep", "--hours", "1", "--per-task", "2", "--submit"]) == 0
    message = capfd.readouterr().out
    assert "3 jobs in 2 tasks, at most 2 core-hours" in message
    assert "submitted as 4711; status: squeue -j 4711" in message
    assert (slurm / "submitted").read_text() == str(Path("sweep/slurm.sh"))
    tasks = [task(0), task(1)]
    assert [one.wait(120) for one in tasks] == [0, 0], Path("said").read_text()
    assert [(job.how, job.record.attempt) for job in status_of(Path("sweep"))] == [("completed", 1)] * 4
    assert main(["sweep", "slurm", "sweep", "--hours", "1"]) == 0
    assert "no jobs to run" in capfd.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGUSR1, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_task_whose_time_is_over_saves_and_goes_on_when_it_runs_again(slurm, number):
    plan("seed=0,1", "+tags.slow=yes")
    assert main(["sweep", "slurm", "sweep", "--hours", "1", "--per-task", "2"]) == 0
    first = task(0)
    wait_until(lambda: Path("begun").exists())
    time.sleep(0.3)
    first.send_signal(number)
    assert first.wait(60) != 0, Path("said").read_text()
    assert (slurm / "requeued").exists() == (number == signal.SIGUSR1)  # else Slurm does it by itself
    assert [job.how for job in status_of(Path("sweep"))] == ["incomplete", "missing"]
    if number == signal.SIGTERM:
        return
    assert task(0).wait(120) == 0, Path("said").read_text()
    records = [JobRecord.read(Path("sweep") / str(index)) for index in (0, 1)]
    assert [(record.state, record.attempt) for record in records] == [("completed", 2), ("completed", 1)]
    assert records[0].objective == 120.0


def test_what_a_directory_is_called_reaches_sbatch_as_a_name(slurm, tmp_path, capsys):
    plan("seed=0,1")
    strange = tmp_path / "100%j of 'it'"
    strange.mkdir()
    (tmp_path / "sweep").rename(strange / "sweep")
    assert main(["sweep", "slurm", str(strange / "sweep"), "--hours", "1"]) == 0
    (output,) = re.findall("^#SBATCH --output=(.*)$", (strange / "sweep/slurm.sh").read_text(), re.MULTILINE)
    assert shlex.split(output) == [f"{tmp_path}/100%%j of 'it'/sweep/slurm/%A_%a.log"]


@pytest.mark.parametrize("words", [[], ["--account", "me\n#SBATCH --time=9"], ["--option", "qos=a\rb"]])
def test_a_line_break_reaches_no_script(slurm, tmp_path, capsys, words):
    plan("seed=0,1")
    sweep_dir = tmp_path / ("sweep" if words else "one\ntouch two")
    if not words:
        (tmp_path / "sweep").rename(sweep_dir)
    assert main(["sweep", "slurm", str(sweep_dir), "--hours", "1", *words]) == 2
    assert "control characters" in capsys.readouterr().err
    assert not (sweep_dir / "slurm.sh").exists()
