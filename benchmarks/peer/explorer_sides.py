"""What explorers are measured against: a loop written by hand, TorchRL's collectors, RLlib, and an env that fails.

Each side is a generator that yields the environment steps made so far. All have perceptrons of two layers of 64 that
act on 8 CartPoles for each process.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

NUM_ENVS, STEPS, NUM_WORKERS = 8, 64, 2


def bare(policy: Any, ctx: Any) -> Iterator[int]:
    """Step environments with a policy and keep the rows, as one writes it by hand."""
    mode = gym.vector.AutoresetMode.NEXT_STEP
    made = [lambda: gym.make("CartPole-v1", disable_env_checker=True)] * NUM_ENVS
    envs = gym.vector.SyncVectorEnv(made, copy=False, autoreset_mode=mode)
    obs, made_steps = envs.reset(seed=0)[0], 0
    done = np.zeros(NUM_ENVS, bool)
    while True:
        seen = np.empty((STEPS + 1, NUM_ENVS, 4), np.float32)
        rewards, actions = np.empty((STEPS, NUM_ENVS), np.float32), np.empty((STEPS, NUM_ENVS), np.int64)
        terminated, truncated, valid = np.empty((3, STEPS, NUM_ENVS), bool)
        draws, log_probs = torch.empty(STEPS, NUM_ENVS, dtype=torch.int64), torch.empty(STEPS, NUM_ENVS)
        seen[0] = obs
        for t in range(STEPS):
            with torch.inference_mode():
                act = policy.act(torch.from_numpy(seen[t]), None, ctx)
                actions[t], valid[t] = act.action.numpy(), ~done
                draws[t], log_probs[t] = act.extras["sample"], act.extras["log_prob"]
            seen[t + 1], rewards[t], terminated[t], truncated[t], _ = envs.step(actions[t])
            done = terminated[t] | truncated[t]
        obs, made_steps = seen[STEPS], made_steps + int(valid.sum())
        yield made_steps


def torchrl_env() -> Any:
    """Return environments in the form in which TorchRL steps them fastest."""
    from torchrl.envs import GymWrapper

    mode = gym.vector.AutoresetMode.SAME_STEP  # it takes no other
    made = [lambda: gym.make("CartPole-v1", disable_env_checker=True)] * NUM_ENVS
    envs = gym.vector.SyncVectorEnv(made, copy=False, autoreset_mode=mode)
    return GymWrapper(envs, categorical_action_encoding=True)


def torchrl(*, is_async: bool) -> Iterator[int]:
    """Collect in two processes of TorchRL, which keep the log probability, too."""
    os.environ["RL_LOGGING_LEVEL"] = "ERROR"  # of its processes, too
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
    made = 0
    try:
        for batch in collector:
            made += batch.numel()
            yield made
    finally:
        collector.shutdown()


def rllib_config(
    env: str = "CartPole-v1", *, workers: int, envs: int, steps: int, batch: int = 256, **env_config: Any
) -> Any:
    """Return a PPO with the hyperparameters of `benchmarks/training.py`."""
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
    made = 0
    try:
        while True:
            found = algorithm.env_runner_group.foreach_env_runner(
                lambda runner: runner.sample(num_timesteps=STEPS * NUM_ENVS), local_env_runner=False
            )
            made += sum(len(episode) for episodes in found for episode in episodes)
            yield made
    finally:
        algorithm.stop()


def rllib_ppo(*, workers: int) -> Iterator[int]:
    """Train on 8 CartPoles with RLlib, which 0 or more processes step."""
    algorithm = rllib_config(workers=workers, envs=NUM_ENVS // max(workers, 1), steps=32).build_algo()
    try:
        while True:
            yield int(algorithm.train()["num_env_steps_sampled_lifetime"])
    finally:
        algorithm.stop()


class FailsOnDemand(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole, which raises as soon as there is a file, and removes the file first.

    Args:
        flag: The file.
    """

    def __init__(self, flag: str, **rest: Any) -> None:
        super().__init__(gym.make("CartPole-v1", disable_env_checker=True, **rest))
        self._flag, self._num_steps = Path(flag), 0

    def step(self, action: Any) -> Any:
        """Make a step, or raise; every 50th looks."""
        self._num_steps += 1
        if self._num_steps % 50 == 0 and self._flag.exists():
            with contextlib.suppress(FileNotFoundError):  # another one was first
                self._flag.unlink()
                raise RuntimeError("this environment fails on demand")
        return super().step(action)


gym.register("FailsOnDemand-v0", entry_point=FailsOnDemand)
FAILS = f"{__name__}:FailsOnDemand-v0"


class Slow(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole whose step takes 1 ms of CPU."""

    def __init__(self, **rest: Any) -> None:
        super().__init__(gym.make("CartPole-v1", disable_env_checker=True, **rest))

    def step(self, action: Any) -> Any:
        """Make a step."""
        ends = time.thread_time() + 1e-3
        found = super().step(action)
        while time.thread_time() < ends:
            pass
        return found


gym.register("Slow-v0", entry_point=Slow)
SLOW = f"{__name__}:Slow-v0"

Side = Callable[[], Iterator[int]]
