"""`hydra.launcher.backend=slurm`: a bash that reads its script, and an sbatch that runs its tasks."""

import json
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
from pydantic import ValidationError

from tests import warm
from tests.waiting import wait_until
from trieye.cli import main
from trieye.config.launcher import LauncherConfig, numbers, ranges
from trieye.exceptions import ConfigurationError
from trieye.sweeps.jobs import JobRecord, RunningJob
from trieye.sweeps.slurm import memory_text, script_of, submit_jobs, time_text
from trieye.sweeps.slurm_array import SlurmArray, TaskState
from trieye.sweeps.status import status_of
from trieye.sweeps.sweeper import SweepError

WARM = warm.RUN
HERE = "hydra.launcher.isolate=none"
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
PLAIN = """
import hydra

@hydra.main(version_base=None, config_path=None)
def fit(config):
    return float(config.x)

fit()
"""
SBATCH = """#!{python}
import subprocess, sys
from pathlib import Path
*options, script = sys.argv[1:]
assert options == ["--parsable"], options
here = Path(__file__).parent
if (here / "refusal").exists():
    sys.exit((here / "refusal").read_text())
subprocess.run(["bash", "-n", script], check=True)
(here / "submitted").write_text(script)
print("4711;cluster")
"""
SCONTROL = '#!/bin/bash\necho "$@" >> "$(dirname "$0")/requeued"\n'
SQUEUE = """#!/bin/bash
echo "$@" > "$(dirname "$0")/asked"
cat "$(dirname "$0")/queue" 2>/dev/null && exit 0
echo "slurm_load_jobs error: Invalid job id specified" >&2
exit 1
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Return a directory with an sbatch, a squeue and a scontrol, which are on the path."""
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    commands = {"sbatch": SBATCH.replace("{python}", sys.executable), "scontrol": SCONTROL, "squeue": SQUEUE}
    for name, text in commands.items():
        (bin_dir / name).write_text(text)
        (bin_dir / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_dir}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return bin_dir


def plan(*words, program=PROGRAM):
    Path("train.py").write_text(program)
    quick = ["runtime=local", "sinks=[]", "persistence.root_data_dir=data"] if program is PROGRAM else []
    assert main(["sweep", "plan", "train.py", *quick, *words, "-o", "sweep"]) == 0


def options(**slurm):
    launcher = {key: slurm.pop(key) for key in ("num_cpus", "num_gpus", "num_jobs", "memory") if key in slurm}
    return LauncherConfig(backend="slurm", slurm=slurm, **launcher)


def task(number):
    """Start a task of the array that was written, as Slurm does."""
    environment = os.environ | {"SLURM_ARRAY_TASK_ID": str(number), "SLURM_JOB_ID": f"4711{number}"}
    with Path("said").open("a") as file:
        return subprocess.Popen(["bash", "sweep/slurm.sh"], env=environment, stdout=file, stderr=file)


def header(script):
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", script, re.MULTILINE))


def test_a_time_limit_is_a_second_below_the_hours_and_memory_is_in_whole_units():
    hours = {3: "2:59:59", 1: "0:59:59", 0.5: "0:29:59", 100: "99:59:59", 1 / 60: "0:00:59"}
    assert {number: time_text(number) for number in hours} == hours
    gib = 1 << 30
    assert [memory_text(size) for size in (4 * gib, gib // 2, gib * 3 // 2, 1)] == ["4G", "512M", "1536M", "1M"]


@given(st.sets(st.integers(0, 60), min_size=1))
def test_indices_round_trip_through_ranges(indices):
    assert numbers(ranges(sorted(indices)), 61) == sorted(indices)


EXPECTED = "expected indices of jobs, such as 7 or 0-9,12"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, EXPECTED) for text in ("", "a", "3-", "1,,2", "-1")),
        ("5-3", "5-3 is empty; the first index of a range is the lower one"),
        ("0-99999999999", "out of range; the sweep has the jobs 0 to 8"),
    ],
)
def test_invalid_job_indices_are_rejected(text, message):
    with pytest.raises(ConfigurationError, match=message):
        numbers(text, 9)


