"""Kill jobs of a sweep, and then the sweep itself, and run what is left.

Jobs of the project template's DQN on CartPole, some of which raise and some of which are killed; half-way the program
that started them is killed, and all that is its own. Then the status has to be right for each job, `trieye sweep
relaunch` has to run what is not completed and nothing else, from checkpoints where there are some, and MLflow has to
have one run for each job, with a whole curve and no point twice.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

DEADLINE_S = 1500.0
EVERY = 200
PROGRAM = """
from pathlib import Path
import trieye
from my_agent.config import TrainConfig

@trieye.main(config_path="conf", config_name="train")
def main(config: TrainConfig) -> float | None:
    if config.seed in UNLUCKY and Path("unlucky").exists():
        raise ArithmeticError("an unlucky seed")
    return trieye.train(config)

main()
"""


def prepare(project: Path, unlucky: list[int]) -> None:
    """Make a project, and a program in it of which some seeds raise."""
    command = [sys.executable, "-m", "trieye.cli", "new", "my_agent", "--no-input", "-o", str(project.parent)]
    subprocess.run(command, check=True, capture_output=True)
    program = textwrap.dedent(PROGRAM).replace("UNLUCKY", repr(unlucky))
    (project / "sweep_train.py").write_text(program)
    (project / "unlucky").touch()


def words(jobs: int, steps: int) -> list[str]:
    """Return what is typed behind the program."""
    return [
        "-m", "agent=dqn", "agent.lr=1e-3,3e-4", f"seed=range(0,{jobs // 2})", "hydra.sweep.dir=multirun/killed",
        "runtime=local", "sinks=[mlflow]", "agent.hidden_sizes=[32]", "agent.learning_starts=64", "agent.batch_size=16",
        f"loop.steps={steps}", f"loop.evaluate_every_steps={EVERY}", "env.eval_episodes=1",
        f"persistence.checkpoint_save_freq_steps={EVERY}",
    ]  # fmt: skip


def held(sweep: Path) -> dict[int, dict[str, Any]]:
    """Return the status of each job that has begun."""
    found = {}
    for path in sweep.glob("*/status.json"):
        found[int(path.parent.name)] = json.loads(path.read_text())
    return found


def disturb(driver: subprocess.Popen[bytes], sweep: Path, jobs: int, kills: int) -> list[int]:
    """Kill jobs while they run, and the driver with all its processes when half of the jobs have ended."""
    killed: list[int] = []
    until = time.monotonic() + DEADLINE_S
    while True:
        time.sleep(0.05)
        if time.monotonic() > until or driver.poll() is not None:
            raise RuntimeError("the sweep did not get half-way")
        now = held(sweep)
        ended = sum(job["state"] in ("completed", "failed") for job in now.values())
        saved = [
            job
            for job in now.values()
            if job["state"] == "running" and job["index"] not in killed
            and any((sweep / str(job["index"]) / "run" / "checkpoints").glob("checkpoint_step_*"))
        ]  # fmt: skip
        if saved and len(killed) < kills and ended > len(killed):
            victim = random.choice(saved)
            os.kill(victim["pid"], signal.SIGKILL)
            killed.append(victim["index"])
        if ended >= jobs // 2 and len(killed) == kills and saved:
            family = psutil.Process(driver.pid).children(recursive=True)
            driver.kill()
            driver.wait()
            psutil.wait_procs(family, timeout=60)
            for process in family:  # Ray's own, if its reaper did not
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
            return killed


def status(project: Path) -> dict[str, Any]:
    """Return what `trieye sweep status --json` says."""
    command = [sys.executable, "-m", "trieye.cli", "sweep", "status", "multirun/killed", "--json"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def judge_half(project: Path, jobs: int, unlucky: list[int]) -> tuple[dict[int, dict[str, Any]], list[str]]:
    """Compare the status with what the files and the curves say."""
    problems = []
    told = {job["index"]: job for job in status(project)["jobs"]}
    truth = held(project / "multirun/killed")
    for index in range(jobs):
        job, record = told[index], truth.get(index)
        is_unlucky = index % (jobs // 2) in unlucky
        if record is None:
            wanted = "missing"
        elif record["state"] == "running":
            wanted = "incomplete"
        else:
            wanted = "failed" if is_unlucky else "completed"
        if job["state"] != wanted:
            problems.append(f"job {index} is {job['state']}, and should be {wanted}")
    return told, problems


def curves(project: Path) -> tuple[dict[str, list[int]], int]:
    """Return the steps of the evaluations of each job in MLflow, and how many runs show a whole sweep."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{project / '.trieye_data/my_agent/mlruns/mlflow.db'}")
    found, parents = {}, 0
    for experiment in client.search_experiments():
        for run in client.search_runs([experiment.experiment_id], max_results=1000):
            if run.data.tags.get("trieye.sweep_parent"):
                parents += 1
                continue
            points = client.get_metric_history(run.info.run_id, "eval/return")
            found[run.info.run_id] = sorted(point.step for point in points)
            if run.info.status != "FINISHED":
                found[run.info.run_id].append(-1)
    return found, parents


