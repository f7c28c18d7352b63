"""Returns of the template's presets, against stable-baselines3 with the same budget and hyperparameters.

Trains the seeds sequentially and reuses finished ones. Writes learning curves to `docs/learning/`: the evaluation
return over environment steps, as the mean of all seeds with its 95 % bootstrap interval (or every seed, if there are
fewer than three). Prints a table with the mean return of 100 fresh episodes, for the best checkpoint by evaluation and
for the final one.

    python benchmarks/learning.py ppo_cartpole --seeds 5
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from peer.environments import ROOT, SB3, installed

WORK_DIR = ROOT / ".peers" / "learning"
DOCS = ROOT / "docs" / "learning"
SLUG = "my_agent"
EPISODES = 100
FRESH_SEED = 2_000_000
COLOURS = {"trieye": "#0072B2", "stable-baselines3": "#D55E00"}
"""Colours that are distinguishable with any colour vision (Okabe and Ito 2008)."""


@dataclass(frozen=True)
class Peer:
    """The stable-baselines3 equivalent of a preset.

    Attributes:
        algorithm: Class name; empty if stable-baselines3 has no equivalent.
        env: Gymnasium id.
        num: Number of environments.
        steps: Environment steps of a training.
        every: Environment steps between evaluations.
        goal: Return that solves the environment; None if it has no such return.
        options: Arguments of the class. `lr` and `clip` are start values of linear schedules that end at 0.
    """

    algorithm: str
    env: str
    num: int
    steps: int
    every: int
    goal: float | None
    options: dict[str, Any]


PEERS = {
    "dqn_cartpole": Peer("DQN", "CartPole-v1", 1, 100_000, 5000, 475, {
        "learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000, "learning_starts": 1000, "gamma": 0.99,
        "train_freq": 256, "gradient_steps": 128, "target_update_interval": 256, "exploration_fraction": 0.16,
        "exploration_final_eps": 0.04, "policy_kwargs": {"net_arch": [256, 256]},
    }),
    "ppo_cartpole": Peer("PPO", "CartPole-v1", 8, 100_000, 5000, 475, {
        "lr": 1e-3, "clip": 0.2, "n_steps": 32, "batch_size": 256, "n_epochs": 20, "gamma": 0.98, "gae_lambda": 0.8,
        "ent_coef": 0.0,
    }),
    "ppo_pendulum": Peer("PPO", "Pendulum-v1", 4, 150_000, 10_000, None, {
        "lr": 1e-3, "clip_range": 0.2, "n_steps": 1024, "batch_size": 64, "n_epochs": 10, "gamma": 0.9,
        "gae_lambda": 0.95, "ent_coef": 0.0,
    }),
    "sac_pendulum": Peer("SAC", "Pendulum-v1", 1, 15_000, 1000, -200, {
        "learning_rate": 1e-3, "batch_size": 256, "learning_starts": 100, "gamma": 0.99,
    }),
    # no peer: its evaluations do not share a running normalization of observations
    "ppo_lunarlander": Peer("", "LunarLander-v3", 16, 500_000, 25_000, 200, {}),
    "dqn_catch": Peer("", "", 1, 50_000, 5000, 0.9, {}),  # no peer: its CNNs need larger images
}  # fmt: skip


@dataclass(frozen=True)
class TrainedSeed:
    """Returns of one seed, in evaluations during training and in fresh episodes afterwards.

    Attributes:
        steps: Environment steps before each evaluation.
        curve: Return of each evaluation.
        best: Mean return of fresh episodes with the best checkpoint by evaluation.
        final: Mean return of fresh episodes with the final checkpoint.
    """

    steps: list[float]
    curve: list[float]
    best: float
    final: float


def ours(preset: str, seed: int) -> TrainedSeed:
    """Train a preset of the template, unless that seed is finished, and evaluate it."""
    project = WORK_DIR / "project" / SLUG
    if not project.exists():
        new = [sys.executable, "-m", "trieye.cli", "new", SLUG, "--no-input", "-o", str(project.parent)]
        subprocess.run(new, check=True, stdout=subprocess.DEVNULL)
    name = f"{preset}_seed{seed}"
    overrides = [f"experiment={preset}", f"seed={seed}", f"run_name={name}", f"persistence.root_data_dir={WORK_DIR}"]
    command = [sys.executable, "-m", f"{SLUG}.train", *overrides, "runtime=local", "sinks=[]"]
    subprocess.run(command, check=True, cwd=project, stdout=sys.stderr)
    run_dir = WORK_DIR / SLUG / "runs" / name
    report = run_dir / "fresh_episodes.json"
    if not report.exists():
        sys.path.insert(0, str(project))
        import trieye

        evaluations = {which: trieye.evaluate(run_dir, which, episodes=EPISODES) for which in ("best", "latest")}
        report.write_text(json.dumps({which: metrics["return_mean"] for which, metrics in evaluations.items()}))
    returns = json.loads(report.read_text())
    return TrainedSeed(*curve_of(run_dir), returns["best"], returns["latest"])


def curve_of(run_dir: Path) -> tuple[list[float], list[float]]:
    """Return environment steps and returns of the evaluations in a run's history."""
    import pyarrow.parquet as pq

    tables = [pq.read_table(path).to_pylist() for path in sorted((run_dir / "history").glob("points-*.parquet"))]
    rows = [row for table in tables for row in table if row["metric"] == "eval/return"]
    return [row["step"] for row in rows], [row["value"] for row in rows]