def test_the_script_requests_what_its_jobs_need(tmp_path):
    sbatch = {"qos": "long", "exclusive": None, "comment": "two words"}
    slurm = {"hours": 3, "jobs_per_task": 8, "max_concurrent": 4, "partition": "gpu", "options": sbatch}
    request = options(**slurm, num_cpus=2, num_gpus=0.25, num_jobs=20, memory=2 << 30)
    script = script_of(tmp_path / "it's one", [[0, 1, 2, 5], [7, 8], [11]], request)
    directives = header(script)
    assert directives.items() >= {
        "array": "0-2%5", "time": "2:59:59", "mem": "8G", "cpus-per-task": "8", "gres": "gpu:1", "signal": "B:USR1@120",
        "requeue": "", "exclusive": "", "qos": "long", "partition": "gpu", "comment": "'two words'",
    }.items()  # fmt: skip
    assert "jobs=(0-2,5 7-8 11)\n" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    assert not {"time", "mem", "gres", "account"} & header(script_of(tmp_path, [[0]], options())).keys()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hours": 0}, "hours"),
        ({"jobs_per_task": 0}, "jobs_per_task"),
        ({"max_concurrent": 2}, r"max_concurrent=2 is above jobs_per_task=1"),
        ({"hours": 0.02, "signal_s": 120}, r"signal_s=120 is not below hours=0.02, 72 s"),
        ({"options": {"--qos": "x"}}, "'--qos' is not an sbatch option"),
        ({"account": "me\n#SBATCH --time=9"}, "control characters"),
        ({"options": {"qos": "a\rb"}}, "control characters"),
    ],
)
def test_invalid_options_are_named(tmp_path, values, message):
    with pytest.raises((ValidationError, ConfigurationError), match=message):
        script_of(tmp_path, [[0]], options(**values))


def test_only_an_array_can_be_detached():
    with pytest.raises(ValidationError, match="detach=true needs backend=slurm"):
        LauncherConfig(detach=True)


def test_special_characters_of_a_directory_are_escaped_for_sbatch_and_line_breaks_rejected(tmp_path):
    with pytest.raises(ConfigurationError, match="control characters"):
        script_of(tmp_path / "one\ntouch two", [[0]], options())
    script = script_of(tmp_path / "100%j of 'it'", [[0]], options())
    assert shlex.split(header(script)["output"]) == [f"{tmp_path}/100%%j of 'it'/slurm/%A_%a.log"]


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ("sbatch: error: Batch job submission failed: Invalid account or account/partition combination", "account"),
        ("sbatch: error: invalid partition specified: gpus\n", "`sinfo -s` lists"),
        ("sbatch: error: Batch job submission failed: Requested time limit is invalid (missing or exceeds", "hours"),
        ("sbatch: error: Memory specification can not be satisfied", "lower memory"),
        ("sbatch: error: Batch job submission failed: Invalid job array specification", "raise slurm.jobs_per_task"),
        ("sbatch: error: Unable to contact slurm controller (connect failure)", "try again later"),
        ("something new", "refused the script: something new"),
    ],
)
def test_errors_of_sbatch_are_reported_with_a_remedy(slurm, message, hint):
    (slurm / "refusal").write_text(message)
    with pytest.raises(ConfigurationError) as refused:
        submit_jobs(Path("sweep"), [0, 1], options(hours=1))
    assert hint in str(refused.value)
    assert message.removeprefix("sbatch: error: ").strip() in str(refused.value)
    assert SlurmArray.read(Path("sweep")) is None


def test_a_missing_sbatch_is_reported_with_the_script(slurm, monkeypatch):
    (slurm / "sbatch").unlink()
    monkeypatch.setenv("PATH", str(slurm))
    with pytest.raises(ConfigurationError, match=r"sbatch is not installed .* submit the script elsewhere: sbatch /"):
        submit_jobs(Path("sweep"), [0, 1], options(hours=1))


