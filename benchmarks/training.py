"""Environment steps per CPU second of the template's algorithms, against stable-baselines3 and a single-file program.

Trains DQN, PPO, SAC and TD3 with the same hyperparameters on all sides, and with the same number of updates, which is
printed for each side. Sides alternate in one process with one torch thread. Ours logs to a run whose hub is a thread of
this process; CPU time includes all threads. Goals: 1.3 (DQN), 1.4 (PPO) and 1.15 (SAC, TD3) times
stable-baselines3, and 0.9 times the single file, which has no logging. PPO also runs without logging, which may save at
most 3 %.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from peer import single_file
from peer.environments import SB3, installed

GOALS = {"dqn": 1.3, "ppo": 1.4, "sac": 1.15, "td3": 1.15}
GOAL_SINGLE_FILE = 0.9
GOAL_LOGGING = 0.03
STEPS = {"dqn": 512, "ppo": 2048, "sac": 40, "td3": 60}
"""Environment steps per turn: about half a second, so that other load on the machine affects all sides."""
WARM_UP = {"dqn": 2500, "ppo": 1024, "sac": 150, "td3": 150}
"""Environment steps after which learning has started and DQN's epsilon has reached its final value."""
SLUG = "benchmarked_agent"
DQN = {"lr": 2.3e-3, "gamma": 0.99}
PPO = {"lr": 1e-3, "gamma": 0.98}
SAC = {"lr": 1e-3, "gamma": 0.99}
TD3 = {"lr": 1e-3, "gamma": 0.98, "batch_size": 256, "hidden_sizes": [256, 256]}


def ours(name: str, root: Path, *, logs: bool = True, **more: Any) -> Iterator[int]:
    """Yield the number of environment steps so far, after each step of an engine of the template.

    Args:
        name: Name of the agent.
        root: Directory that contains the project.
        logs: Log the metrics of each step.
        more: Sections of the config that replace the defaults of this benchmark.
    """
    import trieye

    sys.path.insert(0, str(root / SLUG))
    config_class = import_module(f"{SLUG}.config").TrainConfig
    sections: dict[str, dict[str, Any]] = {
        "dqn": {
            "agent": DQN
            | {"hidden_sizes": [256, 256], "rollout_steps": 256, "updates_per_env_step": 0.5, "double": False}
            | {"target_update_interval": 128, "epsilon": {"start": 1.0, "end": 0.04, "steps": 2000}},
            "env": {"id": "CartPole-v1"},
            "replay": {"capacity": 100_000},
        },
        "ppo": {
            "agent": PPO | {"rollout_steps": 32, "batch_size": 256, "epochs": 20, "gae_lambda": 0.8},
            "env": {"id": "CartPole-v1", "num": 8},
        },
        "sac": {
            "agent": SAC | {"learning_starts": 100},
            "env": {"id": "Pendulum-v1"},
            "replay": {"capacity": 100_000},
        },
        "td3": {
            "agent": TD3 | {"learning_starts": 100},
            "env": {"id": "Pendulum-v1"},
            "replay": {"capacity": 100_000},
        },
    }
    parts = sections[name] | {"agent": sections[name]["agent"] | {"kind": name}, "runtime": {"kind": "local"}} | more
    config = config_class(
        **{"run_name": name if logs else f"{name}_unlogged"} | parts, sinks={}, persistence={"root_data_dir": str(root)}
    )
    engine_class = getattr(import_module(f"{SLUG}.{name}"), name.upper())
    with trieye.Run(config) as run:
        engine = engine_class(config, run)
        while True:
            metrics = engine.advance()
            if logs:
                run.log(metrics)
            run.step = engine.env_steps
            yield engine.env_steps


def theirs(name: str, steps: int) -> Iterator[int]:
    """Yield the number of environment steps so far of stable-baselines3."""
    import numpy as np
    import stable_baselines3 as sb3
    import torch
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.noise import NormalActionNoise

    torch.set_num_threads(1)
    models: dict[str, Callable[[], Any]] = {
        "dqn": lambda: sb3.DQN(
            "MlpPolicy", make_vec_env("CartPole-v1"), learning_rate=2.3e-3, batch_size=64, buffer_size=100_000,
            learning_starts=1000, train_freq=256, gradient_steps=128, target_update_interval=256, gamma=0.99,
            exploration_fraction=2000 / steps, exploration_final_eps=0.04, max_grad_norm=10,
            policy_kwargs={"net_arch": [256, 256]}, device="cpu",
        ),
        "ppo": lambda: sb3.PPO(
            "MlpPolicy", make_vec_env("CartPole-v1", 8), learning_rate=1e-3, n_steps=32, batch_size=256, n_epochs=20,
            gamma=0.98, gae_lambda=0.8, clip_range=0.2, ent_coef=0.0, device="cpu",
        ),
        "sac": lambda: sb3.SAC(
            "MlpPolicy", make_vec_env("Pendulum-v1"), learning_rate=1e-3, batch_size=256, buffer_size=100_000,
            learning_starts=100, gamma=0.99, device="cpu",
        ),
        "td3": lambda: sb3.TD3(
            "MlpPolicy", make_vec_env("Pendulum-v1"), learning_rate=1e-3, batch_size=256, buffer_size=100_000,
            learning_starts=100, gamma=0.98, policy_kwargs={"net_arch": [256, 256]}, device="cpu",
            action_noise=NormalActionNoise(np.zeros(1), 0.1 * np.ones(1)),
        ),
    }  # fmt: skip
    model = models[name]()
    while True:
        model.learn(STEPS[name], reset_num_timesteps=False, log_interval=None)
        yield model.num_timesteps


