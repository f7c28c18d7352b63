"""Kill the driver of a sweep again and again, with `trieye sweep relaunch` at once after each kill.

The sweep is a grid and then a search; its jobs are runs that save and resume. Each process of a job appends its start
and its end to a file that trieye neither reads nor writes, and checks whether an earlier process of the job still runs.
In the end every job must be completed, no two processes of a job may have overlapped, and none may have started after
the job was completed. No two trials of the search, whose space is an interval, may have the same value.
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

import psutil

DEADLINE_S = 600.0
RECORDING_S = 2.0
"""A kill so close to the end of a job may prevent its record, and the job rightly runs again."""

PROGRAM = """
import json
import os
import time
from pathlib import Path

import trieye
from trieye.config.hydra.launch import launch_info

NOTES = Path(__file__).with_name("notes.jsonl")


def ticks(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def note(**fields):
    line = json.dumps({**fields, "pid": os.getpid(), "ticks": ticks(os.getpid()), "at": time.monotonic()})
    with NOTES.open("a") as file:
        file.write(line + chr(10))


class Counted:
    done = 0

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.done = state["done"]


@trieye.main("pkg://trieye.conf", "trieye")
def train(config: trieye.TrieyeConfig) -> float:
    job, before = launch_info().job_num, NOTES.read_text().splitlines() if NOTES.exists() else []
    earlier = [note for note in map(json.loads, before) if note["job"] == job and note["what"] == "start"]
    alive = [note["pid"] for note in earlier if ticks(note["pid"]) == note["ticks"]]
    note(job=job, what="start", alive=alive)
    counted = Counted()
    with trieye.Run(config) as run:
        run.restore(counted=counted)
        for step in run.steps(STEPS):
            counted.done += 1
            time.sleep(0.05)
            if step % 5 == 0:
                run.save(counted=counted)
    note(job=job, what="end", done=counted.done)
    return float(counted.done)


if __name__ == "__main__":
    train()
"""
STEPS = 40
OPTIONS = [
    "-m", "hydra/launcher=trieye", "hydra/sweeper=trieye", "hydra.sweep.dir=sweep", "hydra.launcher.num_jobs=2",
    "runtime=local", "sinks=[]",
]  # fmt: skip


class Driver:
    """A process that drives the sweep in a session of its own: the program itself, or a relaunch of it."""

    def __init__(self, root: Path, words: list[str], program: str = "swept.py") -> None:
        self._log, self._program = root / "log", program
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *words], cwd=root, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """Kill the command and the program that it has started, but none of their jobs: they become orphans."""
        victims = [psutil.Process(self.process.pid)]
        with contextlib.suppress(psutil.Error):
            victims += [child for child in victims[0].children() if self._program in " ".join(child.cmdline())]
        for victim in victims:
            with contextlib.suppress(psutil.Error):
                victim.kill()
        self.process.wait()

    def left_behind(self) -> list[psutil.Process]:
        """Return the processes of its session that still run."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if os.getsid(process.pid) == self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


def notes(root: Path) -> list[dict[str, Any]]:
    """Return what the jobs have noted so far."""
    path = root / "notes.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def completed(root: Path) -> set[int]:
    """Return the jobs whose records say that they are completed."""
    records = [json.loads(path.read_bytes()) for path in (root / "sweep").glob("*/status.json")]
    return {record["index"] for record in records if record["state"] == "completed"}


def repeated(root: Path) -> list[list[str]]:
    """Return the jobs that have the same overrides; a grid has none, and a search of an interval should have none."""
    jobs: dict[str, list[str]] = {}
    for path in (root / "sweep").glob("*/status.json"):
        jobs.setdefault(" ".join(json.loads(path.read_bytes())["overrides"]), []).append(path.parent.name)
    return [indices for indices in jobs.values() if len(indices) > 1]


def await_starts(root: Path, driver: Driver, num: int) -> bool:
    """Wait until jobs have started so many times; return False if the driver ended before."""
    until = time.monotonic() + DEADLINE_S
    while sum(note["what"] == "start" for note in notes(root)) < num:
        if driver.process.poll() is not None:
            return False
        if time.monotonic() > until:
            raise TimeoutError("no further job starts")
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
    drivers, settled, orphans, num_kills = [Driver(root, ["swept.py", *OPTIONS, *words])], [], 0, 0
    try:
        while num_kills < kills:
            more = random.randint(1, max(jobs // (kills + 1), 1))
            if not await_starts(root, drivers[-1], sum(note["what"] == "start" for note in notes(root)) + more):
                break
            time.sleep(random.uniform(0.0, 1.5))
            drivers[-1].kill()
            num_kills += 1
            settled.append((time.monotonic(), completed(root)))
            orphans += len(running(root))
            drivers.append(Driver(root, ["-m", "trieye.cli", "sweep", "relaunch", "sweep"]))
        code = drivers[-1].process.wait(DEADLINE_S)
    finally:
        for driver in drivers:
            driver.process.kill()
            for process in driver.left_behind():
                with contextlib.suppress(psutil.Error):
                    process.kill()
    messages = problems(notes(root), settled, completed(root), jobs)
    messages += [f"trials {', '.join(indices)} have the same values" for indices in repeated(root)]
    if num_kills < kills:
        messages.append(f"the sweep ended after {num_kills} of {kills} kills")
    if code:
        messages.append(f"the last relaunch ended with {code}: {(root / 'log').read_text(errors='replace')[-2000:]}")
    starts = sum(note["what"] == "start" for note in notes(root))
    return {
        "completed": len(completed(root)), "kills": num_kills, "starts": starts, "orphans": orphans,
        "took_s": round(time.monotonic() - began), "problems": messages[:10],
    }  # fmt: skip


def running(root: Path) -> set[int]:
    """Return the processes that have noted a start and no end, and still run."""
    ended = {note["pid"] for note in notes(root) if note["what"] == "end"}
    return {note["pid"] for note in notes(root) if note["pid"] not in ended and psutil.pid_exists(note["pid"])}


def problems(
    noted: list[dict[str, Any]], settled: list[tuple[float, set[int]]], done: set[int], jobs: int
) -> list[str]:
    """Return what the notes of the jobs contradict.

    Args:
        noted: Starts and ends, in the order in which they were written.
        settled: After each kill, the time and the jobs that were completed then.
        done: The jobs that are completed in the end.
        jobs: How many there should be.
    """
    found = [f"job {index} is not completed" for index in range(jobs) if index not in done]
    ends: dict[int, float] = {}
    for note in noted:
        job, at = note["job"], note["at"]
        if note["what"] == "end":
            if note["done"] != STEPS:
                found.append(f"job {job} ended after {note['done']} steps")
            ends[job] = at
            continue
        if note["alive"]:
            found.append(f"job {job} started while its processes {note['alive']} ran")
        if job in ends and not any(abs(moment - ends[job]) < RECORDING_S for moment, _ in settled):
            found.append(f"job {job} started {at - ends[job]:.1f} s after its end")
        if any(moment < at and job in jobs_then for moment, jobs_then in settled):
            found.append(f"job {job} started after it was completed")
    return found


def main() -> int:
    """Print one JSON line; the exit code says whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--jobs", type=int, default=24)
    parser.add_argument("--kills", type=int, default=5, help="how often the driver is killed")
    parser.add_argument("--kinds", nargs="+", choices=["grid", "optuna"], default=["grid", "optuna"])
    parser.add_argument("--seed", type=int, default=None, help="of the moments of the kills")
    parser.add_argument("--keep", action="store_true", help="keep the files, and say where they are")
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