def test_a_pending_or_running_array_is_not_submitted_again(slurm):
    array = submit_jobs(Path("sweep"), [0, 1, 5], options(jobs_per_task=2))
    assert (array.id, array.tasks, SlurmArray.read(Path("sweep"))) == ("4711", [[0, 1], [5]], array)
    assert array.cluster == "cluster"
    (slurm / "queue").write_text("0 RUNNING None\n1 PENDING Priority\n")
    with pytest.raises(ConfigurationError, match=r"2 tasks of its Slurm array 4711 .*`scancel --clusters=cluster 47"):
        submit_jobs(Path("sweep"), [5], options())
    (slurm / "queue").unlink()
    assert submit_jobs(Path("sweep"), [5], options()).tasks == [[5]]
    (slurm / "squeue").write_text("#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact' >&2; exit 1\n")
    with pytest.raises(ConfigurationError, match=r"squeue does not answer, so its Slurm array 4711 may still run"):
        submit_jobs(Path("sweep"), [5], options())


def test_the_status_of_jobs_follows_the_queue(slurm):
    plan("x=1,2,3,4,5", program=PLAIN)
    array = submit_jobs(Path("sweep"), [0, 1, 2, 3], options())
    assert array.tasks == [[0], [1], [2], [3]]
    JobRecord(index=0, overrides=["x=1"], state="completed").write(Path("sweep/0"))
    JobRecord(index=1, overrides=["x=2"], state="interrupted").write(Path("sweep/1"))
    JobRecord(index=2, overrides=["x=3"], host="node1", boot="other", pid=1).write(Path("sweep/2"))
    (slurm / "queue").write_text(" 1 PENDING Resources\n2 RUNNING None\n3 PENDING (a b)\n")
    assert [job.how for job in status_of(Path("sweep"))] == ["completed", "waiting", "running", "waiting", "missing"]
    asked = (slurm / "asked").read_text()
    assert ("--jobs 4711" in asked, "--clusters=cluster" in asked) == (True, True)
    (slurm / "queue").write_text("CLUSTER: cluster\n2 RUNNING None\n")  # as with several clusters
    assert array.states() == {2: TaskState("RUNNING", "None")}
    (slurm / "queue").write_text("2 RUNNING None\nerror: ...\n")
    assert array.states() is None
    (slurm / "queue").unlink()
    states = ["completed", "incomplete", "unknown", "missing", "missing"]
    assert [job.how for job in status_of(Path("sweep"))] == states


