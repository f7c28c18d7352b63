"""Tabular Q-learning in a plain loop: log, save, resume.

python examples/loop.py run_name=first    # Ctrl-C saves; the same command continues
python examples/loop.py -m hydra/sweeper=trieye hydra/launcher=trieye lr=0.1,0.3,0.8    # a sweep
trieye results table
"""

import gymnasium as gym
import numpy as np
from pydantic import Field

import trieye


class Config(trieye.TrieyeConfig):
    """The config of this program, besides all keys of trieye; `--help` and error messages show types and bounds."""

    episodes: int = Field(default=2000, ge=1, description="Episodes of the training.")
    lr: float = Field(default=0.5, gt=0, le=1, description="Step size of the update.")
    gamma: float = Field(default=0.95, ge=0, lt=1, description="Discount factor.")
    epsilon: float = Field(default=0.3, ge=0, le=1, description="Probability of a random action.")


@trieye.main("pkg://trieye.conf", "trieye")
def train(cfg: Config) -> float:
    """Train, and return the share of the last 100 episodes that reached the goal."""
    env = gym.make("FrozenLake-v1", is_slippery=False)
    rng = np.random.default_rng(cfg.seed)
    state = {"q": np.zeros((env.observation_space.n, env.action_space.n)), "rng": rng.bit_generator.state}
    with trieye.Run(cfg) as run:
        restored = run.restore(state=state)  # None in a fresh run
        rng.bit_generator.state = state["rng"]
        print(f"starting after episode {run.step}" if restored else "starting")
        for episode in run.steps(cfg.episodes):
            obs, _ = env.reset(seed=episode)
            done, total = False, 0.0
            while not done:
                values = state["q"][obs]
                greedy = rng.choice(np.flatnonzero(values == values.max()))
                action = int(rng.integers(env.action_space.n)) if rng.random() < cfg.epsilon else int(greedy)
                next_obs, reward, terminated, truncated, _ = env.step(action)
                target = reward + cfg.gamma * (not terminated) * state["q"][next_obs].max()
                state["q"][obs, action] += cfg.lr * (target - state["q"][obs, action])
                obs, done, total = next_obs, terminated or truncated, total + float(reward)
            run.log({"episode/return": total, "q/start": state["q"][0].max()})
            if run.save_due:
                state["rng"] = rng.bit_generator.state
                run.save(state=state)
        return float(state["q"][0].max())


if __name__ == "__main__":
    train()
