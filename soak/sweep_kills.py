"""Run a sweep in which jobs raise and are killed, kill its driver half-way, and let `trieye sweep relaunch` end it.

The jobs are trainings of the project template's DQN. The status of each has to be what happened to it, before and
after; what was completed must not be touched again, what has a checkpoint must go on from it, and MLflow must have one
run for each job, with every point once.
"""

import argparse
import contextlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from curves import curves_in_history

DEADLINE_S = 1500.0
STEPS, SAVED_EVERY, HIT_AT = 300, 100, 150
PROGRAM = """
import os
import signal
from pathlib import Path

import trieye
from my_agent.config import TrainConfig
from trieye.config.hydra.launch import launch_info

NOTES = Path(__file__).parent / "notes"


@trieye.main(config_path="conf", config_name="train")
def train(cfg: TrainConfig) -> float | None:
    from my_agent.dqn import DQN

    job, advance, life = str(launch_info().job_num), DQN.advance, []

    def watched(self):
        if not life:
            life.append(self.env_steps)
            with (NOTES / f"{job}.starts").open("a") as file:
                file.write(f"{self.env_steps} ")
        if self.env_steps >= %(hit_at)d:
            if (NOTES / f"{job}.raises").exists():
                raise ValueError("the bug of this job")
            if (NOTES / f"{job}.is_killed").exists():
                (NOTES / f"{job}.is_killed").unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            if (NOTES / f"{job}.waits").exists():
                (NOTES / f"{job}.is_here").touch()
                signal.pause()
        return advance(self)

    DQN.advance = watched
    try:
        return trieye.train(cfg)
    finally:
        DQN.advance = advance


if __name__ == "__main__":
    train()
"""
OPTIONS = [
    "-m", "hydra.sweep.dir=sweep", "run_name=swept", "runtime=local", "sinks=[mlflow]", "metrics=[core]",
    "agent=dqn", "agent.hidden_sizes=[16]", "agent.batch_size=16", "agent.learning_starts=50", "env=cartpole",
    "env.eval_episodes=1", f"loop.steps={STEPS}", f"loop.evaluate_every_steps={SAVED_EVERY}",
    f"persistence.checkpoint_save_freq_steps={SAVED_EVERY}",
]  # fmt: skip


