"""Run a sweep of a plain Hydra program on a Slurm cluster on one machine, with preempted tasks and a drained node.

The script starts munged, slurmctld and two slurmd from Debian packages (`apt-get install slurmctld slurmd munge`) in a
temporary directory, as root. The sweep is detached; the program does not import trieye, and saves its step to a file.
Two tasks are preempted: one by the signal before the time limit, after which the batch script requeues itself, one by
Slurm. A node is drained and resumed. At the end, every job must be completed, no two processes of a job may have
overlapped, and none may have started after the job was completed.
"""

import argparse
import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

DEADLINE_S = 400.0
DAEMONS = ("munged", "slurmctld", "slurmd")

PROGRAM = """
import json
import os
import time
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig

EVENTS = Path(__file__).with_name("events.jsonl")


def record(job, kind, step):
    line = json.dumps({"job": job, "kind": kind, "step": step, "pid": os.getpid(), "at": time.time()})
    with EVENTS.open("a") as file:
        file.write(line + chr(10))


@hydra.main(version_base=None, config_path=None)
def fit(config):
    job, saved = HydraConfig.get().job.num, Path(HydraConfig.get().runtime.output_dir, "step")
    first = int(saved.read_text()) if saved.exists() else 0
    record(job, "start", first)
    for step in range(first, config.steps):
        time.sleep(0.5)
        saved.write_text(str(step + 1))
        record(job, "step", step + 1)
    record(job, "end", config.steps)
    return float(config.x)


fit()
"""

CONFIG = """
ClusterName=soak
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={root}/munge.socket,cred_expire=5
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool.%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.%n.log
SlurmctldPort={port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=1,sched_interval=2,sched_min_interval=500000
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
KillWait=5
MinJobAge=10
JobRequeue=1
NodeName=soak1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port1} CPUs=2 State=UNKNOWN
NodeName=soak2 NodeHostname={host} NodeAddr=127.0.0.1 Port={port2} CPUs=2 State=UNKNOWN
PartitionName=soak Nodes=soak1,soak2 Default=YES MaxTime=INFINITE State=UP
"""


def main() -> None:
    """Run the sweep and print one JSON line; exit with 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=60, help="steps per job, of 0.5 s each")
    options = parser.parse_args()
    missing = [name for name in DAEMONS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if missing or os.geteuid() != 0:
        print(f"skipped: needs root and the packages slurmctld, slurmd, munge; missing: {', '.join(missing) or 'none'}")
        return
    with tempfile.TemporaryDirectory(prefix="trieye-slurm-", ignore_cleanup_errors=True) as root, slurm_in(Path(root)):
        figures = run_sweep(Path(root), options)
    print(json.dumps(figures))
    sys.exit(not figures["met"])


@contextlib.contextmanager
def slurm_in(root: Path) -> Iterator[None]:
    """Run Slurm with two nodes on this machine."""
    root.chmod(0o755)
    ports = free_ports(3)
    os.environ["PATH"] += ":/usr/sbin"
    os.environ["SLURM_CONF"] = str(root / "slurm.conf")
    host = socket.gethostname()
    text = CONFIG.format(root=root, host=host, port=ports[0], port1=ports[1], port2=ports[2])
    (root / "slurm.conf").write_text(text.strip() + "\n")
    (root / "state").mkdir()
    key = root / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    files = [
        f"--{name}={root}/munge.{name.partition('-')[0]}" for name in ("key-file", "socket", "log-file", "pid-file")
    ]
    commands = [
        ["munged", "--foreground", "--force", *files, f"--seed-file={root}/munge.seed"],
        ["slurmctld", "-D", "-i"],
        *(["slurmd", "-D", "-N", name] for name in ("soak1", "soak2")),
    ]
    daemons = []
    try:
        with (root / "daemons.log").open("w") as log:
            for command in commands:
                daemons.append(subprocess.Popen(command, stdout=log, stderr=log))
                time.sleep(1.0)
        wait_until(lambda: output("sinfo", "-h", "-o", "%T %D") == "idle 2", "Slurm did not start", root)
        yield
    finally:
        for daemon in reversed(daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in daemons:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(20)
            daemon.kill()


def run_sweep(root: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Submit the sweep, preempt tasks, drain a node, and return the figures."""
    project = root / "project"
    project.mkdir()
    (project / "fit.py").write_text(PROGRAM)
    sweep, events = project / "multirun/soak", project / "events.jsonl"
    launcher = ["hydra.launcher.backend=slurm", "hydra.launcher.detach=true", "hydra.launcher.slurm.hours=1"]
    words = [f"hydra.sweep.dir={sweep}", f"+x=range({options.jobs})", f"+steps={options.steps}"]
    command = [sys.executable, "fit.py", "-m", "hydra/sweeper=trieye", "hydra/launcher=trieye", *launcher, *words]
    began = time.monotonic()
    submission = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    submit_s = time.monotonic() - began
    if submission.returncode:
        raise RuntimeError(submission.stdout + submission.stderr)
    array = json.loads((sweep / "slurm.json").read_text())["id"]
    wait_until(lambda: len(started(events)) >= 4, "fewer than four jobs started", root)
    first, second, *_ = sorted(started(events))
    signaled = subprocess.Popen(
        ["scancel", "--batch", "--signal=USR1", f"{array}_{first}"]
    )  # may block until the task ends
    subprocess.run(["scontrol", "requeue", f"{array}_{second}"], check=True)
    subprocess.run(["scontrol", "update", "NodeName=soak2", "State=DRAIN", "Reason=soak"], check=True)
    seen_states = [counts_of(sweep)]
    refused = trieye("sweep", "relaunch", "--yes", str(sweep), cwd=project)
    wait_until(lambda: output("sinfo", "-h", "-n", "soak2", "-o", "%T") == "drained", "soak2 was not drained", root)
    seen_states.append(counts_of(sweep))
    subprocess.run(["scontrol", "update", "NodeName=soak2", "State=RESUME"], check=True)
    wait_until(lambda: not output("squeue", "-h", "-j", array), "the array was not completed", root)
    signaled.wait()
    counts = counts_of(sweep)
    figures = {
        "jobs": options.jobs,
        "completed": counts.get("completed", 0),
        "submit_s": round(submit_s, 1),
        "states_seen": seen_states,
        "relaunch_refused": refused.returncode != 0 and f"array {array}" in refused.stderr,
        **attempts_of(events, options),
    }
    is_exact = not figures["overlapping"] and not figures["started_after_completion"] and not figures["repeated_steps"]
    has_states = all("running" in states and sum(states.values()) == options.jobs for states in seen_states)
    met = figures["completed"] == options.jobs and figures["resumed"] >= 2 and is_exact and has_states
    return {**figures, "met": met and figures["relaunch_refused"]}


