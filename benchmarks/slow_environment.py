"""Time and environment steps to a fixed return with 0, 1 and 2 explorers, if a step of the environment takes 20 ms.

PPO on CartPole, whose training steps sleep (evaluations do not), until an evaluation returns 400. All sides update
after 256 rows: 8 environments in one process, or 4 in each of two explorers. Seconds count from the first to the last
logged point, without the start of the program and of Ray. Prints one JSON line with the median over seeds, and every
value. Goal: two explorers need at most 0.6 times the time of a single process.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
from training import SLUG, bake

DELAY_S = 0.02
RETURN = 400
GOAL = 0.6
WORDS = (
    "experiment=ppo_cartpole", "loop.evaluate_every_steps=2500", f"loop.target={RETURN}", "env.eval_episodes=10",
    "sinks=[]", "progress_bar=false", "+env.wrappers={slow: {name: 'slow_environment:Slow', training_only: true}}",
)  # fmt: skip
SIDES = {
    0: ("runtime=local", "env.num=8"),
    1: ("explorer.num=1", "sync.style=fully_async", "env.num=8"),
    2: ("explorer.num=2", "sync.style=fully_async", "env.num=4"),
}
"""Overrides by number of explorers."""


class Slow(gym.Wrapper[Any, Any, Any, Any]):
    """Sleep in each step, as an environment that waits for hardware or another program."""

    def step(self, action: Any) -> Any:
        """Step after the delay."""
        time.sleep(DELAY_S)
        return self.env.step(action)


def train(root: Path, explorers: int, seed: int) -> dict[str, float]:
    """Train until the return is reached; return seconds, environment steps and the last return."""
    from trieye.results import load

    name = f"explorers_{explorers}_seed_{seed}"
    command = [sys.executable, "-m", f"{SLUG}.train", *WORDS, *SIDES[explorers], f"seed={seed}", f"run_name={name}"]
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    subprocess.run(command, check=True, cwd=root / SLUG, env=environ, stdout=sys.stderr)
    run = load(root / SLUG / ".trieye_data" / SLUG / "runs" / name)
    returns, collected = run.series(["eval/return"])[0], run.series(["time/step_ms"])[0]
    seconds = float(returns.times[-1] - collected.times[0])
    steps = int(returns.steps[-1])
    per_s = round(float(steps - collected.steps[0]) / seconds, 1)
    return {"s": round(seconds), "env_steps": steps, "return": float(returns.values[-1]), "env_steps_per_s": per_s}


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each side")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        bake(root)
        runs: dict[int, list[dict[str, float]]] = {explorers: [] for explorers in SIDES}
        for seed in range(options.seeds):
            for explorers, trained in runs.items():
                trained.append(train(Path(root), explorers, seed))
                print(explorers, trained[-1], file=sys.stderr, flush=True)
    medians = {
        unit: {explorers: statistics.median(run[unit] for run in trained) for explorers, trained in runs.items()}
        for unit in ("s", "env_steps", "env_steps_per_s")
    }
    ratio = medians["s"][2] / medians["s"][0]
    figures = {"medians": medians, "runs": runs, "ratio_2_to_0": round(ratio, 2), "goal": GOAL, "met": ratio <= GOAL}
    print(json.dumps({"benchmark": "slow_environment", "delay_s": DELAY_S, "return": RETURN, **figures}))


if __name__ == "__main__":
    main()
