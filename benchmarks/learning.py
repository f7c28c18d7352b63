"""What presets of the template reach, beside stable-baselines3 at the same budget and hyperparameters.

Trains seeds one after another, those that are finished only once; prints a table, and writes pictures of the returns of
evaluations over environment steps, the mean of all seeds and its 95 % bootstrap interval (each seed, if there are fewer
than three), to `docs/learning/`. The table has the mean return of 100 fresh episodes, of the checkpoint that was best
in an evaluation and of the last one.

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

PLACE = ROOT / ".peers" / "learning"
DOCS = ROOT / "docs" / "learning"
SLUG = "my_agent"
EPISODES = 100
FRESH_SEED = 2_000_000
COLOURS = {"trieye": "#0072B2", "stable-baselines3": "#D55E00"}
"""Two that people with any colour vision tell apart (Okabe and Ito 2008)."""


@dataclass(frozen=True)
class Peer:
    """How stable-baselines3 does what a preset does.

    Attributes:
        algorithm: Its class.
        env: Gymnasium id.
        num: Environments.
        steps: Environment steps.
        every: Environment steps between two evaluations.
        goal: The return that counts as solved; None: there is none.
        options: Of the class. `lr` and `clip` fall to 0 from there over all steps.
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
    # it has no running normalization of observations that its evaluations would share
    "ppo_lunarlander": Peer("", "LunarLander-v3", 16, 500_000, 25_000, 200, {}),
    "dqn_catch": Peer("", "", 1, 50_000, 5000, 0.9, {}),  # it has no convolutions for pictures this small
}  # fmt: skip


@dataclass(frozen=True)
class Trained:
    """What one seed reached: the returns of evaluations on the way, and of fresh episodes.

    Attributes:
        steps: Environment steps before each evaluation.
        curve: Its return.
        best: Mean return of fresh episodes of the checkpoint that was best in an evaluation.
        final: The same of the last checkpoint.
    """

    steps: list[float]
    curve: list[float]
    best: float
    final: float


def ours(preset: str, seed: int) -> Trained:
    """Train the template's preset, unless that was done, and evaluate it."""
    project = PLACE / "project" / SLUG
    if not project.exists():
        new = [sys.executable, "-m", "trieye.cli", "new", SLUG, "--no-input", "-o", str(project.parent)]
        subprocess.run(new, check=True, stdout=subprocess.DEVNULL)
    name = f"{preset}_seed{seed}"
    typed = [f"experiment={preset}", f"seed={seed}", f"run_name={name}", f"persistence.root_data_dir={PLACE}"]
    command = [sys.executable, "-m", f"{SLUG}.train", *typed, "runtime=local", "sinks=[]"]
    subprocess.run(command, check=True, cwd=project, stdout=sys.stderr)
    found = PLACE / SLUG / "runs" / name
    report = found / "fresh_episodes.json"
    if not report.exists():
        sys.path.insert(0, str(project))
        import trieye

        played = {which: trieye.evaluate(found, which, episodes=EPISODES) for which in ("best", "latest")}
        report.write_text(json.dumps({which: held["return_mean"] for which, held in played.items()}))
    returns = json.loads(report.read_text())
    return Trained(*curve_of(found), returns["best"], returns["latest"])


def curve_of(run_dir: Path) -> tuple[list[float], list[float]]:
    """Return the environment steps and the returns of a run's evaluations, from its history."""
    import pyarrow.parquet as pq

    tables = [pq.read_table(path).to_pylist() for path in sorted((run_dir / "history").glob("points-*.parquet"))]
    rows = [row for table in tables for row in table if row["metric"] == "eval/return"]
    return [row["step"] for row in rows], [row["value"] for row in rows]


def theirs(preset: str, seed: int) -> Trained:
    """Train stable-baselines3, unless that was done, and evaluate it."""
    path = PLACE / "sb3" / f"{preset}_seed{seed}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(_theirs(PEERS[preset], seed, path.with_suffix(""))))
    returns, evaluations = json.loads(path.read_text()), np.load(path.with_suffix("") / "evaluations.npz")
    curve = evaluations["results"].mean(axis=1).tolist()
    return Trained(evaluations["timesteps"].tolist(), curve, returns["best"], returns["final"])


