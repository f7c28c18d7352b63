"""Stable-Baselines3 and sb3-contrib adapter: one callback makes a training durable and resumable after a kill.

from trieye.integrations.sb3 import RunCallback

model = PPO("MlpPolicy", "CartPole-v1")
model.learn(100_000, callback=RunCallback("cartpole"))
"""

from trieye.config.packages import explaining

with explaining(__name__):
    from trieye.integrations.sb3.callback import RunCallback
    from trieye.integrations.sb3.environments import SameEpisodes, make_envs, start_episodes
    from trieye.integrations.sb3.model import load_model, restore_or_new

__all__ = ["RunCallback", "SameEpisodes", "load_model", "make_envs", "restore_or_new", "start_episodes"]