def judge_whole(project: Path, jobs: int, steps: int, half: dict[int, dict[str, Any]]) -> list[str]:
    """Look at what the sweep is after it has been run to its end."""
    problems = []
    sweep = project / "multirun/killed"
    records = held(sweep)
    for job in status(project)["jobs"]:
        before, record = half[job["index"]], records.get(job["index"], {"attempt": 0})
        if job["state"] != "completed":
            problems.append(f"job {job['index']} is {job['state']} in the end: {job['error']}")
        elif before["state"] == "completed" and record["attempt"] != before["attempt"]:
            problems.append(f"job {job['index']} was completed and ran again")
        elif before["has_checkpoint"]:
            run = json.loads((sweep / str(job["index"]) / "run/run.json").read_text())
            if not run["resumed_from"]:
                problems.append(f"job {job['index']} had a checkpoint and began anew")
    found, parents = curves(project)
    if len(found) != jobs or parents != 1:
        problems.append(f"MLflow has {len(found)} runs and {parents} parents, for {jobs} jobs")
    for run_id, points in found.items():
        if len(points) != len(set(points)) or len(points) < steps // EVERY or points[-1] < steps:
            problems.append(f"the curve of {run_id} has its points at {points}")
    return problems


def main() -> int:
    """Run the soak."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=24, help="an even number")
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--raising", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    random.seed(seed)
    raising = random.sample(range(options.jobs // 2), options.raising)
    with tempfile.TemporaryDirectory(prefix="sweep-kills-") as directory:
        project = Path(directory) / "my_agent"
        prepare(project, raising)
        with (project / "log").open("ab") as log:
            command = [sys.executable, "sweep_train.py", *words(options.jobs, options.steps)]
            driver = subprocess.Popen(command, cwd=project, stdout=log, stderr=log)
            try:
                killed = disturb(driver, project / "multirun/killed", options.jobs, options.kills)
            except RuntimeError as error:
                print(error, (project / "log").read_text()[-5000:], file=sys.stderr)
                return 1
            half, problems = judge_half(project, options.jobs, raising)
            (project / "unlucky").unlink()
            again = [sys.executable, "-m", "trieye.cli", "sweep", "relaunch", "multirun/killed"]
            code = subprocess.run(again, cwd=project, stdout=log, stderr=log, check=False).returncode
        if code:
            problems.append(f"relaunch ended with {code}: {(project / 'log').read_text()[-3000:]}")
        problems += judge_whole(project, options.jobs, options.steps, half)
        told = {
            "benchmark": "sweep_kills", "jobs": options.jobs, "killed": killed, "raised": raising,
            "half": Counter(job["state"] for job in half.values()),
            "from_checkpoints": sum(job["has_checkpoint"] for job in half.values()), "problems": problems, "seed": seed,
            "met": not problems,
        }  # fmt: skip
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
