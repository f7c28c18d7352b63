"""Run a sweep with failing and killed jobs, kill its driver half-way, and complete it with `trieye sweep relaunch`.

The jobs train the DQN of the project template. The status of each must be correct before and after the relaunch,
completed jobs must not change, jobs with a checkpoint must resume from it, and MLflow must have one run for each job,
with every point exactly once.
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

import psutil  # type: ignore[import-untyped]  # stubs would be one more package
from curves import curves_in_history

DEADLINE_S = 1500.0
STEPS, SAVE_EVERY, FAULT_STEP = 300, 100, 150
PROGRAM = """
import os
import signal
from pathlib import Path

import trieye
from my_agent.config import TrainConfig
from trieye.config.hydra.launch import launch_info

FLAGS = Path(__file__).parent / "flags"


@trieye.main(config_path="conf", config_name="train")
def train(cfg: TrainConfig) -> float | None:
    from my_agent.dqn import DQN

    job, advance, resumed_at = str(launch_info().job_num), DQN.advance, []

    def watched(self):
        if not resumed_at:
            resumed_at.append(self.env_steps)
            with (FLAGS / f"{job}.starts").open("a") as file:
                file.write(f"{self.env_steps} ")
        if self.env_steps >= %(fault_step)d:
            if (FLAGS / f"{job}.raises").exists():
                raise ValueError("injected bug")
            if (FLAGS / f"{job}.is_killed").exists():
                (FLAGS / f"{job}.is_killed").unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            if (FLAGS / f"{job}.waits").exists():
                (FLAGS / f"{job}.is_waiting").touch()
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
    "env.eval_episodes=1", f"loop.steps={STEPS}", f"loop.evaluate_every_steps={SAVE_EVERY}",
    f"persistence.checkpoint_save_freq_steps={SAVE_EVERY}",
]  # fmt: skip


