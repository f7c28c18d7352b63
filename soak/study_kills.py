"""Run a study of the DQN of the project template under Ray Tune, kill a trial, kill the driver, and restart it.

The same command must complete the study: no trial is lost, each has one MLflow run below the run of the study, with the
same status as in the study and with every point of its history exactly once.
"""

import argparse
import contextlib
import json
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
from sweep_kills import kill_with_jobs, status

DEADLINE_S = 1500.0
STEPS, EVERY = 1600, 200
NAME = "study"
OPTIONS = [
    f"run_name={NAME}", "runtime.num_cpus=2", "sinks=[mlflow]", "metrics=[core]", "agent=dqn",
    "agent.hidden_sizes=[16]", "agent.batch_size=16", "agent.learning_starts=50", "env=cartpole", "env.eval_episodes=1",
    f"loop.steps={STEPS}", f"loop.evaluate_every_steps={EVERY}", f"persistence.checkpoint_save_freq_steps={STEPS}",
    'tune.space.agent.lr="tag(log, interval(1e-4, 1e-2))"', 'tune.space.agent.batch_size="8,16"',
]  # fmt: skip
STATUS = {"completed": "FINISHED", "pruned": "KILLED"}


def kill_trial(driver: subprocess.Popen[bytes]) -> None:
    """Kill a process that is training a trial; Tune may keep others for the next trials, whose death concerns none."""
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        for process in psutil.Process(driver.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error, IndexError):
                if "DQNTrainable.train" in process.cmdline()[0]:  # Ray names the method that is running
                    process.kill()
                    return
    raise TimeoutError("no trial is training")


