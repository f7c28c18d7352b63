"""Kill a training repeatedly, and resume it each time in an empty directory from its mirror, without any difference."""

import argparse
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import trieye
from trieye.history.history import read_history

DEADLINE_S = 120.0
BUCKET = "soak"

TRAINING = """
import sys
import numpy as np
import trieye

root, mirror, steps, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
config = trieye.TrieyeConfig(
    app_name="soak", run_name="mirror", runtime={"kind": "local"}, sinks={},
    persistence={"root_data_dir": root, "mirror": mirror, "mirror_interval_s": 1, "keep_last": 2},
    stats={"metrics": [{"name": "total", "log_frequency_steps": 1}], "hub_metrics_interval_s": 0},
)
with trieye.Run(config) as run:
    state = {"total": np.zeros(size), "noise": np.random.default_rng(0)}
    if run.restore():
        state = dict(run.restored)
    print("at", run.step, flush=True)
    for step in run.steps(steps):
        state["total"] = state["total"] * 0.5 + state["noise"].normal(size=size)
        run.log("total", float(state["total"].sum()))
        run.save(**state)
"""


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def store() -> Iterator[dict[str, str]]:
    """Run an S3-compatible object store on localhost; yield environment variables with its address."""
    port = free_port()
    command = [str(Path(sys.executable).with_name("moto_server")), "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    bucket = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
    try:
        until = time.monotonic() + DEADLINE_S
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(bucket, timeout=5).close()
                break
            if time.monotonic() > until:
                raise RuntimeError("the object store did not start")
            time.sleep(0.1)
        yield {
            **os.environ,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "soak",
            "AWS_SECRET_ACCESS_KEY": "soak",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
    finally:
        server.kill()
        server.wait()


def train(root: Path, environment: dict[str, str], options: argparse.Namespace, kill_after_s: float | None) -> str:
    """Run the training in a directory, kill it `kill_after_s` after its first step, and return its output."""
    arguments = [str(root), f"s3://{BUCKET}/prefix", str(options.steps), str(options.size)]
    command = [sys.executable, "-c", TRAINING, *arguments]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        first = "" if process.stdout is None else process.stdout.readline()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(kill_after_s)
        process.kill()
        out, errors = process.communicate()
    if kill_after_s is None and process.returncode:
        raise RuntimeError(errors[-2000:])
    if not first:
        raise RuntimeError(f"the training did not start: {errors[-2000:]}")
    return first + out


def differences(root: Path, options: argparse.Namespace) -> list[str]:
    """Return the differences from a run without kills."""
    noise, total, curve = np.random.default_rng(0), np.zeros(options.size), {}
    for step in range(1, options.steps + 1):
        total = total * 0.5 + noise.normal(size=options.size)
        curve[step] = float(total.sum())
    run_dir = root / "soak" / "runs" / "mirror"
    loaded = trieye.load_checkpoint(run_dir, "latest")
    points = read_history(run_dir)
    stored = dict(zip(points["step"].to_pylist(), points["value"].to_pylist(), strict=True))
    problems = []
    if loaded.step != options.steps or not np.array_equal(loaded.objects["total"], total):
        problems.append(f"the state at step {loaded.step} differs")
    if stored != curve or len(points) != len(curve):
        problems.append(f"the curve has {len(points)} points, {len(curve)} expected, or its values differ")
    return problems


def soak(options: argparse.Namespace) -> dict[str, Any]:
    """Kill the training, resume it in another directory, and return the figures."""
    generator = random.Random(options.seed)
    started_at, kills = [], 0
    with tempfile.TemporaryDirectory() as directory, store() as environment:
        for machine in range(options.kills + 1):
            is_last = machine == options.kills
            root = Path(directory) / str(machine)
            output = train(root, environment, options, None if is_last else generator.uniform(0.1, options.longest))
            started_at.append(int(output.split()[1]))
            kills += not is_last
            print(f"machine {machine} started at step {started_at[-1]}", file=sys.stderr)
        problems = differences(root, options)
    if started_at != sorted(started_at):
        problems.append(f"a machine started at an earlier step than its predecessor: {started_at}")
    return {"kills": kills, "began_at": started_at, "problems": problems}


def main() -> int:
    """Print one JSON line; exit with 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--size", type=int, default=500_000, help="number of float64 values in the state")
    parser.add_argument(
        "--longest", type=float, default=2.0, help="longest time in seconds from the first step to the kill"
    )
    parser.add_argument("--seed", type=int, default=0)
    figures = soak(parser.parse_args())
    met = not figures["problems"]
    print(json.dumps({"benchmark": "mirror", **figures, "goal": "no problems", "met": met}))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
