"""PPO with memory: a GRU infers the velocities of CartPole, which the observations lack.

    python examples/recurrent.py run_name=memory
    python examples/ppo.py env.id=recurrent:Positions-v0 run_name=blind        # without memory: stays below 100
"""

from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
import trieye
from gymnasium.envs.classic_control import CartPoleEnv
from pydantic import Field
from torch import nn

import ppo


class Positions(CartPoleEnv):
    """CartPole that shows the position of the cart and the angle of the pole, but no velocities."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        high = self.observation_space.high[[0, 2]]
        self.observation_space = gym.spaces.Box(-high, high, dtype=np.float32)

    def reset(self, **kwargs: Any) -> Any:
        """Return the positions of a new episode."""
        obs, info = super().reset(**kwargs)
        return obs[[0, 2]], info

    def step(self, action: Any) -> Any:
        """Return the positions after a step."""
        obs, *rest = super().step(action)
        return (obs[[0, 2]], *rest)


gym.register("Positions-v0", Positions, max_episode_steps=500)


class RecurrentConfig(ppo.PPOConfig):
    """Hyperparameters."""

    kind: Literal["recurrent_ppo_in_one_file"] = "recurrent_ppo_in_one_file"
    engine: str = "recurrent:RecurrentPPO"
    memory_size: int = Field(default=64, ge=1, description="Units of the GRU.")


class Config(ppo.Config):
    """The config of this program, besides all keys of trieye."""

    agent: RecurrentConfig = RecurrentConfig(batch_size=8)  # sequences, one per environment
    env: trieye.EnvConfig = trieye.EnvConfig(
        id="recurrent:Positions-v0", num=8, normalize_rewards=True, eval_episodes=20
    )


class Memory(ppo.ActorCritic):
    """Actor and critic that see the memory instead of the observation."""

    agent: RecurrentConfig

    def make(self, num_features: int, num_actions: int) -> None:
        """Create the memory, and the networks on top of it."""
        super().make(self.agent.memory_size, num_actions)
        self.memory = nn.GRUCell(num_features, self.agent.memory_size)

    def initial_state(self, n: int) -> torch.Tensor:
        """Return the memory at the start of `n` episodes."""
        return torch.zeros(n, self.agent.memory_size)

    def act(self, obs: torch.Tensor, state: Any, ctx: trieye.Context) -> trieye.Act:
        """Update the memory, and select actions by it; rows store the memory before the step."""
        state = self.memory(obs, state)
        return self.choose(state, state, ctx)


class RecurrentPPO(ppo.PPO, policy=Memory):
    """PPO that learns from whole sequences, so that gradients flow through the memory."""

    def step(self) -> dict[str, float]:
        """Collect and learn."""
        rows = self.collect()
        with torch.no_grad():
            last_value = self.policy.critic(self.policy.memory(rows.after, rows.last_state))[:, 0]
        advantages, returns = trieye.gae(rows, last_value, gamma=self.agent.gamma, lam=self.agent.gae_lambda)
        rows.extras |= {"advantages": advantages, "returns": returns}
        trieye.set_lr(self.optimizer, self.agent.lr(self.schedule_step))
        batches = self.minibatches(rows.sequences(), epochs=self.agent.epochs)
        return trieye.mean(self.train_step(batch) for batch in batches)

    def train_step(self, batch: Any) -> dict[str, torch.Tensor]:
        """Make one update by sequences `[n, t, ...]`; the memory starts anew after an invalid row, where a reset was."""
        state, valid, states = batch["state"], batch["valid"], []
        for t in range(valid.shape[1]):
            state = self.policy.memory(batch["obs"][:, t], state)
            states.append(state)
            state = torch.where(valid[:, t, None], state, 0.0)
        names = ("action", "log_prob", "advantages", "returns")
        return self.update(torch.stack(states, dim=1)[valid], {name: batch[name][valid] for name in names})


@trieye.main("pkg://trieye.conf", "trieye")
def train(cfg: Config) -> float | None:
    """Train, and return the best evaluation return."""
    return trieye.train(cfg)


if __name__ == "__main__":
    train()