def await_evaluations(study: Path, driver: subprocess.Popen[bytes], number: int) -> None:
    """Wait until the trials have completed `number` evaluations in total."""
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        if driver.poll() is not None:
            raise RuntimeError(f"the driver exited with {driver.returncode}")
        records = [json.loads(path.read_bytes()) for path in study.glob("*/status.json")]
        if sum((record["step"] or 0) // EVERY for record in records) >= number:
            return
        time.sleep(0.05)
    raise TimeoutError(f"the trials did not complete {number} evaluations in time")


def soak(root: Path, *, trials: int, scheduler: str, reuse: bool) -> dict[str, Any]:
    """Run the soak and return its figures."""
    began = time.monotonic()
    from trieye.cli.new import answers_of, bake

    project = bake(answers_of({"project_name": "My Agent"}), root)
    study = project / "multirun" / NAME
    words = [f"tune={scheduler}", f"tune.num_trials={trials}", f"tune.reuse_actors={str(reuse).lower()}"]
    command = [sys.executable, "-m", "my_agent.train", *OPTIONS, *words]
    problems: list[str] = []
    with (root / "log").open("ab") as log:
        driver = subprocess.Popen(command, cwd=project, stdout=log, stderr=log, start_new_session=True)
        try:
            await_evaluations(study, driver, 4)
            kill_trial(driver)
            await_evaluations(study, driver, 2 * trials)  # early stopping leaves hardly more than three each
        finally:
            if driver.poll() is None:
                kill_with_jobs(driver)
        ended = {index for index, job in status(study).items() if job["state"] in STATUS}
        before = {index: (study / str(index) / "status.json").read_bytes() for index in ended}
        code = subprocess.run(command, cwd=project, stdout=log, stderr=log, timeout=DEADLINE_S, check=False).returncode
    if code:
        problems.append(f"the restarted study exited with {code}: {(root / 'log').read_text(errors='replace')[-2000:]}")
    after = status(study)
    for index, content in before.items():
        if (study / str(index) / "status.json").read_bytes() != content:
            problems.append(f"completed trial {index} changed")
    records = {index: json.loads((study / str(index) / "status.json").read_bytes()) for index in after}
    if not any(record["deaths"] for record in records.values()):
        problems.append("no record contains the death of the killed trial")
    points, num_forked = check_curves(study, after, problems)
    return {
        "benchmark": "study_kills", "scheduler": scheduler, "reuse_actors": reuse, "trials": trials,
        "states": Counter(job["state"] for job in after.values()), "taken_over": num_forked,
        "deaths": sum(record["deaths"] for record in records.values()), "points": points,
        "took_s": round(time.monotonic() - began), "problems": problems[:10],
    }  # fmt: skip


def check_curves(study: Path, jobs: dict[int, dict[str, Any]], problems: list[str]) -> tuple[int, int]:
    """Compare MLflow with the histories; return the number of points, and of trials that continue another trial.

    For a trial that ran again, MLflow also retains the superseded points after the checkpoint that it resumed from.
    """
    from mlflow import MlflowClient

    from trieye.files.run_record import RunRecord

    run_dirs = {index: (study / str(index) / "run").resolve() for index in jobs}
    client = MlflowClient(tracking_uri=f"sqlite:///{run_dirs[0].parents[1] / 'mlruns' / 'mlflow.db'}")
    mlflow_runs = {
        run.info.run_id: run for run in client.search_runs([e.experiment_id for e in client.search_experiments()])
    }
    members = {key for key, run in mlflow_runs.items() if "mlflow.parentRunId" in run.data.tags}
    if (len(members), len(mlflow_runs)) != (len(jobs), len(jobs) + 1):
        problems.append(f"MLflow has {len(mlflow_runs)} runs, {len(members)} of them trials")
    points = num_forked = 0
    for index, run_dir in run_dirs.items():
        record = RunRecord.read(run_dir / "run.json")
        if record is None or record.mlflow_run_id not in members:
            problems.append(f"trial {index} has no run in MLflow")
            continue
        num_forked += record.forked_from is not None
        state, run = jobs[index]["state"], mlflow_runs[record.mlflow_run_id]
        if {run.info.status, record.status} != {STATUS.get(state)}:
            problems.append(f"trial {index} is {state}, its run {record.status}, and {run.info.status} in MLflow")
        curves = curves_in_history(run_dir)
        for name, curve in curves.items():
            history = client.get_metric_history(record.mlflow_run_id, name)
            stored = Counter((m.step, m.value, m.timestamp) for m in history)
            steps = [step for step, _ in curve]
            if any(later <= earlier for earlier, later in pairwise(steps)) and not name.startswith("trieye/"):
                problems.append(f"trial {index}: {name} has repeated steps: {steps}")
            if name.startswith("trieye/"):
                continue
            missing = set(curve) - {(step, value) for step, value, _ in stored}
            if missing or max(stored.values(), default=1) > 1:
                problems.append(f"trial {index}: {name} lacks {sorted(missing)[:5]} in MLflow, or has repeated points")
            points += len(curve)
        evaluated = [step for step, _ in curves["eval/return"]]
        # a trial that continues another one may skip evaluations: the other one may have been ahead
        is_complete = evaluated[-1] >= STEPS if record.forked_from is not None else len(evaluated) == STEPS // EVERY
        if state == "completed" and not is_complete:
            problems.append(f"trial {index} was evaluated at {evaluated}")
    return points, num_forked


def main() -> int:
    """Print one JSON line for each scheduler; exit with 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--scheduler", choices=["asha", "pbt", "median", "random"], help="test only this scheduler")
    parser.add_argument("--own-processes", action="store_true", help="start a new process for each trial")
    parser.add_argument("--keep", action="store_true", help="keep the files and print their directory")
    options = parser.parse_args()
    is_met = True
    for scheduler in [options.scheduler] if options.scheduler else ["asha", "pbt"]:
        root = Path(tempfile.mkdtemp())
        try:
            figures = soak(root, trials=options.trials, scheduler=scheduler, reuse=not options.own_processes)
        finally:
            print(root, file=sys.stderr) if options.keep else shutil.rmtree(root, ignore_errors=True)
        print(json.dumps({**figures, "met": not figures["problems"]}), flush=True)
        is_met &= not figures["problems"]
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