def alone(name: str) -> Iterator[int]:
    """Yield the number of environment steps so far of the single file."""
    if name == "dqn":
        return single_file.dqn(
            env="CartPole-v1", hidden=[256, 256], lr=2.3e-3, batch=64, capacity=100_000, starts=1000, collect=256,
            updates=128, target_every=128, gamma=0.99, epsilon_end=0.04, epsilon_steps=2000, max_grad_norm=10.0,
        )  # fmt: skip
    if name == "ppo":
        return single_file.ppo(
            env="CartPole-v1", num=8, hidden=[64, 64], lr=1e-3, collect=32, batch=256, epochs=20, gamma=0.98, lam=0.8,
            clip=0.2, vf_coef=0.5, max_grad_norm=0.5,
        )  # fmt: skip
    return single_file.sac(
        env="Pendulum-v1", hidden=[256, 256], lr=1e-3, batch=256, capacity=100_000, starts=100, gamma=0.99, tau=0.005
    )


def bake(root: str) -> None:
    """Create a project from the template."""
    new = [sys.executable, "-m", "trieye.cli", "new", SLUG, "--no-input", "--ci", "none", "-o", root]
    subprocess.run(new, check=True, stdout=subprocess.DEVNULL)


class Turn(NamedTuple):
    """Environment steps and updates of a side in one turn, and its CPU time in seconds."""

    env_steps: int
    updates: int
    cpu_s: float

    @property
    def rate(self) -> float:
        """Environment steps per CPU second."""
        return self.env_steps / self.cpu_s


def turn(side: Iterator[int], steps: int) -> Turn:
    """Advance a side by at least `steps` environment steps; updates are steps of its most active optimizer."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    made: Counter[int] = Counter()
    hook = register_optimizer_step_post_hook(lambda optimizer, *_: made.update([id(optimizer)]))
    before, start = next(side), time.process_time()
    made.clear()
    while (now := next(side)) < before + steps:
        pass
    cpu_s = time.process_time() - start
    hook.remove()
    return Turn(now - before, max(made.values(), default=0), cpu_s)


def figures_of(turns: list[dict[str, Turn]], name: str) -> dict[str, float]:
    """Return an agent's median rates and ratios, and the updates of each side per 1000 environment steps."""
    figures: dict[str, float] = {}
    for side in turns[0]:
        figures[f"{side}_per_cpu_s"] = round(statistics.median(by_side[side].rate for by_side in turns))
        updates, env_steps = (
            sum(getattr(by_side[side], field) for by_side in turns) for field in ("updates", "env_steps")
        )
        figures[f"{side}_updates_per_1000_steps"] = round(1000 * updates / env_steps, 1)
    for peer, goal in goals_of(name).items():
        ratio = statistics.median(by_side["trieye"].rate / by_side[peer].rate for by_side in turns)
        figures |= {f"vs_{peer}": round(ratio, 3), f"goal_{peer}": goal}
    return figures


def goals_of(name: str) -> dict[str, float]:
    """Return the goals of an agent: the minimum ratio of our rate to the rate of each other side."""
    goals = {"sb3": GOALS[name]}
    if name != "td3":
        goals["single_file"] = GOAL_SINGLE_FILE
    if name == "ppo":
        goals["unlogged"] = 1.0 - GOAL_LOGGING
    return goals


def measure(names: list[str], rounds: int) -> None:
    """Measure in this process, which has stable-baselines3, and print one JSON line."""
    figures: dict[str, Any] = {"benchmark": "training"}
    with tempfile.TemporaryDirectory() as root:
        bake(root)
        for name in names:
            steps = STEPS[name]
            sides = {"trieye": ours(name, Path(root)), "sb3": theirs(name, 20 * rounds * steps)}
            if "single_file" in goals_of(name):
                sides["single_file"] = alone(name)
            if "unlogged" in goals_of(name):
                sides["unlogged"] = ours(name, Path(root), logs=False)
            for side in sides.values():
                turn(side, WARM_UP[name])
            turns = [{key: turn(side, steps) for key, side in sides.items()} for _ in range(rounds)]
            figures[name] = figures_of(turns, name)
            for key in sides.keys() & {"trieye", "unlogged"}:
                sides[key].close()  # type: ignore[attr-defined]  # a generator, whose run ends
    figures["met"] = all(figures[name][f"vs_{peer}"] >= goal for name in names for peer, goal in goals_of(name).items())
    print(json.dumps(figures))


def main() -> None:
    """Start the measurement in the environment with stable-baselines3."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", default="dqn,ppo,sac,td3", help="agents, separated by commas")
    parser.add_argument("--rounds", type=int, default=11, help="turns of each side")
    parser.add_argument("--here", action="store_true", help="measure in this environment (used by this script)")
    options = parser.parse_args()
    if options.here:
        measure(options.agents.split(","), options.rounds)
        return
    python = installed("training", SB3)
    arguments = [f"--agents={options.agents}", f"--rounds={options.rounds}", "--here"]
    subprocess.run([python, __file__, *arguments], check=True)


if __name__ == "__main__":
    main()
