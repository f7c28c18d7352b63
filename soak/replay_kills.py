"""Kill a process that fills, samples and saves a replay buffer repeatedly, and check its saves.

After each kill, the newest complete save is loaded, and its next 10 batches must equal the batches of an
uninterrupted buffer. The next process resumes from this save, so an error would persist in all later checks.
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
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

from trieye.files.atomic import recover
from trieye.replay import ReplayBuffer

ROWS = 32
BATCHES = 10
DEADLINE_S = 60.0
KINDS: dict[str, dict[str, Any]] = {
    "uniform": {"capacity": 2_000},
    "prioritized": {
        "capacity": 1_000,
        "sampler": "prioritized",
        "dedup_next": True,
        "frame_stack": {"obs": 4},
        "n_step": 3,
        "storage": "shm",
    },
}


def rows_of(kind: str, step: int) -> tuple[dict[str, Any], Any]:
    """Return the rows of a step and their environments, computed from the number of the step."""
    numbers = np.arange(step * ROWS, (step + 1) * ROWS)
    envs = numbers % 4
    shape = (24, 24) if kind == "prioritized" else (3,)
    obs = np.broadcast_to((numbers % 251).reshape(-1, *(1 for _ in shape)), (ROWS, *shape))
    ended = (numbers // 4) % 23 == 22
    return {
        "obs": obs.astype(np.uint8),
        "next_obs": ((obs + 4) % 251).astype(np.uint8),
        "reward": numbers.astype(np.float32),
        "done": ended,
    }, envs


def train(buffer: ReplayBuffer, kind: str, step: int) -> None:
    """Take a step: add rows, sample a batch, and set priorities computed from its ids."""
    rows, envs = rows_of(kind, step)
    buffer.extend(rows, envs)
    batch = buffer.sample(16)
    buffer.update_priorities(batch.ids, (batch.ids % 97) / 10)


def steps_of(buffer: ReplayBuffer) -> int:
    """Return the number of steps whose rows were added to a buffer."""
    return int(buffer.stats()["added"]) // ROWS


def train_until_killed(root: Path, kind: str, save_every: int) -> None:
    """Load the last save, and train and save until this process is killed."""
    recover(root)
    buffer = ReplayBuffer(**KINDS[kind])
    if (root / "replay").exists():
        buffer.load(root / "replay", lazy=random.random() < 0.5)
    while True:
        train(buffer, kind, steps_of(buffer))
        if steps_of(buffer) % save_every == 0:
            buffer.save(root / "replay")
            (root / "saved").touch()


def kill_once(root: Path, kind: str, save_every: int, calm_s: float) -> None:
    """Start a process, and kill it at a random time after its first save."""
    (root / "saved").unlink(missing_ok=True)
    arguments = ["--child", kind, "--root", str(root), "--save-every", str(save_every)]
    process = subprocess.Popen([sys.executable, __file__, *arguments])
    until = time.monotonic() + DEADLINE_S
    while not (root / "saved").exists():
        if process.poll() is not None or time.monotonic() > until:
            process.kill()
            raise RuntimeError(f"the process did not save (exit code {process.wait()})")
        time.sleep(0.005)
    time.sleep(random.uniform(0, calm_s))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def differences(saved: ReplayBuffer, expected: ReplayBuffer) -> list[str]:
    """Return the differences of the next batches."""
    problems = []
    for number in range(BATCHES):
        one, other = saved.sample(64), expected.sample(64)
        if not (np.array_equal(one.ids, other.ids) and np.array_equal(one.weights, other.weights)):
            problems.append(f"batch {number}: rows or weights differ")
        problems += [f"batch {number}: {key} differs" for key in other if not np.array_equal(one[key], other[key])]
    return problems


def soak(root: Path, kind: str, *, kills: int, save_every: int, calm_s: float) -> dict[str, Any]:
    """Kill processes with a buffer of one kind, and return the figures and the problems of its saves."""
    reference = ReplayBuffer(**{**KINDS[kind], "storage": "ram"})
    problems: list[str] = []
    for number in range(kills):
        kill_once(root, kind, save_every, calm_s)
        recover(root)
        saved = ReplayBuffer(**KINDS[kind])
        saved.load(root / "replay")
        step = steps_of(saved)
        if step < steps_of(reference):
            problems.append(f"kill {number}: loaded step {step}, but {steps_of(reference)} was saved")
            break
        while steps_of(reference) < step:
            train(reference, kind, steps_of(reference))
        problems += [f"kill {number}, step {step}: {text}" for text in differences(saved, deepcopy(reference))]
        leftovers = [path.name for path in root.iterdir() if path.name not in {"replay", "saved"}]
        problems += [f"kill {number}: {name} was not removed" for name in leftovers]
        saved.close()
        print(f"{kind}: {number + 1} of {kills} kills, step {step}", file=sys.stderr)
    return {"kills": kills, "steps": steps_of(reference), "problems": problems}


def main() -> int:
    """Print one JSON line; exit with 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="total kills of all kinds")
    parser.add_argument(
        "--calm", type=float, default=0.5, help="longest time in seconds from the first save to the kill"
    )
    parser.add_argument("--save-every", type=int, default=7, help="steps between saves")
    parser.add_argument("--child", choices=tuple(KINDS), help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        train_until_killed(options.root, options.child, options.save_every)
    figures = {}
    for number, kind in enumerate(KINDS):
        share = len(range(number, options.kills, len(KINDS)))
        with tempfile.TemporaryDirectory() as root:
            figures[kind] = soak(Path(root), kind, kills=share, save_every=options.save_every, calm_s=options.calm)
    met = not any(entry["problems"] for entry in figures.values())
    print(json.dumps({"benchmark": "replay_kills", **figures, "met": met}))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
