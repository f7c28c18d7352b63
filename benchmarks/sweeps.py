"""Overhead of sweeps: the marginal cost of a job, and the latency of planning and of a status request.

Each launcher runs a sweep with few and a sweep with many trivial jobs, in alternating rounds. The marginal cost is the
difference of both durations divided by the difference of both job counts, so it excludes the startup of Ray and of
processes. Peers: Hydra's basic and joblib launchers, and hydra-ray-launcher in a separate environment. Goals: at most
50 ms per job in reused Ray workers, and 30 ms in a new local process; at most 0.1 s to plan 10,000 jobs, and 1 s for
the status of 1000 jobs. `cpu_ms` is the CPU time of a job in all processes except Ray's; other load on the machine
affects it less. Prints one JSON line.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from peer.environments import installed

from trieye.config.sweeper import SweeperConfig
from trieye.sweeps.grid import Grid
from trieye.sweeps.jobs import JobRecord, State
from trieye.sweeps.record import SweepRecord
from trieye.sweeps.spec import grid_of
from trieye.sweeps.status import status_of

GOALS = {"ray_job_ms": 50.0, "local_job_ms": 30.0, "plan_10k_s": 0.1, "status_1000_s": 1.0}
STOCK = {"hydra_ray_launcher": ["hydra-ray-launcher==1.2.2"]}
FEW, MANY = 4, 64
APP = """
import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig

@hydra.main(version_base="1.3", config_path=None, config_name="config")
def main(config: DictConfig) -> float:
    return float(config.x)

ConfigStore.instance().store("config", {"x": 0, "deep": {"lr": 0.1, "sizes": [64, 64]}})
if __name__ == "__main__":
    main()
"""
OURS = ["hydra/launcher=trieye", "hydra/sweeper=trieye"]
SIDES = {
    "ray_worker": [*OURS, "hydra.launcher.backend=ray", "hydra.launcher.isolate=worker"],
    "ray_process": [*OURS, "hydra.launcher.backend=ray", "hydra.launcher.isolate=process"],
    "local_worker": [*OURS, "hydra.launcher.backend=local", "hydra.launcher.isolate=worker"],
    "local_process": [*OURS, "hydra.launcher.backend=local", "hydra.launcher.isolate=process"],
    "this_process": [*OURS, "hydra.launcher.isolate=none"],
    "basic": ["hydra/launcher=basic"],
    "joblib": ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"],
    "stock_ray": ["hydra/launcher=ray", "+hydra.launcher.ray.init.num_cpus=2"],
}


def sweep_s(python: str, words: list[str], num: int, root: str) -> tuple[float, float]:
    """Run a sweep; return its duration, including the startup of its program, and its CPU time, in seconds."""
    directory = tempfile.mkdtemp(dir=root)
    command = [python, f"{root}/app.py", "-m", f"x=range(0,{num})", f"hydra.sweep.dir={directory}", *words]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    elapsed, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(done.stderr[-400:])
    return elapsed, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def costs(rounds: int, skipped: dict[str, str]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the marginal wall-clock and CPU time of a job with each launcher in ms, medians of alternating rounds."""
    pythons = dict.fromkeys(SIDES, sys.executable)
    pythons["stock_ray"] = str(installed("sweeps", STOCK))
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in SIDES}
    with tempfile.TemporaryDirectory() as root:
        Path(root, "app.py").write_text(APP)
        for _ in range(rounds):
            for name, words in SIDES.items():
                if name in skipped:
                    continue
                try:
                    few, many = (sweep_s(pythons[name], words, num, root) for num in (FEW, MANY))
                except RuntimeError as error:
                    skipped[name] = str(error)
                else:
                    wall, cpu = ((after - before) / (MANY - FEW) * 1e3 for before, after in zip(few, many, strict=True))
                    measured[name].append((wall, cpu))
    medians = [
        {name: round(statistics.median(pair[column] for pair in pairs), 1) for name, pairs in measured.items() if pairs}
        for column in (0, 1)
    ]
    return medians[0], medians[1]


def best_s(call: Callable[[], object], rounds: int = 5) -> float:
    """Return the minimum duration of a call in seconds."""
    durations = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        durations.append(time.perf_counter() - start)
    return min(durations)


def plan() -> Grid:
    """Return a grid of 10,000 jobs, and write its record to disk."""
    words = ["agent=dqn,ppo", "agent.lr=1e-4,3e-4,1e-3,3e-3,1e-2", "env=range(0,10)", "net=a,b,c,d,e,f,g,h,i,j"]
    grid = grid_of(words, SweeperConfig(seeds=10))
    record = SweepRecord(spec=words)
    record.set_grid(grid)
    with tempfile.TemporaryDirectory() as root:
        record.write(Path(root))
    return grid


def status_s(num: int) -> float:
    """Return the latency of a status request for a sweep with completed, running and failed jobs, in seconds."""
    states: tuple[State, ...] = ("completed", "running", "completed", "failed")
    with tempfile.TemporaryDirectory() as root:
        grid = grid_of(["lr=1e-4,3e-4", f"seed=range(0,{num // 2})"], SweeperConfig())
        record = SweepRecord(spec=[])
        record.set_grid(grid)
        record.write(Path(root))
        for index in grid:
            job = JobRecord(index=index, overrides=list(grid[index]), start=1.0)
            job.state = states[index % len(states)]
            job.write(Path(root, str(index)))
        return best_s(lambda: status_of(Path(root)), 3)


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all launchers")
    options = parser.parse_args()
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    skipped: dict[str, str] = {}
    grid = plan()
    figures = {
        "plan_10k_s": round(best_s(plan), 4),
        "overrides_us": round(best_s(lambda: [grid[index] for index in range(grid.size)]) / grid.size * 1e6, 3),
        "status_1000_s": round(status_s(1000), 3),
    }
    jobs, cpu = costs(options.rounds, skipped)
    missing = float("inf")
    goal_figures = {
        **figures, "ray_job_ms": jobs.get("ray_worker", missing), "local_job_ms": jobs.get("local_process", missing),
    }  # fmt: skip
    met = {name: goal_figures[name] <= goal for name, goal in GOALS.items()}
    print(json.dumps({"job_ms": jobs, "cpu_ms": cpu, **figures, "skipped": skipped, "goals": GOALS, "met": met}))


if __name__ == "__main__":
    main()