def theirs(preset: str, seed: int) -> TrainedSeed:
    """Train stable-baselines3, unless that seed is finished, and evaluate it."""
    path = WORK_DIR / "sb3" / f"{preset}_seed{seed}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(_theirs(PEERS[preset], seed, path.with_suffix(""))))
    returns, evaluations = json.loads(path.read_text()), np.load(path.with_suffix("") / "evaluations.npz")
    curve = evaluations["results"].mean(axis=1).tolist()
    return TrainedSeed(evaluations["timesteps"].tolist(), curve, returns["best"], returns["final"])


def _theirs(peer: Peer, seed: int, directory: Path) -> dict[str, float]:
    """Train, and return the mean returns of fresh episodes with the best and the final checkpoint."""
    import stable_baselines3 as sb3
    import torch
    from stable_baselines3.common.callbacks import EvalCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    torch.set_num_threads(1)
    options = dict(peer.options)
    for short, full in (("lr", "learning_rate"), ("clip", "clip_range")):
        if (start := options.pop(short, None)) is not None:
            options[full] = lambda remaining, start=start: start * remaining
    algorithm = getattr(sb3, peer.algorithm)
    model = algorithm("MlpPolicy", make_vec_env(peer.env, peer.num, seed=seed), seed=seed, device="cpu", **options)
    callback = EvalCallback(
        make_vec_env(peer.env, 10, seed=1_000_000),
        n_eval_episodes=20,
        eval_freq=peer.every // peer.num,
        best_model_save_path=str(directory),
        log_path=str(directory),
        verbose=0,
    )
    model.learn(peer.steps, callback=callback, log_interval=None)
    returns = {}
    for which, checkpoint in (("best", algorithm.load(directory / "best_model", device="cpu")), ("final", model)):
        envs = make_vec_env(peer.env, 10, seed=FRESH_SEED)
        mean_return, _ = evaluate_policy(checkpoint, envs, n_eval_episodes=EPISODES)
        assert not isinstance(mean_return, list)
        returns[which] = float(mean_return)
    return returns


