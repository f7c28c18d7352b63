"""Kill a run while it saves 200 MB and more, again and again, and see what the next start finds.

Each start has to find a whole checkpoint that is not older than the last one that was reported as safe, and nothing
half written may lie under a final name. The state has a part that grows, a replay buffer. With `--runtime ray` it is
the hub that is killed, and the training goes on.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import trieye
from trieye.checkpoints.manifest import verify
from trieye.exceptions import SerializationError

LIFE_SAVES = 4.0
"""A process is killed within the time that so many saves take."""

ROWS_PER_STEP = 5_000


def config_of(root: Path, runtime: str) -> trieye.TrieyeConfig:
    """Return the config of a run that keeps three checkpoints and logs nowhere."""
    return trieye.TrieyeConfig(
        app_name="soak",
        run_name="saves",
        runtime={"kind": runtime},
        persistence={"root_data_dir": str(root), "keep_last": 3},
        replay={"capacity": 100_000},
        sinks={},
    )


def train(root: Path, runtime: str, size_mb: int, steps: int | None) -> None:
    """Save a state after every step; the lines on stdout tell what is safe."""
    state: dict[str, Any] = {"weights": np.zeros((size_mb, 125_000))}  # 1 MB a row
    with trieye.Run(config_of(root, runtime)) as run:
        if run.restore():
            check(run)
        tell("restored", run.step, os.getpid())
        if runtime == "ray":
            tell("hub", 0, run.health()["pid"])
        handles: list[trieye.SaveHandle] = []
        for step in run.steps(steps):
            rows = np.arange((step - 1) * ROWS_PER_STEP, step * ROWS_PER_STEP)
            run.replay.extend({"row": rows, "step": np.full(ROWS_PER_STEP, step)})
            state["weights"].fill(step)
            handles.append(run.save(**state))
            while handles and handles[0].done:
                tell("safe", handles.pop(0).step)
        for handle in handles:
            handle.wait()
            tell("safe", handle.step)


def check(run: trieye.Run) -> None:
    """Raise if what was restored is not the state of one step."""
    assert (run.restored["weights"] == run.step).all(), "weights of another step"
    assert run.replay.stats()["added"] == run.step * ROWS_PER_STEP, "rows of another step"
    batch = run.replay.sample(1000)
    assert (batch["row"] == batch.ids).all(), "rows of another id"
    assert (batch["step"] == batch.ids // ROWS_PER_STEP + 1).all(), "rows of another step"


def tell(*words: object) -> None:
    """Say something to the parent."""
    print(*words, flush=True)


def child(root: Path, runtime: str, size_mb: int, steps: int = 0) -> "subprocess.Popen[str]":
    """Start this script again as the training."""
    arguments = ["--child", "--root", str(root), "--runtime", runtime, "--size-mb", str(size_mb), "--steps", str(steps)]
    return subprocess.Popen(
        [sys.executable, __file__, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def words_of(process: "subprocess.Popen[str]", wanted: str) -> list[str]:
    """Wait for a line of the training and return its words."""
    assert process.stdout is not None
    for line in process.stdout:
        words = line.split()
        if words[0] == wanted:
            return words
    raise RuntimeError(f"the training ended with {process.wait()} before it said {wanted!r}")


def half_written(checkpoints: Path) -> list[str]:
    """Return what lies under a final name and is not whole."""
    problems = []
    for path in checkpoints.glob("checkpoint_step_*"):
        if path.is_symlink():
            continue
        try:
            verify(path)
        except SerializationError as error:
            problems.append(f"under a final name: {error}")
    return problems


def soak_local(root: Path, *, kills: int, size_mb: int) -> dict[str, Any]:
    """Kill the process that trains and saves."""
    checkpoints = config_of(root, "local").persistence.get_run_base_dir() / "checkpoints"
    problems: list[str] = []
    safe, save_s = 0, 0.0
    for number in range(kills):
        process = child(root, "local", size_mb)
        try:
            found = int(words_of(process, "restored")[1])
        except RuntimeError as error:
            problems.append(f"start {number}: {error}")
            break
        if found < safe:
            problems.append(f"start {number}: resumed at {found}, {safe} was safe")
        if not number:  # how long does it take here?
            started = time.monotonic()
            safe = int(words_of(process, "safe")[1])
            save_s = time.monotonic() - started
        time.sleep(random.uniform(0.0, LIFE_SAVES * save_s))
        process.send_signal(signal.SIGKILL)
        assert process.stdout is not None
        told = [line.split() for line in process.stdout.read().splitlines()]
        safe = max([safe, found, *(int(step) for word, step in told if word == "safe")])
        problems += half_written(checkpoints)
        print(f"{number + 1} of {kills} kills, step {safe}", file=sys.stderr)
    return {"kills": kills, "steps": safe, "problems": problems}


def soak_ray(root: Path, *, kills: int, size_mb: int) -> dict[str, Any]:
    """Kill the hub of a training that goes on, and read what it left."""
    process = child(root, "ray", size_mb, steps=12 * kills)
    hub = int(words_of(process, "hub")[2])
    problems: list[str] = []
    checkpoints = config_of(root, "ray").persistence.get_run_base_dir() / "checkpoints"
    num_kills = 0
    while num_kills < kills and process.poll() is None:
        time.sleep(random.uniform(1.0, 6.0))
        hub = hub_after(checkpoints.parent / "hub.lock.holder", hub, killed=num_kills > 0)
        os.kill(hub, signal.SIGKILL)
        num_kills += 1
        print(f"{num_kills} of {kills} kills of the hub", file=sys.stderr)
    output, _ = process.communicate()
    if process.returncode:
        problems.append(f"the training ended with {process.returncode}")
    safe = max((int(line.split()[1]) for line in output.splitlines() if line.startswith("safe")), default=0)
    problems += half_written(checkpoints)
    with trieye.Run(config_of(root, "local")) as run:
        if not run.restore() or run.step != safe:
            problems.append(f"resumed at {run.step}, {safe} was safe")
        check(run)
    return {"kills": num_kills, "steps": safe, "problems": problems}


def hub_after(holder: Path, last: int, *, killed: bool) -> int:
    """Return the process of the hub that lives now, another one than that which was killed."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            found = int(json.loads(holder.read_bytes())["pid"])
        except (OSError, ValueError):
            found = last
        if not killed or found != last:
            return found
        time.sleep(0.1)
    raise TimeoutError("the hub did not come back")


def main() -> int:
    """Print one JSON line; the exit code says whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--size-mb", type=int, default=200, help="size of the model")
    parser.add_argument("--runtime", choices=("local", "ray"), default="local")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        train(options.root, options.runtime, options.size_mb, options.steps or None)
        return 0
    soak = soak_local if options.runtime == "local" else soak_ray
    with tempfile.TemporaryDirectory() as root:
        figures = soak(Path(root), kills=options.kills, size_mb=options.size_mb)
    met = not figures["problems"]
    print(json.dumps({"benchmark": "checkpoint_kills", "runtime": options.runtime, **figures, "met": met}))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
