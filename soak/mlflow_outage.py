"""Stop an MLflow server during a run: steps must not slow down, and every point must arrive."""

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trieye

STEP_S = 0.002
START_DEADLINE_S = 120.0
ARRIVAL_DEADLINE_S = 300.0


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def server(root: Path, port: int) -> Iterator[None]:
    """Run an MLflow server on localhost."""
    command = [
        sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
        "--backend-store-uri", f"sqlite:///{root / 'server.db'}", "--artifacts-destination", str(root / "artifacts"),
    ]  # fmt: skip
    with (root / "server.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        until = time.monotonic() + START_DEADLINE_S
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
                break
            if time.monotonic() > until or process.poll() is not None:
                raise RuntimeError(f"the MLflow server did not start: {(root / 'server.log').read_text()[-500:]}")
            time.sleep(0.2)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Training:
    """A training that logs two values in each step of 2 ms.

    Args:
        run: The run.
    """

    def __init__(self, run: trieye.Run) -> None:
        self._run = run
        self.step = 0

    def train_for(self, seconds: float) -> list[float]:
        """Train for `seconds` and return the duration of each step in seconds."""
        durations_s = []
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            began = time.perf_counter()
            self.step += 1
            self._run.log({"loss": 1.0 / self.step, "reward": float(self.step)}, step=self.step)
            busy_until = began + STEP_S
            while time.perf_counter() < busy_until:
                pass
            durations_s.append(time.perf_counter() - began)
        return durations_s


def soak(root: Path, kind: str, *, outage_s: float, calm_s: float, limit: float) -> dict[str, Any]:
    """Run the soak with one runtime and return its figures."""
    from mlflow import MlflowClient

    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    config = trieye.TrieyeConfig(
        app_name="soak",
        run_name=f"outage_{kind}",
        runtime={"kind": kind},
        persistence={"root_data_dir": str(root), "mlflow_tracking_uri": uri},
        sinks={"mlflow": {"enabled": True}, "tensorboard": {"enabled": False}, "console": {"enabled": False}},
        stats={
            "metrics": [{"name": name, "aggregation": "mean", "log_frequency_steps": 10} for name in ("loss", "reward")]
        },
    )
    with trieye.Run(config) as run:
        training = Training(run)
        with server(root, port):
            assert run.mlflow_run_id(60.0) is not None
            training.train_for(calm_s / 2)
            before = training.train_for(calm_s)
        during = training.train_for(outage_s)
        print(f"{kind}: the server was down for {outage_s:.0f} s", file=sys.stderr)
        with server(root, port):
            after = training.train_for(calm_s)
            run.flush()
            arrived = wait_for_sink(run)
            run_id = run.mlflow_run_id()
            training_steps = training.step
            run.close()
            client = MlflowClient(tracking_uri=uri)
            curves = {name: client.get_metric_history(run_id, name) for name in ("loss", "reward")}
    expected = [*range(10, training_steps + 1, 10)] + ([training_steps] if training_steps % 10 else [])
    problems = [
        f"{name}: {len(points)} points, {len(expected)} expected"
        for name, points in curves.items()
        if sorted(point.step for point in points) != expected
    ]
    ratio = statistics.median(during) / statistics.median(before)
    return {
        "runtime": kind,
        "steps": training_steps,
        "median_step_ms": {
            "before": round(statistics.median(before) * 1e3, 3),
            "during": round(statistics.median(during) * 1e3, 3),
            "after": round(statistics.median(after) * 1e3, 3),
        },
        "ratio": round(ratio, 3),
        "arrived_after_s": round(arrived, 1),
        "problems": problems,
        "met": ratio <= limit and not problems,
    }


def wait_for_sink(run: trieye.Run) -> float:
    """Wait until the sinks have no backlog, and return the seconds that took."""
    began = time.monotonic()
    while time.monotonic() - began < ARRIVAL_DEADLINE_S:
        if not any(sink["backlog"] for sink in run.health()["sinks"]):
            break
        time.sleep(0.2)
    return time.monotonic() - began


def main() -> int:
    """Print one JSON line; exit with 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--outage", type=float, default=60.0, help="seconds without a server")
    parser.add_argument("--calm", type=float, default=10.0, help="seconds before and after")
    parser.add_argument("--limit", type=float, default=1.15, help="median step time during the outage over before")
    parser.add_argument("--runtime", nargs="+", default=["local", "ray"])
    options = parser.parse_args()
    runs = []
    for kind in options.runtime:
        with tempfile.TemporaryDirectory() as root:
            runs.append(soak(Path(root), kind, outage_s=options.outage, calm_s=options.calm, limit=options.limit))
    met = all(figures["met"] for figures in runs)
    print(json.dumps({"benchmark": "mlflow_outage", "runs": runs, "goal": f"ratio <= {options.limit}", "met": met}))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