def interval(curves: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the 95 % bootstrap interval `[2, points]` of the mean of curves `[seeds, points]`."""
    resamples = np.random.default_rng(0).integers(len(curves), size=(2000, len(curves)))
    bounds: NDArray[np.float64] = np.percentile(curves[resamples].mean(axis=1), [2.5, 97.5], axis=0)
    return bounds


def aligned(seeds: list[TrainedSeed]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return common environment steps `[points]` and the return of each seed at these steps `[seeds, points]`.

    The evaluation steps of seeds differ slightly, so curves are interpolated linearly.
    """
    points = min(len(seed.curve) for seed in seeds)
    steps = np.mean([seed.steps[:points] for seed in seeds], axis=0)
    return steps, np.array([np.interp(steps, seed.steps, seed.curve) for seed in seeds])


def draw(preset: str, sides: dict[str, list[TrainedSeed]]) -> Path:
    """Draw the learning curves and return the path of the SVG."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = preset  # makes the file reproducible
    from matplotlib import pyplot as plt

    goal = PEERS[preset].goal
    figure, axes = plt.subplots(figsize=(4.5, 3), layout="constrained")  # legible in one column of a paper
    for name, seeds in sides.items():
        steps, curves = aligned(seeds)
        num_seeds = f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}"
        axes.plot(steps, curves.mean(axis=0), color=COLOURS[name], label=f"{name} ({num_seeds})", zorder=3)
        if len(seeds) < 3:  # too few for an interval
            axes.plot(steps, curves.T, color=COLOURS[name], alpha=0.4, linewidth=0.8)
        else:
            axes.fill_between(steps, *interval(curves), color=COLOURS[name], alpha=0.2, linewidth=0)
    if goal is not None:
        axes.axhline(goal, color="0.3", linestyle=":", linewidth=1, label=f"goal ({goal:g})")
    axes.set(title=preset, xlabel="environment steps", ylabel="return of an evaluation", xlim=(0, None))
    axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(5))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=len(sides) + 1, frameon=False, fontsize="small", columnspacing=1)
    DOCS.mkdir(parents=True, exist_ok=True)
    path = DOCS / f"{preset}.svg"
    figure.savefig(path, metadata={"Date": None})
    return path


def table(preset: str, sides: dict[str, list[TrainedSeed]]) -> list[str]:
    """Return the rows of a preset in the Markdown table."""
    goal = PEERS[preset].goal
    rows = []
    for name, seeds in sides.items():
        best, final = ([getattr(seed, which) for seed in seeds] for which in ("best", "final"))
        solved = "" if goal is None else f"{sum(value >= goal for value in best)} of {len(best)}"
        figures = " | ".join(" ".join(f"{value:.4g}" for value in returns) for returns in (best, final))
        rows.append(f"| {preset} | {name} | {figures} | {'' if goal is None else goal} | {solved} |")
    return rows


def main() -> None:
    """Start the training in the environment with stable-baselines3, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", default=[], help=f"presets to train (default: all): {', '.join(PEERS)}")
    parser.add_argument("--seeds", type=int, default=5, help="seeds per preset")
    parser.add_argument("--peer-seeds", type=int, help="seeds of stable-baselines3 (default: the value of --seeds)")
    options = parser.parse_args()
    presets = options.presets or list(PEERS)
    if os.environ.get("TRIEYE_LEARNING") is None:
        python = installed("training", SB3)
        subprocess.run([python, *sys.argv], check=True, env={**os.environ, "TRIEYE_LEARNING": "1"})
        return
    rows = []
    for preset in presets:
        peer_seeds = options.seeds if options.peer_seeds is None else options.peer_seeds
        sides = {"trieye": [ours(preset, seed) for seed in range(options.seeds)]}
        if PEERS[preset].algorithm and peer_seeds:
            sides["stable-baselines3"] = [theirs(preset, seed) for seed in range(peer_seeds)]
        rows += table(preset, sides)
        print(draw(preset, sides), file=sys.stderr)
    head = ["preset", "", f"best checkpoint, {EPISODES} fresh episodes, by seed", "last one", "goal", "reached"]
    print("\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *rows]))


if __name__ == "__main__":
    main()
