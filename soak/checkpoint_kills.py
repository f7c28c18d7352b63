"""Kill a run repeatedly while it saves 200 MB and more, and check the checkpoint that the next attempt restores.

Each attempt must restore an intact checkpoint that is not older than the last one reported as durable, and no final
name may refer to an incomplete checkpoint. The state includes a replay buffer, saved incrementally. `--runtime ray`
kills the hub while the training continues.
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

MAX_SAVES_BEFORE_KILL = 4.0
"""Longest time from the start of an attempt to the kill, in durations of a save."""

ROWS_PER_STEP = 5_000


def config_of(root: Path, runtime: str) -> trieye.TrieyeConfig:
    """Return the config of a run that retains three checkpoints and has no sinks."""
    return trieye.TrieyeConfig(
        app_name="soak",
        run_name="saves",
        runtime={"kind": runtime},
        persistence={"root_data_dir": str(root), "keep_last": 3},
        replay={"capacity": 100_000},
        sinks={},
    )


def train(root: Path, runtime: str, size_mb: int, steps: int | None) -> None:
    """Save the state after every step, and print the steps of durable checkpoints."""
    state: dict[str, Any] = {"weights": np.zeros((size_mb, 125_000))}  # 1 MB per row
    with trieye.Run(config_of(root, runtime)) as run:
        if run.restore():
            check(run)
        send("restored", run.step, os.getpid())
        if runtime == "ray":
            send("hub", 0, run.health()["pid"])
        handles: list[trieye.SaveHandle] = []
        for step in run.steps(steps):
            rows = np.arange((step - 1) * ROWS_PER_STEP, step * ROWS_PER_STEP)
            run.replay.extend({"row": rows, "step": np.full(ROWS_PER_STEP, step)})
            state["weights"].fill(step)
            handles.append(run.save(**state))
            while handles and handles[0].done:
                send("durable", handles.pop(0).step)
        for handle in handles:
            handle.wait()
            send("durable", handle.step)


def check(run: trieye.Run) -> None:
    """Raise an AssertionError if the restored objects do not belong to one step."""
    assert (run.restored["weights"] == run.step).all(), "weights of another step"
    assert run.replay.stats()["added"] == run.step * ROWS_PER_STEP, "rows of another step"
    batch = run.replay.sample(1000)
    assert (batch["row"] == batch.ids).all(), "rows of another id"
    assert (batch["step"] == batch.ids // ROWS_PER_STEP + 1).all(), "rows of another step"


def send(*words: object) -> None:
    """Print a message to the parent process."""
    print(*words, flush=True)


def start_training(root: Path, runtime: str, size_mb: int, steps: int = 0) -> "subprocess.Popen[str]":
    """Start this script as the training process."""
    arguments = ["--child", "--root", str(root), "--runtime", runtime, "--size-mb", str(size_mb), "--steps", str(steps)]
    return subprocess.Popen(
        [sys.executable, __file__, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def await_message(process: "subprocess.Popen[str]", kind: str) -> list[str]:
    """Wait for a message of the training and return its words."""
    assert process.stdout is not None
    for line in process.stdout:
        words = line.split()
        if words[0] == kind:
            return words
    raise RuntimeError(f"the training exited with {process.wait()} before it printed {kind!r}")


def incomplete(checkpoints: Path) -> list[str]:
    """Return the problems of checkpoints that have a final name and are not intact."""
    problems = []
    for path in checkpoints.glob("checkpoint_step_*"):
        if path.is_symlink():
            continue
        try:
            verify(path)
        except SerializationError as error:
            problems.append(f"final name: {error}")
    return problems


def soak_local(root: Path, *, kills: int, size_mb: int) -> dict[str, Any]:
    """Kill the training process, which also saves."""
    checkpoints = config_of(root, "local").persistence.get_run_base_dir() / "checkpoints"
    problems: list[str] = []
    durable, save_s = 0, 0.0
    for number in range(kills):
        process = start_training(root, "local", size_mb)
        try:
            restored = int(await_message(process, "restored")[1])
        except RuntimeError as error:
            problems.append(f"attempt {number}: {error}")
            break
        if restored < durable:
            problems.append(f"attempt {number}: resumed from {restored}, but {durable} was durable")
        if not number:  # measure a save on this machine
            started = time.monotonic()
            durable = int(await_message(process, "durable")[1])
            save_s = time.monotonic() - started
        time.sleep(random.uniform(0.0, MAX_SAVES_BEFORE_KILL * save_s))
        process.send_signal(signal.SIGKILL)
        assert process.stdout is not None
        messages = [line.split() for line in process.stdout.read().splitlines()]
        durable = max([durable, restored, *(int(step) for kind, step in messages if kind == "durable")])
        problems += incomplete(checkpoints)
        print(f"{number + 1} of {kills} kills, step {durable}", file=sys.stderr)
    return {"kills": kills, "steps": durable, "problems": problems}


def soak_ray(root: Path, *, kills: int, size_mb: int) -> dict[str, Any]:
    """Kill the hub while the training continues, and restore the last checkpoint."""
    process = start_training(root, "ray", size_mb, steps=12 * kills)
    hub = int(await_message(process, "hub")[2])
    problems: list[str] = []
    checkpoints = config_of(root, "ray").persistence.get_run_base_dir() / "checkpoints"
    num_kills = 0
    while num_kills < kills and process.poll() is None:
        time.sleep(random.uniform(1.0, 6.0))
        hub = await_hub(checkpoints.parent / "hub.lock.holder", hub, killed=num_kills > 0)
        os.kill(hub, signal.SIGKILL)
        num_kills += 1
        print(f"{num_kills} of {kills} kills of the hub", file=sys.stderr)
    output, _ = process.communicate()
    if process.returncode:
        problems.append(f"the training exited with {process.returncode}")
    durable = max((int(line.split()[1]) for line in output.splitlines() if line.startswith("durable")), default=0)
    problems += incomplete(checkpoints)
    with trieye.Run(config_of(root, "local")) as run:
        if not run.restore() or run.step != durable:
            problems.append(f"resumed from {run.step}, but {durable} was durable")
        check(run)
    return {"kills": num_kills, "steps": durable, "problems": problems}


def await_hub(holder: Path, last: int, *, killed: bool) -> int:
    """Return the process id of the current hub; if the last one was killed, wait for its successor."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            pid = int(json.loads(holder.read_bytes())["pid"])
        except (OSError, ValueError):
            pid = last
        if not killed or pid != last:
            return pid
        time.sleep(0.1)
    raise TimeoutError("the hub did not restart")


def main() -> int:
    """Print one JSON line; exit with 1 if there is a problem."""
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