@pytest.mark.long
@pytest.mark.usefixtures("warm_programs")
def test_a_plain_program_submits_its_jobs_detached_and_relaunches_the_missing_ones(slurm, capfd):
    Path("train.py").write_text(PLAIN)
    words = ["hydra.launcher.backend=slurm", "hydra.launcher.detach=true", "hydra.launcher.slurm.hours=2", "+x=1,2,3"]
    own = ["hydra/sweeper=trieye", "hydra/launcher=trieye", "hydra.sweep.dir=sweep", "hydra.launcher.num_cpus=2"]
    command = [sys.executable, "train.py", "-m", *own, *words, "hydra.launcher.slurm.jobs_per_task=2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "submitted Slurm array 4711: 2 tasks, at most 8 core-hours" in done.stderr
    (slurm / "queue").write_text("0 PENDING None\n1 PENDING None\n")
    assert main(["sweep", "status", "sweep", "--json"]) == 1
    assert json.loads(capfd.readouterr().out)["counts"] == {"waiting": 3}
    assert task(0).wait(120) == 0, Path("said").read_text()
    (slurm / "queue").unlink()
    assert [job.how for job in status_of(Path("sweep"))] == ["completed", "completed", "missing"]
    assert main(["sweep", "relaunch", "sweep", "hydra.launcher.slurm.hours=1"]) == 0
    assert "submitted Slurm array 4711: 1 task, at most 2 core-hours" in capfd.readouterr().err
    assert SlurmArray.read(Path("sweep")).tasks == [[2]]
    record = json.loads(Path("sweep/sweep.json").read_text())
    assert "hydra.launcher.slurm.hours=2" in record["own"]


def submit(sweep, *words):
    """Submit three jobs in this process, and return the overrides of those with an outcome."""
    return sweep.search(lambda _: 1, "what=a,b,c", "hydra.launcher.backend=slurm", "hydra.launcher.detach=true", *words)


@pytest.mark.long
def test_tasks_receive_the_options_of_the_start_that_submits_them(slurm, sweep):
    words = ["++hydra.launcher.num_cpus='${cpus}'", "hydra.launcher.timeout_min=5", "hydra.launcher.slurm.hours=1"]
    assert submit(sweep, *words) == []
    (line,) = re.findall("^.* sweep run .*$", (sweep.directory / "slurm.sh").read_text(), re.MULTILINE)
    received = [word for word in shlex.split(line) if word.startswith("hydra.")]
    assert received == [HERE, "hydra.launcher.num_cpus='${cpus}'", "hydra.launcher.timeout_min=5"]


def test_a_job_whose_node_died_is_submitted_and_a_live_one_skipped_with_an_error(slurm, sweep):
    record = JobRecord(index=0, overrides=["what=a"], host="node17", boot="other", pid=1)
    record.write(sweep.directory / "0")
    message = f"skipped, because process {os.getpid()} on"
    with RunningJob(sweep.directory / "1", 1, ["what=b"]).running(), pytest.raises(SweepError, match=message):
        submit(sweep)
    assert SlurmArray.read(sweep.directory).tasks == [[0], [2]]


def test_a_job_with_invalid_resources_fails_and_the_others_are_submitted(slurm, sweep):
    with pytest.raises(SweepError, match=r"job 1 raised ConfigurationError: hydra\.launcher\.num_cpus=many"):
        submit(sweep, "++hydra.launcher.num_cpus='${cpus}'", "cpus=1,many")
    assert SlurmArray.read(sweep.directory).tasks == [[0], [2], [4]]


def waiting_driver(slurm, *, reason):
    """Start a sweep of two jobs, and return its driver once it waits for the tasks, which are pending."""
    Path("train.py").write_text(PLAIN)
    words = ["hydra.launcher.backend=slurm", "hydra.sweep.dir=sweep", "+x=1,2"]
    command = [sys.executable, "train.py", "-m", "hydra/sweeper=trieye", "hydra/launcher=trieye", *words]
    (slurm / "queue").write_text(f"0 PENDING {reason}\n1 PENDING {reason}\n")
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: Path("sweep/slurm.json").exists())
    return driver


@pytest.mark.long
def test_a_waiting_driver_shows_the_jobs_and_the_best(slurm):
    driver = waiting_driver(slurm, reason="PartitionConfig")
    assert task(0).wait(120) == 0, Path("said").read_text()
    (slurm / "queue").unlink()
    out, err = driver.communicate(timeout=60)
    assert driver.returncode == 1
    assert "tasks are pending because of PartitionConfig; `squeue --clusters=cluster -j 4711` lists them" in err
    assert re.search(r"\[1/2\] job 0 x=1: 1", err), err
    assert "job 1 x=2: FAILED: its Slurm task ended before the job did; output of the tasks: " in err
    assert "sweep/slurm/4711_*.log" in out + err


@pytest.mark.long
def test_an_interrupted_driver_leaves_the_array_running(slurm):
    driver = waiting_driver(slurm, reason="None")
    driver.send_signal(signal.SIGINT)
    err = driver.communicate(timeout=60)[1]
    assert driver.returncode == 130
    assert "Slurm array 4711 continues; status: trieye sweep status" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGUSR1, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_task_at_its_time_limit_saves_and_resumes_when_requeued(slurm, number):
    plan("seed=0,1", "+tags.slow=yes")
    submit_jobs(Path("sweep"), [0, 1], options(hours=1, jobs_per_task=2))
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
