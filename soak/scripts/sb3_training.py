"""A training of stable-baselines3 on CartPole with the callback of trieye; records digests of its replay."""

import argparse
import hashlib
import json
from pathlib import Path

import gymnasium
import numpy as np
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize, sync_envs_normalization

from trieye.integrations.sb3 import RunCallback


def make_env(num: int) -> DummyVecEnv:
    """Return environments that record their episodes."""
    return DummyVecEnv([lambda: Monitor(gymnasium.make("CartPole-v1"))] * num)


def make_model(algorithm: str, seed: int) -> BaseAlgorithm:
    """Return a model for CartPole with the hyperparameters of RL Baselines3 Zoo."""
    if algorithm == "ppo":
        return PPO("MlpPolicy", VecNormalize(make_env(8)), n_steps=64, batch_size=256, gamma=0.98, seed=seed)
    return DQN(
        "MlpPolicy",
        make_env(1),
        learning_rate=2.3e-3,
        learning_starts=1000,
        batch_size=64,
        train_freq=256,
        gradient_steps=128,
        target_update_interval=10,
        exploration_fraction=0.16,
        exploration_final_eps=0.04,
        policy_kwargs={"net_arch": [256, 256]},
        seed=seed,
    )


class Digests(BaseCallback):
    """Records a digest of the replay at every checkpoint and at every resume."""

    def __init__(self, callback: RunCallback) -> None:
        super().__init__()
        self._run, self._recorded_step = callback.run, -1

    def _record(self, kind: str) -> None:
        buffer = getattr(self.model, "replay_buffer", None)
        num = 0 if buffer is None else buffer.size()
        rows = (
            b""
            if buffer is None
            else b"".join(
                getattr(buffer, name)[:num].tobytes()
                for name in ("observations", "next_observations", "actions", "rewards")
            )
        )
        digest = [kind, self.model.num_timesteps, num, hashlib.sha256(rows).hexdigest()]
        with Path("digests").open("a") as file:
            file.write(json.dumps(digest) + "\n")

    def _on_training_start(self) -> None:
        self._recorded_step = self._run.saved_step
        if self._recorded_step > 0:
            self._record("resumed")

    def _on_rollout_start(self) -> None:
        if self._run.saved_step > self._recorded_step:
            self._recorded_step = self._run.saved_step
            self._record("saved")

    def _on_step(self) -> bool:
        return True


def main() -> None:
    """Train, and write the number of timesteps and the mean return of the policy."""
    parser = argparse.ArgumentParser()
    parser.add_argument("algorithm", choices=["dqn", "ppo"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timesteps", type=int, default=50_000)
    options = parser.parse_args()
    model = make_model(options.algorithm, options.seed)
    callback = RunCallback(f"{options.algorithm}_{options.seed}", save_freq=1024)
    model.learn(options.timesteps, callback=[callback, Digests(callback)])
    env: VecEnv = make_env(1)
    if options.algorithm == "ppo":
        env = VecNormalize(env, training=False, norm_reward=False)
        training_env = model.get_env()
        assert training_env is not None
        sync_envs_normalization(training_env, env)
    mean_return, _ = evaluate_policy(model, env, n_eval_episodes=30)
    Path("final").write_text(json.dumps([model.num_timesteps, float(np.mean(mean_return))]))


if __name__ == "__main__":
    main()
