"""Loading 1000 runs x 10 metrics x 1000 points: trieye.results against MLflow's client.

The peer's runs have as many points, but there are fewer of them: the client sends requests for each run, so its time is
extrapolated linearly. `mlflow_by_sql` reads the same small database through trieye. Our runs are copies of one real
run. The first load reads each run and writes a combined file (`first_time`); later loads read that file.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from mlflow import MlflowClient
from mlflow.entities import Metric

import trieye
from trieye.files.run_record import RunRecord
from trieye.results import load
from trieye.results.results import Results

METRICS = [f"metric/{number}" for number in range(10)]
REPEATS = 5


def make_runs(root: Path, num_runs: int, num_points: int) -> Path:
    """Create runs of one app with equal histories and distinct ids and seeds; return the directory of the app."""
    persistence = {"root_data_dir": str(root), "auto_resume_latest": False}
    config = trieye.TrieyeConfig(
        app_name="app", run_name="first", runtime={"kind": "local"}, sinks={}, persistence=persistence
    )
    rng = np.random.default_rng(0)
    with trieye.Run(config) as run:
        for step, values in enumerate(rng.normal(size=(num_points, len(METRICS))).cumsum(0)):
            run.log(dict(zip(METRICS, values.tolist(), strict=True)), step=step)
    for number in range(num_runs):
        copy = Path(shutil.copytree(run.dir, run.dir.with_name(f"r{number}")))
        record = RunRecord.read(copy / "run.json")
        assert record is not None
        record.model_copy(update={"run_id": f"id{number}", "run_name": copy.name}).save(copy / "run.json")
        configs = json.loads((copy / "configs.json").read_text())
        (copy / "configs.json").write_text(json.dumps({**configs, "seed": number}))
    shutil.rmtree(run.dir)
    return run.dir.parents[1]


def make_store(path: Path, num_runs: int, num_points: int) -> str:
    """Create an MLflow database with runs of the same size; return its URI."""
    uri = f"sqlite:///{path}"
    client = MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("peer", artifact_location=path.parent.as_uri())
    for _ in range(num_runs):
        run_id = client.create_run(experiment).info.run_id
        points = [Metric(name, step * 0.5, step, step) for step in range(num_points) for name in METRICS]
        for first in range(0, len(points), 1000):
            client.log_batch(run_id, points[first : first + 1000])
    return uri


def read_by_client(uri: str, metrics: list[str]) -> int:
    """Read metrics of all runs with MLflow's client into NumPy arrays; return the number of points."""
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("peer")
    num_points = 0
    for run in client.search_runs([experiment.experiment_id], max_results=10_000):
        for name in metrics:
            history = client.get_metric_history(run.info.run_id, name)
            num_points += len(np.array([(point.step, point.value) for point in history]))
    return num_points


def read(results: Results, metrics: list[str]) -> int:
    """Read metrics of all runs; return the number of points."""
    return sum(len(series.values) for name in metrics for series in results.series(name))


def seconds(call: Callable[[], int], expected: int) -> float:
    """Return the duration of a call in seconds, after checking its return value."""
    start = time.perf_counter()
    num_points = call()
    elapsed = time.perf_counter() - start
    assert num_points == expected, (num_points, expected)
    return elapsed


def median_s(call: Callable[[], int], expected: int) -> float:
    """Return the median duration of repeated calls in seconds."""
    return statistics.median(seconds(call, expected) for _ in range(REPEATS))


def main() -> None:
    """Measure and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="runs that trieye loads")
    parser.add_argument("--peer-runs", type=int, default=10, help="runs in the MLflow database")
    parser.add_argument("--points", type=int, default=1000, help="points of each metric of a run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        store = make_store(Path(scratch) / "mlflow.db", options.peer_runs, options.points)
        peer_points = options.peer_runs * options.points
        peer = [seconds(lambda: read_by_client(store, METRICS), peer_points * 10) for _ in range(2)]
        peer_one = [seconds(lambda: read_by_client(store, METRICS[:1]), peer_points) for _ in range(3)]
        sql = median_s(lambda: read(load(store), METRICS), peer_points * 10)
        app = make_runs(Path(scratch) / "root", options.runs, options.points)
        points = options.runs * options.points
        first = seconds(lambda: read(load(app), METRICS), points * 10)
        index = median_s(lambda: len(load(app)), options.runs)
        everything = median_s(lambda: read(load(app), METRICS), points * 10)
        one_with_index = median_s(lambda: read(load(app), METRICS[:1]), points)
        loaded = [partial(read, load(app), METRICS[:1]) for _ in range(REPEATS)]
        one = statistics.median(seconds(call, points) for call in loaded)
    scale = options.runs / options.peer_runs
    peer_s, peer_one_s = min(peer) * scale, min(peer_one) * scale
    line = {
        "benchmark": "results_loading",
        "unit": "s",
        "runs": options.runs,
        "points": points * 10,
        "all": round(everything, 3),
        "peer_all": round(peer_s, 1),
        "all_ratio": round(peer_s / everything),
        "one_metric": round(one, 4),
        "one_metric_with_index": round(one_with_index, 3),
        "peer_one_metric": round(peer_one_s, 1),
        "one_metric_ratio": round(peer_one_s / one),
        "one_metric_with_index_ratio": round(peer_one_s / one_with_index),
        "mlflow_by_sql": round(sql * scale, 2),
        "sql_ratio": round(min(peer) / sql, 1),
        "index": round(index, 3),
        "first_time": round(first, 1),
        "peer_runs": options.peer_runs,
        "peer": f"MLflow's client on {options.peer_runs} runs, times {scale:g}",
        "goal": "all >= 500, one metric >= 400, SQL >= 20",
        "met": peer_s / everything >= 500 and peer_one_s / one >= 400 and min(peer) / sql >= 20,
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