def _theirs(peer: Peer, seed: int, directory: Path) -> dict[str, float]:
    """Train, and return the mean returns of fresh episodes of both checkpoints."""
    import stable_baselines3 as sb3
    import torch
    from stable_baselines3.common.callbacks import EvalCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    torch.set_num_threads(1)
    options = dict(peer.options)
    for short, full in (("lr", "learning_rate"), ("clip", "clip_range")):
        if (first := options.pop(short, None)) is not None:
            options[full] = lambda left, first=first: first * left
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
    played = {"best": algorithm.load(directory / "best_model", device="cpu"), "final": model}
    return {
        which: float(evaluate_policy(one, make_vec_env(peer.env, 10, seed=FRESH_SEED), n_eval_episodes=EPISODES)[0])
        for which, one in played.items()
    }


def interval(curves: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the 95 % bootstrap interval of the mean, `[2, points]`, of `[seeds, points]`."""
    drawn = np.random.default_rng(0).integers(len(curves), size=(2000, len(curves)))
    found: NDArray[np.float64] = np.percentile(curves[drawn].mean(axis=1), [2.5, 97.5], axis=0)
    return found


def aligned(seeds: list[Trained]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return environment steps, `[points]`, and the return of each seed there, `[seeds, points]`.

    Seeds are evaluated after about as many steps, not after exactly as many; between two evaluations lies a line.
    """
    points = min(len(one.curve) for one in seeds)
    steps = np.mean([one.steps[:points] for one in seeds], axis=0)
    return steps, np.array([np.interp(steps, one.steps, one.curve) for one in seeds])


def draw(preset: str, sides: dict[str, list[Trained]]) -> Path:
    """Write the picture and return where it is."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = preset  # the same file from the same figures
    from matplotlib import pyplot as plt

    goal = PEERS[preset].goal
    figure, axes = plt.subplots(figsize=(4.5, 3), layout="constrained")  # letters are readable in a column of a paper
    for name, seeds in sides.items():
        steps, curves = aligned(seeds)
        counted = f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}"
        axes.plot(steps, curves.mean(axis=0), color=COLOURS[name], label=f"{name} ({counted})", zorder=3)
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


def table(preset: str, sides: dict[str, list[Trained]]) -> list[str]:
    """Return rows of a table in Markdown."""
    goal = PEERS[preset].goal
    rows = []
    for name, seeds in sides.items():
        best, final = ([getattr(one, which) for one in seeds] for which in ("best", "final"))
        reached = "" if goal is None else f"{sum(one >= goal for one in best)} of {len(best)}"
        figures = " | ".join(" ".join(f"{one:.4g}" for one in held) for held in (best, final))
        rows.append(f"| {preset} | {name} | {figures} | {'' if goal is None else goal} | {reached} |")
    return rows


def main() -> None:
    """Measure in the environment that has stable-baselines3."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", default=[], help=f"among {', '.join(PEERS)}")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--peer-seeds", type=int, default=None, help="of stable-baselines3; as many if not given")
    options = parser.parse_args()
    presets = options.presets or list(PEERS)
    if os.environ.get("TRIEYE_LEARNING") is None:
        python = installed("training", SB3)
        subprocess.run([python, *sys.argv], check=True, env={**os.environ, "TRIEYE_LEARNING": "1"})
        return
    rows = []
    for preset in presets:
        num_theirs = options.seeds if options.peer_seeds is None else options.peer_seeds
        sides = {"trieye": [ours(preset, seed) for seed in range(options.seeds)]}
        if PEERS[preset].algorithm and num_theirs:
            sides["stable-baselines3"] = [theirs(preset, seed) for seed in range(num_theirs)]
        rows += table(preset, sides)
        print(draw(preset, sides), file=sys.stderr)
    head = ["preset", "", f"best checkpoint, {EPISODES} fresh episodes, by seed", "last one", "goal", "reached"]
    print("\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *rows]))


if __name__ == "__main__":
    main()