def status(sweep: Path) -> dict[int, dict[str, Any]]:
    """Return the jobs by index, as `trieye sweep status` prints them."""
    command = [sys.executable, "-m", "trieye.cli", "sweep", "status", str(sweep), "--json"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    return {job["index"]: job for job in json.loads(completed.stdout)["jobs"]}


def kill_with_jobs(driver: subprocess.Popen[bytes]) -> None:
    """Kill a driver and its processes, and wait for the jobs to exit; agents of Ray would take minutes."""
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
        raise TimeoutError(f"jobs survive the driver: {[process.name() for process in alive]}")


def await_half(sweep: Path, driver: subprocess.Popen[bytes], middle: int, waiting_flag: Path) -> None:
    """Wait until the first half of the jobs has ended and the next job waits at its fault step."""
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        if driver.poll() is not None:
            raise RuntimeError(f"the driver exited with {driver.returncode}")
        records = [_record(sweep, index) for index in range(middle)]
        if waiting_flag.exists() and all(job and job["state"] in ("completed", "failed") for job in records):
            return
        time.sleep(0.05)
    raise TimeoutError("half of the jobs did not end in time")


def soak(root: Path, *, jobs: int, raising: int, killed: int, isolate: str, at_once: int) -> dict[str, Any]:
    """Run the soak and return its figures."""
    began = time.monotonic()
    from trieye.cli.new import answers_of, bake

    project = bake(answers_of({"project_name": "My Agent"}), root)
    sweep, flags = project / "sweep", project / "flags"
    flags.mkdir()
    (project / "swept.py").write_text(PROGRAM % {"fault_step": FAULT_STEP})
    middle = jobs // 2
    faulty = random.sample(range(middle), raising + killed)
    raising_jobs, killed_jobs = set(faulty[:raising]), set(faulty[raising:])
    for index in raising_jobs:
        (flags / f"{index}.raises").touch()
    for index in killed_jobs:
        (flags / f"{index}.is_killed").touch()
    (flags / f"{middle}.waits").touch()
    launcher_options = [
        f"hydra.launcher.isolate={isolate}",
        f"hydra.launcher.num_jobs={at_once}",
        f"seed=range(0,{jobs})",
    ]
    with (root / "log").open("ab") as log:
        driver = subprocess.Popen(
            [sys.executable, "swept.py", *OPTIONS, *launcher_options],
            cwd=project,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            await_half(sweep, driver, middle, flags / f"{middle}.is_waiting")
        finally:
            kill_with_jobs(driver)
        before = status(sweep)
        records = {index: _record(sweep, index) for index in before}
        problems = problems_half_way(before, records, middle, raising_jobs, killed_jobs)
        if before[middle]["state"] != "incomplete" or not before[middle]["has_checkpoint"]:
            problems.append(f"job {middle} was running when the driver was killed, its status is {before[middle]}")
        (flags / f"{middle}.waits").unlink()
        for index in raising_jobs:
            (flags / f"{index}.raises").unlink()  # fixes the bug
        command = [sys.executable, "-m", "trieye.cli", "sweep", "relaunch", str(sweep)]
        code = subprocess.run(command, cwd=root, stdout=log, stderr=log, timeout=DEADLINE_S, check=False).returncode
    if code:
        problems.append(f"relaunch exited with {code}: {(root / 'log').read_text(errors='replace')[-2000:]}")
    after = status(sweep)
    for index, job in after.items():
        if job["state"] != "completed":
            problems.append(f"job {index} is {job['state']} at the end: {job['error']}")
        starts = [int(step) for step in (flags / f"{index}.starts").read_text().split()]
        if before[index]["state"] == "completed" and _record(sweep, index) != records[index]:
            problems.append(f"completed job {index} changed")
        if before[index]["state"] != "completed" and len(starts) > 1 and starts[-1] < SAVE_EVERY:
            problems.append(f"job {index} did not resume, it started at the steps {starts}")
    rerun_jobs = {index for index in after if len((flags / f"{index}.starts").read_text().split()) > 1}
    points = check_curves(sweep, jobs, rerun_jobs, problems)
    states_before = {state: sum(job["state"] == state for job in before.values()) for state in ("completed", "failed")}
    took_s = round(time.monotonic() - began)
    return {
        "benchmark": "sweep_kills", "jobs": jobs, "half_way": states_before, "ran_again": len(rerun_jobs),
        "points": points, "took_s": took_s, "problems": problems[:10],
    }  # fmt: skip


def problems_half_way(
    before: dict[int, dict[str, Any]], records: dict[int, Any], middle: int, raising: set[int], killed: set[int]
) -> list[str]:
    """Return the jobs with a wrong status after the kill of the driver."""
    problems = []
    for index, job in before.items():
        expected = "failed" if index in raising else "completed" if index < middle else job["state"]
        if job["state"] != expected:
            problems.append(f"job {index} is {job['state']}, expected {expected}")
        if index in raising and "injected bug" not in (job["error"] or ""):
            problems.append(f"job {index} failed with error {job['error']!r}")
        if index in killed and (records[index]["deaths"], records[index]["attempt"]) != (1, 2):
            problems.append(f"job {index} was killed once, its record is {records[index]}")
        if job["state"] == "running":
            problems.append(f"job {index} is running although its driver was killed")
        if (job["state"] == "missing") != (records[index] is None):
            problems.append(f"job {index} is {job['state']}, its record is {records[index]}")
    return problems


def _record(sweep: Path, index: int) -> Any:
    path = sweep / str(index) / "status.json"
    return json.loads(path.read_bytes()) if path.exists() else None


def check_curves(sweep: Path, jobs: int, rerun_jobs: set[int], problems: list[str]) -> int:
    """Compare MLflow with the histories of the runs, append to `problems`, and return the number of points.

    For a job that ran again, MLflow also retains the superseded points after the checkpoint that it resumed from.
    """
    from mlflow import MlflowClient

    from trieye.files.run_record import RunRecord

    run_dirs = [(sweep / str(index) / "run").resolve() for index in range(jobs)]
    client = MlflowClient(tracking_uri=f"sqlite:///{run_dirs[0].parents[1] / 'mlruns' / 'mlflow.db'}")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    mlflow_runs = {run.info.run_id: run for run in client.search_runs(experiments, max_results=1000)}
    members = {key for key, run in mlflow_runs.items() if "mlflow.parentRunId" in run.data.tags}
    parents = sum("trieye.sweep_parent" in run.data.tags for run in mlflow_runs.values())
    if (len(members), parents, len(mlflow_runs)) != (jobs, 1, jobs + 1):
        problems.append(f"MLflow has {len(mlflow_runs)} runs, {len(members)} of them jobs and {parents} the sweep")
    points = 0
    for index, run_dir in enumerate(run_dirs):
        record = RunRecord.read(run_dir / "run.json")
        if record is None or record.mlflow_run_id not in members:
            problems.append(f"job {index} has no run in MLflow")
            continue
        run = mlflow_runs[record.mlflow_run_id]
        if run.info.status != "FINISHED":
            problems.append(f"job {index} is {run.info.status} in MLflow")
        curves = curves_in_history(run_dir)
        if len(curves["eval/return"]) != STEPS // SAVE_EVERY:
            problems.append(f"job {index} was evaluated at {curves['eval/return']}")
        for name, curve in curves.items():
            steps = [step for step, _ in curve]
            stored = Counter((m.step, m.value) for m in client.get_metric_history(record.mlflow_run_id, name))
            if any(later <= earlier for earlier, later in pairwise(steps)):
                problems.append(f"job {index}: {name} has repeated steps: {steps}")
            if name.startswith("trieye/"):
                continue
            if (
                set(curve) - set(stored)
                or max(stored.values()) > 1
                or (len(stored) > len(curve) and index not in rerun_jobs)
            ):
                problems.append(f"job {index}: {name} is {sorted(stored)} in MLflow and {curve} in the history")
            points += len(curve)
    return points


def main() -> int:
    """Print one JSON line; exit with 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--jobs", type=int, default=24)
    parser.add_argument("--raising", type=int, default=3, help="jobs that raise")
    parser.add_argument("--killed", type=int, default=2, help="jobs that are killed once")
    parser.add_argument("--isolate", choices=["process", "worker"], default="process")
    parser.add_argument("--at-once", type=int, default=2, help="concurrent jobs")
    parser.add_argument("--seed", type=int, default=None, help="seed of the choice of failing and killed jobs")
    parser.add_argument("--keep", action="store_true", help="keep the files and print their directory")
    options = parser.parse_args()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    random.seed(seed)
    root = Path(tempfile.mkdtemp())
    try:
        figures = soak(
            root, jobs=options.jobs, raising=options.raising, killed=options.killed, isolate=options.isolate,
            at_once=options.at_once,
        )  # fmt: skip
    finally:
        print(root, file=sys.stderr) if options.keep else shutil.rmtree(root, ignore_errors=True)
    print(json.dumps({**figures, "seed": seed, "met": not figures["problems"]}))
    return 0 if not figures["problems"] else 1


if __name__ == "__main__":
    sys.exit(main())
