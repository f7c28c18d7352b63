"""EnvPool beside Gymnasium's synchronous vector form: steps per CPU second, and returns after equal training.

Stepping alone, with random actions and the wrappers of the presets, in turns in one process; then PPO on HalfCheetah,
trained by both forms with the same seeds and hyperparameters, whose evaluations always use the synchronous form. All
threads of EnvPool count. Goal: 1.5 times the steps per second on one of the environments.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peer.environments import installed

GOAL = 1.5
PACKAGES = {
    "envpool": ["envpool==1.2.5"],
    "mujoco": ["gymnasium[mujoco]"],
    "atari": ["gymnasium[atari]", "opencv-python-headless"],
}
SLUG = "benchmarked_agent"
NUM = 8
FORMS = ("sync", "envpool")
GAMES: dict[str, dict[str, Any]] = {
    "HalfCheetah-v5": {},
    "ALE/Pong-v5": {"kwargs": {"frameskip": 1, "repeat_action_probability": 0.0}, "atari": True, "frame_stack": 4},
}
TRAINING = (
    "env=halfcheetah", f"env.num={NUM}", "env.normalize_observations=true", "env.normalize_rewards=true", "agent=ppo",
    "agent.rollout_steps=256", "agent.lr=3e-4", "runtime=local", "sinks=[]", "progress_bar=false",
)  # fmt: skip


def stepping(name: str, form: str) -> Callable[[int], tuple[float, float]]:
    """Return a function that makes steps with random actions, and returns CPU seconds and seconds per step."""
    from trieye.config.env import EnvConfig
    from trieye.training.environments import make_envs

    envs = make_envs(EnvConfig(id=name, num=NUM, vector=form, **GAMES[name]), seed=0)
    envs.reset(seed=0)
    envs.action_space.seed(0)
    actions = [envs.action_space.sample() for _ in range(64)]

    def step(num: int) -> tuple[float, float]:
        cpu_began, began = time.process_time(), time.perf_counter()
        for t in range(num):
            envs.step(actions[t % 64])
        return (time.process_time() - cpu_began) / num / NUM, (time.perf_counter() - began) / num / NUM

    return step


def stepping_figures(name: str, rounds: int, steps: int) -> dict[str, Any]:
    """Return environment steps of both forms per CPU second and per second, and the median ratios."""
    sides = {form: stepping(name, form) for form in FORMS}
    for side in sides.values():
        side(steps)
    turns = [{form: side(steps) for form, side in sides.items()} for _ in range(rounds)]
    figures: dict[str, Any] = {}
    for at, unit in enumerate(("cpu_s", "s")):
        for form in FORMS:
            figures[f"{form}_per_{unit}"] = round(1 / statistics.median(turn[form][at] for turn in turns))
        ratio = statistics.median(turn["sync"][at] / turn["envpool"][at] for turn in turns)
        figures[f"ratio_per_{unit}"] = round(ratio, 2)
    return figures


def train(python: Path, root: Path, form: str, seed: int, steps: int) -> tuple[float, float]:
    """Train PPO, and return its CPU seconds and the return of its evaluation at the end."""
    name = f"{form}_{seed}_{steps}"
    words = [f"env.vector={form}", f"seed={seed}", f"loop.steps={steps}", f"loop.evaluate_every_steps={steps}"]
    command = [str(python), "-m", f"{SLUG}.train", *TRAINING, *words, f"run_name={name}"]
    before = _children_cpu_s()
    subprocess.run(command, check=True, cwd=root / SLUG, capture_output=True)
    cpu_s = _children_cpu_s() - before
    from trieye.results import load

    series = load(root / SLUG / ".trieye_data" / SLUG / "runs" / name).series(["eval/return"])[0]
    return cpu_s, float(series.values[-1])


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def training_figures(python: Path, seeds: int, steps: int) -> dict[str, Any]:
    """Return steps per CPU second beyond the first tenth, and the returns of all seeds, of both forms."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        new = [str(python), "-m", "trieye.cli", "new", SLUG, "--no-input", "--ci", "none", "-o", directory]
        subprocess.run(new, check=True, stdout=subprocess.DEVNULL)
        short = steps // 10 // (NUM * 256) * (NUM * 256)
        for seed in range(seeds):
            for form in FORMS:
                start_s, _ = train(python, root, form, seed, short)
                cpu_s, last_return = train(python, root, form, seed, steps)
                figures.setdefault(f"{form}_per_cpu_s", []).append(round((steps - short) / (cpu_s - start_s)))
                figures.setdefault(f"{form}_returns", []).append(round(last_return))
    pairs = zip(figures["envpool_per_cpu_s"], figures["sync_per_cpu_s"], strict=True)
    return figures | {"ratio_per_cpu_s": round(statistics.median(ours / theirs for ours, theirs in pairs), 2)}


def measure(rounds: int, seeds: int, steps: int) -> None:
    """Print one line of JSON."""
    figures: dict[str, Any] = {"benchmark": "vector_forms", "environments": NUM, "goal": GOAL}
    for name in GAMES:
        figures[f"stepping {name}"] = stepping_figures(name, rounds, 100)
    if seeds:
        figures["ppo HalfCheetah-v5"] = training_figures(Path(sys.executable), seeds, steps)
    figures["met"] = any(figures[f"stepping {name}"]["ratio_per_s"] >= GOAL for name in GAMES)
    print(json.dumps(figures))


def main() -> None:
    """Measure in the environment that has EnvPool."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="turns of stepping")
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each form; 0 = stepping only")
    parser.add_argument("--steps", type=int, default=102_400, help="environment steps of a training")
    parser.add_argument("--here", action="store_true", help="measure in this environment; this script starts itself so")
    options = parser.parse_args()
    if options.here:
        measure(options.rounds, options.seeds, options.steps)
        return
    words = [f"--{name}={getattr(options, name)}" for name in ("rounds", "seeds", "steps")]
    subprocess.run([installed("envpool", PACKAGES), __file__, *words, "--here"], check=True)


if __name__ == "__main__":
    main()