def attempts_of(events: Path, options: argparse.Namespace) -> dict[str, int]:
    """Count the processes that overlapped, resumed, or started after completion, and the repeated steps."""
    figures = {"processes": 0, "resumed": 0, "overlapping": 0, "started_after_completion": 0, "repeated_steps": 0}
    all_events = [json.loads(line) for line in events.read_text().splitlines()]
    for job in range(options.jobs):
        job_events = [event for event in all_events if event["job"] == job]
        starts = [event for event in job_events if event["kind"] == "start"]
        ends = [event["at"] for event in job_events if event["kind"] == "end"]
        figures["processes"] += len(starts)
        figures["resumed"] += sum(event["step"] > 0 for event in starts)
        figures["started_after_completion"] += sum(event["at"] > min(ends, default=event["at"]) for event in starts)
        pids = [event["pid"] for event in job_events]
        figures["overlapping"] += (
            sum(previous != current for previous, current in itertools.pairwise(pids)) - len(starts) + 1
        )
        steps = [event["step"] for event in job_events if event["kind"] == "step"]
        figures["repeated_steps"] += len(steps) - len(set(steps))
    return figures


def started(events: Path) -> set[int]:
    """Return the jobs that have saved a step."""
    lines = events.read_text().splitlines() if events.exists() else []
    return {event["job"] for event in map(json.loads, lines) if event["step"] > 0}


def counts_of(sweep: Path) -> dict[str, int]:
    """Return the number of jobs by state, as `trieye sweep status` shows it."""
    counts: dict[str, int] = json.loads(trieye("sweep", "status", str(sweep), "--json", cwd=sweep).stdout)["counts"]
    return counts


def trieye(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Run a trieye command."""
    command = [sys.executable, "-m", "trieye.cli", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def output(*command: str) -> str:
    """Return the output of a Slurm command in one line."""
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    return " ".join(completed.stdout.split())


def wait_until(is_met: Callable[[], bool], timeout_message: str, root: Path) -> None:
    """Wait for a condition, and raise an error with the logs of Slurm on a timeout."""
    deadline = time.monotonic() + DEADLINE_S
    while not is_met():
        if time.monotonic() > deadline:
            logs = "".join(f"{path}:\n{path.read_text()[-3000:]}\n" for path in root.glob("*.log"))
            raise RuntimeError(f"{timeout_message}\n{output('squeue')}\n{output('sinfo', '-R')}\n{logs}")
        time.sleep(0.5)


def free_ports(num: int) -> list[int]:
    """Return free ports of this machine."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(num)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


if __name__ == "__main__":
    main()