def status(sweep: Path) -> dict[int, dict[str, Any]]:
    """Return what `trieye sweep status` says of each job."""
    command = [sys.executable, "-m", "trieye.cli", "sweep", "status", str(sweep), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return {job["index"]: job for job in json.loads(done.stdout)["jobs"]}


def kill_with_jobs(driver: subprocess.Popen[bytes]) -> None:
    """Kill a driver, and wait until the jobs that it started are gone, too; agents of Ray would take minutes."""
    started = psutil.Process(driver.pid).children(recursive=True)
    workers = []
    for process in started:
        with contextlib.suppress(psutil.Error, IndexError):
            workers += [process] if process.cmdline()[0].startswith(("ray::work", "ray::IDLE")) else []
    driver.kill()
    driver.wait()
    _, alive = psutil.wait_procs(workers, timeout=60)
    for process in started:
        with contextlib.suppress(psutil.Error):
            process.kill()
    if alive:
        raise TimeoutError(f"the driver left jobs behind: {[process.name() for process in alive]}")


def await_half(sweep: Path, driver: subprocess.Popen[bytes], middle: int, is_here: Path) -> None:
    """Return when the first half of the jobs has ended, and the one after it is in its middle."""
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        if driver.poll() is not None:
            raise RuntimeError(f"the driver ended with {driver.returncode}")
        records = [_record(sweep, index) for index in range(middle)]
        if is_here.exists() and all(job and job["state"] in ("completed", "failed") for job in records):
            return
        time.sleep(0.05)
    raise TimeoutError("half of the jobs never ended")


def soak(root: Path, *, jobs: int, raising: int, killed: int, isolate: str, at_once: int) -> dict[str, Any]:
    """Run the soak and return its figures."""
    began = time.monotonic()
    from trieye.cli.new import answers_of, bake

    project = bake(answers_of({"project_name": "My Agent"}), root)
    sweep, notes = project / "sweep", project / "notes"
    notes.mkdir()
    (project / "swept.py").write_text(PROGRAM % {"hit_at": HIT_AT})
    middle = jobs // 2
    hit = random.sample(range(middle), raising + killed)
    raises, dies = set(hit[:raising]), set(hit[raising:])
    for index in raises:
        (notes / f"{index}.raises").touch()
    for index in dies:
        (notes / f"{index}.is_killed").touch()
    (notes / f"{middle}.waits").touch()
    own = [f"hydra.launcher.isolate={isolate}", f"hydra.launcher.num_jobs={at_once}", f"seed=range(0,{jobs})"]
    with (root / "log").open("ab") as log:
        driver = subprocess.Popen(
            [sys.executable, "swept.py", *OPTIONS, *own], cwd=project, stdout=log, stderr=log, start_new_session=True
        )
        try:
            await_half(sweep, driver, middle, notes / f"{middle}.is_here")
        finally:
            kill_with_jobs(driver)
        before = status(sweep)
        records = {index: _record(sweep, index) for index in before}
        problems = problems_half_way(before, records, middle, raises, dies)
        if before[middle]["state"] != "incomplete" or not before[middle]["has_checkpoint"]:
            problems.append(f"job {middle} was in its middle when the driver was killed, and is {before[middle]}")
        (notes / f"{middle}.waits").unlink()
        for index in raises:
            (notes / f"{index}.raises").unlink()  # the bug is mended
        command = [sys.executable, "-m", "trieye.cli", "sweep", "relaunch", str(sweep)]
        code = subprocess.run(command, cwd=root, stdout=log, stderr=log, timeout=DEADLINE_S, check=False).returncode
    if code:
        problems.append(f"relaunch ended with {code}: {(root / 'log').read_text(errors='replace')[-2000:]}")
    after = status(sweep)
    for index, job in after.items():
        if job["state"] != "completed":
            problems.append(f"job {index} is {job['state']} in the end: {job['error']}")
        starts = [int(step) for step in (notes / f"{index}.starts").read_text().split()]
        if before[index]["state"] == "completed" and _record(sweep, index) != records[index]:
            problems.append(f"job {index} was completed, and was touched")
        if before[index]["state"] != "completed" and len(starts) > 1 and starts[-1] < SAVED_EVERY:
            problems.append(f"job {index} began anew, at the steps {starts}")
    again = {index for index in after if len((notes / f"{index}.starts").read_text().split()) > 1}
    points = check_curves(sweep, jobs, again, problems)
    told = {state: sum(job["state"] == state for job in before.values()) for state in ("completed", "failed")}
    took_s = round(time.monotonic() - began)
    return {
        "benchmark": "sweep_kills", "jobs": jobs, "half_way": told, "ran_again": len(again), "points": points,
        "took_s": took_s, "problems": problems[:10],
    }  # fmt: skip


def problems_half_way(
    before: dict[int, dict[str, Any]], records: dict[int, Any], middle: int, raises: set[int], dies: set[int]
) -> list[str]:
    """Return where the status of a job is not what happened to it until the driver was killed."""
    problems = []
    for index, job in before.items():
        should = "failed" if index in raises else "completed" if index < middle else job["state"]
        if job["state"] != should:
            problems.append(f"job {index} is {job['state']}, and should be {should}")
        if index in raises and "the bug of this job" not in (job["error"] or ""):
            problems.append(f"job {index} failed, and says {job['error']!r}")
        if index in dies and (records[index]["deaths"], records[index]["attempt"]) != (1, 2):
            problems.append(f"job {index} was killed once, and says {records[index]}")
        if job["state"] == "running":
            problems.append(f"job {index} is running, and its driver was killed")
        if (job["state"] == "missing") != (records[index] is None):
            problems.append(f"job {index} is {job['state']}, and its record is {records[index]}")
    return problems


def _record(sweep: Path, index: int) -> Any:
    path = sweep / str(index) / "status.json"
    return json.loads(path.read_bytes()) if path.exists() else None


def check_curves(sweep: Path, jobs: int, again: set[int], problems: list[str]) -> int:
    """Compare what MLflow has with the histories of the runs, note what is wrong, and return the number of points.

    Of a job that was begun again, MLflow also keeps what came after the checkpoint from which it went on.
    """
    from mlflow import MlflowClient

    from trieye.files.run_record import RunRecord

    run_dirs = [(sweep / str(index) / "run").resolve() for index in range(jobs)]
    client = MlflowClient(tracking_uri=f"sqlite:///{run_dirs[0].parents[1] / 'mlruns' / 'mlflow.db'}")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    found = {run.info.run_id: run for run in client.search_runs(experiments, max_results=1000)}
    members = {key for key, run in found.items() if "mlflow.parentRunId" in run.data.tags}
    parents = sum("trieye.sweep_parent" in run.data.tags for run in found.values())
    if (len(members), parents, len(found)) != (jobs, 1, jobs + 1):
        problems.append(f"MLflow has {len(found)} runs, of which {len(members)} are jobs and {parents} the sweep")
    points = 0
    for index, run_dir in enumerate(run_dirs):
        record = RunRecord.read(run_dir / "run.json")
        if record is None or record.mlflow_run_id not in members:
            problems.append(f"job {index} has no run in MLflow")
            continue
        run = found[record.mlflow_run_id]
        if run.info.status != "FINISHED":
            problems.append(f"job {index} is {run.info.status} in MLflow")
        curves = curves_in_history(run_dir)
        if len(curves["eval/return"]) != STEPS // SAVED_EVERY:
            problems.append(f"job {index} was evaluated at {curves['eval/return']}")
        for name, curve in curves.items():
            steps = [step for step, _ in curve]
            shown = Counter((m.step, m.value) for m in client.get_metric_history(record.mlflow_run_id, name))
            if any(later <= earlier for earlier, later in pairwise(steps)):
                problems.append(f"job {index}: {name} has a step twice: {steps}")
            if name.startswith("trieye/"):
                continue
            if set(curve) - set(shown) or max(shown.values()) > 1 or (len(shown) > len(curve) and index not in again):
                problems.append(f"job {index}: {name} is {sorted(shown)} in MLflow and {curve} in the history")
            points += len(curve)
    return points


def main() -> int:
    """Print one JSON line; the exit code says whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--jobs", type=int, default=24)
    parser.add_argument("--raising", type=int, default=3, help="jobs that raise")
    parser.add_argument("--killed", type=int, default=2, help="jobs that are killed once")
    parser.add_argument("--isolate", choices=["process", "worker"], default="process")
    parser.add_argument("--at-once", type=int, default=2, help="jobs at once")
    parser.add_argument("--seed", type=int, default=None, help="of which jobs are hit")
    parser.add_argument("--keep", action="store_true", help="keep the files, and say where they are")
    options = parser.parse_args()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    random.seed(seed)
    root = Path(tempfile.mkdtemp())
    try:
        found = soak(
            root, jobs=options.jobs, raising=options.raising, killed=options.killed, isolate=options.isolate,
            at_once=options.at_once,
        )  # fmt: skip
    finally:
        print(root, file=sys.stderr) if options.keep else shutil.rmtree(root, ignore_errors=True)
    print(json.dumps({**found, "seed": seed, "met": not found["problems"]}))
    return 0 if not found["problems"] else 1


if __name__ == "__main__":
    sys.exit(main())
