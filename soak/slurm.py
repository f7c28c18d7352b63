"""Run a sweep of a plain Hydra program on a real Slurm of one machine, with preempted tasks and a drained node.

The script starts munged, slurmctld and two slurmd of Debian's packages (`apt-get install slurmctld slurmd munge`) in a
temporary directory, as root. The sweep is detached; the program never imports trieye, and saves its step to a file. Two
tasks are preempted: one by the signal before the time limit, after which the script requeues itself, one by Slurm. A
node is drained and resumed. In the end every job must be completed, no two processes of a job may have overlapped, and
none may have started after the job was completed.
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

NOTES = Path(__file__).with_name("notes.jsonl")


def note(job, what, step):
    line = json.dumps({"job": job, "what": what, "step": step, "pid": os.getpid(), "at": time.time()})
    with NOTES.open("a") as file:
        file.write(line + chr(10))


@hydra.main(version_base=None, config_path=None)
def fit(config):
    job, saved = HydraConfig.get().job.num, Path(HydraConfig.get().runtime.output_dir, "step")
    first = int(saved.read_text()) if saved.exists() else 0
    note(job, "start", first)
    for step in range(first, config.steps):
        time.sleep(0.5)
        saved.write_text(str(step + 1))
        note(job, "step", step + 1)
    note(job, "end", config.steps)
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
    """Run the sweep, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=60, help="steps of half a second per job")
    options = parser.parse_args()
    absent = [name for name in DAEMONS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if absent or os.geteuid() != 0:
        print(
            f"skipped: needs root and Debian's packages slurmctld, slurmd, munge; absent: {', '.join(absent) or 'none'}"
        )
        return
    with tempfile.TemporaryDirectory(prefix="trieye-slurm-", ignore_cleanup_errors=True) as root, slurm_in(Path(root)):
        figures = swept(Path(root), options)
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


def swept(root: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Submit the sweep, disturb it, and return the figures."""
    project = root / "project"
    project.mkdir()
    (project / "fit.py").write_text(PROGRAM)
    sweep, notes = project / "multirun/soak", project / "notes.jsonl"
    launcher = ["hydra.launcher.backend=slurm", "hydra.launcher.detach=true", "hydra.launcher.slurm.hours=1"]
    words = [f"hydra.sweep.dir={sweep}", f"+x=range({options.jobs})", f"+steps={options.steps}"]
    command = [sys.executable, "fit.py", "-m", "hydra/sweeper=trieye", "hydra/launcher=trieye", *launcher, *words]
    began = time.monotonic()
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    submit_s = time.monotonic() - began
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    array = json.loads((sweep / "slurm.json").read_text())["id"]
    wait_until(lambda: len(started(notes)) >= 4, "no four jobs started", root)
    first, second, *_ = sorted(started(notes))
    signaled = subprocess.Popen(["scancel", "--batch", "--signal=USR1", f"{array}_{first}"])  # may wait for the task
    subprocess.run(["scontrol", "requeue", f"{array}_{second}"], check=True)
    subprocess.run(["scontrol", "update", "NodeName=soak2", "State=DRAIN", "Reason=soak"], check=True)
    seen = [counts_of(sweep)]
    refused = trieye("sweep", "relaunch", "--yes", str(sweep), cwd=project)
    wait_until(lambda: output("sinfo", "-h", "-n", "soak2", "-o", "%T") == "drained", "soak2 was not drained", root)
    seen.append(counts_of(sweep))
    subprocess.run(["scontrol", "update", "NodeName=soak2", "State=RESUME"], check=True)
    wait_until(lambda: not output("squeue", "-h", "-j", array), "the array did not end", root)
    signaled.wait()
    counts = counts_of(sweep)
    figures = {
        "jobs": options.jobs,
        "completed": counts.get("completed", 0),
        "submit_s": round(submit_s, 1),
        "states_seen": seen,
        "relaunch_refused": refused.returncode != 0 and f"array {array}" in refused.stderr,
        **attempts_of(notes, options),
    }
    is_exact = not figures["overlapping"] and not figures["started_after_completion"] and not figures["repeated_steps"]
    has_states = all("running" in states and sum(states.values()) == options.jobs for states in seen)
    met = figures["completed"] == options.jobs and figures["resumed"] >= 2 and is_exact and has_states
    return {**figures, "met": met and figures["relaunch_refused"]}


def attempts_of(notes: Path, options: argparse.Namespace) -> dict[str, int]:
    """Return how often the processes of jobs overlapped, started after a completion, resumed, and repeated steps."""
    figures = {"processes": 0, "resumed": 0, "overlapping": 0, "started_after_completion": 0, "repeated_steps": 0}
    lines = [json.loads(line) for line in notes.read_text().splitlines()]
    for job in range(options.jobs):
        own = [line for line in lines if line["job"] == job]
        starts = [line for line in own if line["what"] == "start"]
        ends = [line["at"] for line in own if line["what"] == "end"]
        figures["processes"] += len(starts)
        figures["resumed"] += sum(line["step"] > 0 for line in starts)
        figures["started_after_completion"] += sum(line["at"] > min(ends, default=line["at"]) for line in starts)
        pids = [line["pid"] for line in own]
        figures["overlapping"] += sum(before != now for before, now in itertools.pairwise(pids)) - len(starts) + 1
        steps = [line["step"] for line in own if line["what"] == "step"]
        figures["repeated_steps"] += len(steps) - len(set(steps))
    return figures


def started(notes: Path) -> set[int]:
    """Return the jobs that have saved a step."""
    lines = notes.read_text().splitlines() if notes.exists() else []
    return {note["job"] for note in map(json.loads, lines) if note["step"] > 0}


def counts_of(sweep: Path) -> dict[str, int]:
    """Return the number of jobs by state, as `trieye sweep status` shows it."""
    counts: dict[str, int] = json.loads(trieye("sweep", "status", str(sweep), "--json", cwd=sweep).stdout)["counts"]
    return counts


def trieye(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Run a command of trieye."""
    command = [sys.executable, "-m", "trieye.cli", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def output(*command: str) -> str:
    """Return the output of a command of Slurm, in one line."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return " ".join(done.stdout.split())


def wait_until(is_true: Callable[[], bool], otherwise: str, root: Path) -> None:
    """Wait for a condition, and raise an error with the logs of Slurm if it does not come true."""
    deadline = time.monotonic() + DEADLINE_S
    while not is_true():
        if time.monotonic() > deadline:
            logs = "".join(f"{path}:\n{path.read_text()[-3000:]}\n" for path in root.glob("*.log"))
            raise RuntimeError(f"{otherwise}\n{output('squeue')}\n{output('sinfo', '-R')}\n{logs}")
        time.sleep(0.5)


def free_ports(num: int) -> list[int]:
    """Return free ports of this machine."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(num)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


if __name__ == "__main__":
    main()
