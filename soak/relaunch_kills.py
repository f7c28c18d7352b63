"""Kill the driver of a sweep repeatedly, and run `trieye sweep relaunch` immediately after each kill.

The sweep is a grid and then a search; its jobs are runs that save and resume. Each process of a job appends its start
and its end to a file that trieye does not use, and checks whether earlier processes of the job are still running. At
the end, every job must be completed, no two processes of a job may have overlapped, and none may have started after the
job was completed. No two trials of the search, whose space is an interval, may have the same value.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # stubs would be one more package

DEADLINE_S = 600.0
RECORDING_S = 2.0
"""A kill within this time of the end of a job may prevent its record; then the job correctly runs again."""

PROGRAM = """
import json
import os
import time
from pathlib import Path

import trieye
from trieye.config.hydra.launch import launch_info

EVENTS = Path(__file__).with_name("events.jsonl")


def ticks(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def record(**fields):
    line = json.dumps({**fields, "pid": os.getpid(), "ticks": ticks(os.getpid()), "at": time.monotonic()})
    with EVENTS.open("a") as file:
        file.write(line + chr(10))


class Counter:
    done = 0

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.done = state["done"]


@trieye.main("pkg://trieye.conf", "trieye")
def train(config: trieye.TrieyeConfig) -> float:
    job, lines = launch_info().job_num, EVENTS.read_text().splitlines() if EVENTS.exists() else []
    starts = [event for event in map(json.loads, lines) if event["job"] == job and event["kind"] == "start"]
    alive = [event["pid"] for event in starts if ticks(event["pid"]) == event["ticks"]]
    record(job=job, kind="start", alive=alive)
    counter = Counter()
    with trieye.Run(config) as run:
        run.restore(counter=counter)
        for step in run.steps(STEPS):
            counter.done += 1
            time.sleep(0.05)
            if step % 5 == 0:
                run.save(counter=counter)
    record(job=job, kind="end", done=counter.done)
    return float(counter.done)


if __name__ == "__main__":
    train()
"""
STEPS = 40
OPTIONS = [
    "-m", "hydra/launcher=trieye", "hydra/sweeper=trieye", "hydra.sweep.dir=sweep", "hydra.launcher.num_jobs=2",
    "runtime=local", "sinks=[]",
]  # fmt: skip


class Driver:
    """A process that drives the sweep in a separate session: the program, or a relaunch of it."""

    def __init__(self, root: Path, words: list[str], program: str = "swept.py") -> None:
        self._log, self._program = root / "log", program
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *words], cwd=root, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """Kill the command and the program that it started, but not their jobs, which become orphans."""
        victims = [psutil.Process(self.process.pid)]
        with contextlib.suppress(psutil.Error):
            victims += [child for child in victims[0].children() if self._program in " ".join(child.cmdline())]
        for victim in victims:
            with contextlib.suppress(psutil.Error):
                victim.kill()
        self.process.wait()

    def survivors(self) -> list[psutil.Process]:
        """Return the running processes of the session."""
        processes = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if os.getsid(process.pid) == self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    processes.append(process)
        return processes


def read_events(root: Path) -> list[dict[str, Any]]:
    """Return the recorded starts and ends of jobs."""
    path = root / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def completed(root: Path) -> set[int]:
    """Return the jobs with the state `completed`."""
    records = [json.loads(path.read_bytes()) for path in (root / "sweep").glob("*/status.json")]
    return {record["index"] for record in records if record["state"] == "completed"}


def repeated(root: Path) -> list[list[str]]:
    """Return the jobs with equal overrides; neither a grid nor a search of an interval may have any."""
    jobs: dict[str, list[str]] = {}
    for path in (root / "sweep").glob("*/status.json"):
        jobs.setdefault(" ".join(json.loads(path.read_bytes())["overrides"]), []).append(path.parent.name)
    return [indices for indices in jobs.values() if len(indices) > 1]


def num_starts(root: Path) -> int:
    """Return how often jobs have started."""
    return sum(event["kind"] == "start" for event in read_events(root))


def await_starts(root: Path, driver: Driver, num: int) -> bool:
    """Wait until jobs have started `num` times; return False if the driver exits before."""
    until = time.monotonic() + DEADLINE_S
    while num_starts(root) < num:
        if driver.process.poll() is not None:
            return False
        if time.monotonic() > until:
            raise TimeoutError("no further job started in time")
        time.sleep(0.02)
    return True


def soak(root: Path, kind: str, *, jobs: int, kills: int) -> dict[str, Any]:
    """Run the soak for a grid or a search and return its figures."""
    root.mkdir()
    began = time.monotonic()
    (root / "swept.py").write_text(PROGRAM.replace("STEPS", str(STEPS)))
    words = [f"seed=range(0,{jobs})"]
    if kind == "optuna":
        words = ["+tags.x=interval(0,1)", "hydra.sweeper.kind=optuna", f"hydra.sweeper.num_trials={jobs}"]
    drivers, orphans, num_kills = [Driver(root, ["swept.py", *OPTIONS, *words])], 0, 0
    completed_at_kills: list[tuple[float, set[int]]] = []
    try:
        while num_kills < kills:
            more = random.randint(1, max(jobs // (kills + 1), 1))
            if not await_starts(root, drivers[-1], num_starts(root) + more):
                break
            time.sleep(random.uniform(0.0, 1.5))
            drivers[-1].kill()
            num_kills += 1
            completed_at_kills.append((time.monotonic(), completed(root)))
            orphans += len(running(root))
            drivers.append(Driver(root, ["-m", "trieye.cli", "sweep", "relaunch", "sweep"]))
        code = drivers[-1].process.wait(DEADLINE_S)
    finally:
        for driver in drivers:
            driver.process.kill()
            for process in driver.survivors():
                with contextlib.suppress(psutil.Error):
                    process.kill()
    messages = problems(read_events(root), completed_at_kills, completed(root), jobs)
    messages += [f"trials {', '.join(indices)} have the same values" for indices in repeated(root)]
    if num_kills < kills:
        messages.append(f"the sweep ended after {num_kills} of {kills} kills")
    if code:
        messages.append(f"the last relaunch exited with {code}: {(root / 'log').read_text(errors='replace')[-2000:]}")
    return {
        "completed": len(completed(root)), "kills": num_kills, "starts": num_starts(root), "orphans": orphans,
        "took_s": round(time.monotonic() - began), "problems": messages[:10],
    }  # fmt: skip


def running(root: Path) -> set[int]:
    """Return the running processes that recorded a start and no end."""
    events = read_events(root)
    ended = {event["pid"] for event in events if event["kind"] == "end"}
    return {event["pid"] for event in events if event["pid"] not in ended and psutil.pid_exists(event["pid"])}


def problems(
    events: list[dict[str, Any]], completed_at_kills: list[tuple[float, set[int]]], done: set[int], jobs: int
) -> list[str]:
    """Return the problems that the recorded events show.

    Args:
        events: Starts and ends of jobs, in chronological order.
        completed_at_kills: The time of each kill, and the jobs that were completed then.
        done: The jobs that are completed at the end.
        jobs: Number of jobs of the sweep.
    """
    messages = [f"job {index} is not completed" for index in range(jobs) if index not in done]
    ends: dict[int, float] = {}
    for event in events:
        job, at = event["job"], event["at"]
        if event["kind"] == "end":
            if event["done"] != STEPS:
                messages.append(f"job {job} ended after {event['done']} steps")
            ends[job] = at
            continue
        if event["alive"]:
            messages.append(f"job {job} started while its processes {event['alive']} were running")
        if job in ends and not any(abs(killed_at - ends[job]) < RECORDING_S for killed_at, _ in completed_at_kills):
            messages.append(f"job {job} started {at - ends[job]:.1f} s after its end")
        if any(killed_at < at and job in completed_jobs for killed_at, completed_jobs in completed_at_kills):
            messages.append(f"job {job} started after it was completed")
    return messages


def main() -> int:
    """Print one JSON line; exit with 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--jobs", type=int, default=24)
    parser.add_argument("--kills", type=int, default=5, help="number of kills of the driver")
    parser.add_argument("--kinds", nargs="+", choices=["grid", "optuna"], default=["grid", "optuna"])
    parser.add_argument("--seed", type=int, default=None, help="seed of the times of the kills")
    parser.add_argument("--keep", action="store_true", help="keep the files and print their directory")
    options = parser.parse_args()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    random.seed(seed)
    root = Path(tempfile.mkdtemp())
    try:
        kinds = {kind: soak(root / kind, kind, jobs=options.jobs, kills=options.kills) for kind in options.kinds}
    finally:
        print(root, file=sys.stderr) if options.keep else shutil.rmtree(root, ignore_errors=True)
    is_met = not any(figures["problems"] for figures in kinds.values())
    print(json.dumps({"benchmark": "relaunch_kills", "jobs": options.jobs, **kinds, "seed": seed, "met": is_met}))
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
