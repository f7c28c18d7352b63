"""Peers of the explorers: a hand-written loop, TorchRL's collectors and RLlib; and environments that are slow or fail.

Each side is a generator that yields the number of environment steps so far. All use MLPs with two hidden layers of 64
units, and 8 CartPole environments per process.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

NUM_ENVS, STEPS, NUM_WORKERS = 8, 64, 2


def bare(policy: Any, ctx: Any) -> Iterator[int]:
    """Collect rows with a policy in a minimal hand-written loop."""
    mode = gym.vector.AutoresetMode.NEXT_STEP
    env_fns = [lambda: gym.make("CartPole-v1", disable_env_checker=True)] * NUM_ENVS
    envs = gym.vector.SyncVectorEnv(env_fns, copy=False, autoreset_mode=mode)
    obs, num_steps = envs.reset(seed=0)[0], 0
    done = np.zeros(NUM_ENVS, bool)
    while True:
        rollout_obs = np.empty((STEPS + 1, NUM_ENVS, 4), np.float32)
        rewards, actions = np.empty((STEPS, NUM_ENVS), np.float32), np.empty((STEPS, NUM_ENVS), np.int64)
        terminated, truncated, valid = np.empty((3, STEPS, NUM_ENVS), bool)
        samples, log_probs = torch.empty(STEPS, NUM_ENVS, dtype=torch.int64), torch.empty(STEPS, NUM_ENVS)
        rollout_obs[0] = obs
        for t in range(STEPS):
            with torch.inference_mode():
                act = policy.act(torch.from_numpy(rollout_obs[t]), None, ctx)
                actions[t], valid[t] = act.action.numpy(), ~done
                samples[t], log_probs[t] = act.extras["sample"], act.extras["log_prob"]
            rollout_obs[t + 1], rewards[t], terminated[t], truncated[t], _ = envs.step(actions[t])
            done = terminated[t] | truncated[t]
        obs, num_steps = rollout_obs[STEPS], num_steps + int(valid.sum())
        yield num_steps


def torchrl_env() -> Any:
    """Return a vector environment in TorchRL's fastest wrapper."""
    from torchrl.envs import GymWrapper

    mode = gym.vector.AutoresetMode.SAME_STEP  # the only mode that the wrapper supports
    env_fns = [lambda: gym.make("CartPole-v1", disable_env_checker=True)] * NUM_ENVS
    envs = gym.vector.SyncVectorEnv(env_fns, copy=False, autoreset_mode=mode)
    return GymWrapper(envs, categorical_action_encoding=True)


def torchrl(*, is_async: bool) -> Iterator[int]:
    """Collect in two processes of TorchRL, including log probabilities."""
    os.environ["RL_LOGGING_LEVEL"] = "ERROR"  # also applies to its processes
    from tensordict.nn import TensorDictModule
    from torch.distributions import Categorical
    from torchrl.collectors import MultiAsyncCollector, MultiSyncCollector
    from torchrl.modules import MLP, ProbabilisticActor

    torch.set_num_threads(1)
    network = MLP(in_features=4, out_features=2, num_cells=[64, 64], activation_class=nn.Tanh)
    module = TensorDictModule(network, in_keys=["observation"], out_keys=["logits"])
    actor = ProbabilisticActor(module, in_keys=["logits"], distribution_class=Categorical, return_log_prob=True)
    collector = (MultiAsyncCollector if is_async else MultiSyncCollector)(
        [torchrl_env] * NUM_WORKERS,
        actor,
        frames_per_batch=STEPS * NUM_ENVS * (1 if is_async else NUM_WORKERS),
        total_frames=-1,
        device="cpu",
        storing_device="cpu",
        num_threads=1,
        num_sub_threads=1,
    )
    num_steps = 0
    try:
        for batch in collector:
            num_steps += batch.numel()
            yield num_steps
    finally:
        collector.shutdown()


def rllib_config(
    env: str = "CartPole-v1", *, workers: int, envs: int, steps: int, batch: int = 256, **env_config: Any
) -> Any:
    """Return the config of a PPO with the hyperparameters of `benchmarks/training.py`."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    sizes = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
    return (
        PPOConfig()
        .environment(env, env_config=env_config)
        .env_runners(num_env_runners=workers, num_envs_per_env_runner=envs, rollout_fragment_length=steps)
        .rl_module(model_config=sizes)
        .training(
            lr=1e-3, gamma=0.98, lambda_=0.8, train_batch_size_per_learner=batch, minibatch_size=256, num_epochs=20,
            clip_param=0.2, vf_loss_coeff=0.5, entropy_coeff=0.0, use_kl_loss=False, grad_clip=0.5,
        )
    )  # fmt: skip


def rllib_samples() -> Iterator[int]:
    """Collect in two processes of RLlib."""
    algorithm = rllib_config(workers=NUM_WORKERS, envs=NUM_ENVS, steps=STEPS, batch=1024).build_algo()
    num_steps = 0
    try:
        while True:
            samples = algorithm.env_runner_group.foreach_env_runner(
                lambda runner: runner.sample(num_timesteps=STEPS * NUM_ENVS), local_env_runner=False
            )
            num_steps += sum(len(episode) for episodes in samples for episode in episodes)
            yield num_steps
    finally:
        algorithm.stop()


def rllib_ppo(*, workers: int) -> Iterator[int]:
    """Train on 8 CartPole environments with RLlib; 0 workers: in this process."""
    algorithm = rllib_config(workers=workers, envs=NUM_ENVS // max(workers, 1), steps=32).build_algo()
    try:
        while True:
            yield int(algorithm.train()["num_env_steps_sampled_lifetime"])
    finally:
        algorithm.stop()


class FailsOnDemand(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole that raises once after a flag file appears, and deletes the file.

    Args:
        flag: Path of the flag file.
        options: Arguments of CartPole.
    """

    def __init__(self, flag: str, **options: Any) -> None:
        super().__init__(gym.make("CartPole-v1", disable_env_checker=True, **options))
        self._flag, self._num_steps = Path(flag), 0

    def step(self, action: Any) -> Any:
        """Step the environment; every 50th step checks the flag."""
        self._num_steps += 1
        if self._num_steps % 50 == 0 and self._flag.exists():
            with contextlib.suppress(FileNotFoundError):  # another environment has deleted it
                self._flag.unlink()
                raise RuntimeError("this environment fails on demand")
        return super().step(action)


gym.register("FailsOnDemand-v0", entry_point=f"{__name__}:FailsOnDemand")
FAILS = f"{__name__}:FailsOnDemand-v0"


class Slow(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole whose step takes 1 ms of CPU time."""

    def __init__(self, **options: Any) -> None:
        super().__init__(gym.make("CartPole-v1", disable_env_checker=True, **options))

    def step(self, action: Any) -> Any:
        """Step the environment."""
        end = time.thread_time() + 1e-3
        transition = super().step(action)
        while time.thread_time() < end:
            pass
        return transition


gym.register("Slow-v0", entry_point=Slow)
SLOW = f"{__name__}:Slow-v0"
