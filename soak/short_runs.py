"""Run many short runs concurrently on one SQLite store of MLflow: it must have all points when the last run has ended.

The store is new, so one of the runs creates its tables while the others wait, and other processes keep the machine
busy. MLflow is compared with the histories right after the last run has ended, without `trieye close`.
"""

import argparse
import contextlib
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.context import ForkContext, SpawnContext
from pathlib import Path
from typing import Any

from curves import curves_in_history

import trieye

APP = "soak"
BUSY = "while True: pass"
DEADLINE_S = 1200.0


def train(root: Path, number: int, seconds: float) -> None:
    """Log for `seconds`, as a short run of a sweep does, and record how long the run took to close."""
    run = trieye.Run(
        trieye.TrieyeConfig(
            app_name=APP,
            run_name=f"short_{number}",
            runtime={"kind": "local"},
            persistence={"root_data_dir": str(root)},
        )
    )
    with run:
        until, step = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            step += 1
            run.log({"loss": 1.0 / step, "reward": float(step)}, step=step)
            time.sleep(0.002)
        closing = time.monotonic()
    (root / f"{number}.json").write_text(json.dumps(time.monotonic() - closing))


@contextlib.contextmanager
def busy_machine(num_loops: int) -> Iterator[None]:
    """Keep cores busy with processes in endless loops."""
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(num_loops)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def soak(root: Path, *, num_runs: int, num_loops: int, seconds: float, fork: bool) -> dict[str, Any]:
    """Run all runs concurrently, each in a separate process, and return the figures after the last has ended."""
    context: ForkContext | SpawnContext = (
        multiprocessing.get_context("fork") if fork else multiprocessing.get_context("spawn")
    )
    began = time.monotonic()
    children = [context.Process(target=train, args=(root, number, seconds)) for number in range(num_runs)]
    with busy_machine(num_loops):
        for child in children:
            child.start()
        for child in children:
            child.join(DEADLINE_S)
    took_s = time.monotonic() - began
    problems = [
        f"run {number} exited with {child.exitcode}" for number, child in enumerate(children) if child.exitcode != 0
    ]
    closed = sorted(json.loads(path.read_text()) for path in root.glob("*.json"))
    counts = [missing_in_mlflow(root, number) for number in range(num_runs)]
    return {
        "points": sum(num_points for num_points, _ in counts),
        "runs_that_lack_points": sum(1 for _, num_missing in counts if num_missing),
        "missing": sum(num_missing for _, num_missing in counts),
        "close_s": {"median": round(closed[len(closed) // 2], 1), "longest": round(closed[-1], 1)} if closed else None,
        "seconds": round(took_s, 1),
        "problems": problems,
    }


def missing_in_mlflow(root: Path, number: int) -> tuple[int, int]:
    """Return how many points the history of a run has, and how many of them MLflow does not have exactly once."""
    from mlflow import MlflowClient

    run_name = f"short_{number}"
    curves = curves_in_history(root / APP / "runs" / run_name)
    client = MlflowClient(tracking_uri=f"sqlite:///{root / APP / 'mlruns' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(APP)
    where = f"tags.`trieye.run_id` != '' AND attributes.run_name = '{run_name}'"
    runs = [] if experiment is None else client.search_runs([experiment.experiment_id], where)
    num_missing = 0
    for name, curve in curves.items():
        shown = [(m.step, m.value) for run in runs for m in client.get_metric_history(run.info.run_id, name)]
        num_missing += len(curve) if len(runs) != 1 else max(len(set(curve) - set(shown)), abs(len(curve) - len(shown)))
    return sum(map(len, curves.values())), num_missing


def main() -> int:
    """Print one JSON line; exit with 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="number of concurrent runs")
    parser.add_argument("--busy", type=int, default=2, help="processes that keep a core busy")
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of each run in seconds")
    parser.add_argument("--fork", action="store_true", help="fork the runs, which avoids repeated imports")
    options = parser.parse_args()
    chosen = {"num_runs": options.runs, "num_loops": options.busy, "seconds": options.seconds, "fork": options.fork}
    with tempfile.TemporaryDirectory() as directory:
        figures = soak(Path(directory), **chosen)
    met = not figures["problems"] and not figures["missing"] and figures["points"] >= 2 * options.runs
    print(json.dumps({"benchmark": "short_runs", "runs": options.runs, "busy": options.busy, **figures, "met": met}))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
