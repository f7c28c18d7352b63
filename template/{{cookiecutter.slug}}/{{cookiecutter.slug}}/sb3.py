"""The algorithms of stable-baselines3 as runs: PPO, DQN and others, chosen by `algorithm=DQN`.

Give it a `run_name`: Ctrl-C saves, and the same command goes on. Nothing else in this project is needed for it but
`conf/sb3.yaml` and `conf/env/`. Torch and stable-baselines3 are imported when they are needed, so `--help` is fast.
"""

import inspect
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import numpy as np
import trieye
from pydantic import Field

Which = Literal["best", "latest"] | int
OURS = {"self", "env", "seed", "_init_setup_model"}
UNUSED = ("env_steps", "time_s", "target", "background_evaluation", "profile_steps")


class Config(trieye.TrieyeConfig):
    """What this file can be told, besides what every run can be."""

    algorithm: Literal["A2C", "DDPG", "DQN", "PPO", "SAC", "TD3"] = Field(
        default="PPO", description="The class of stable_baselines3 that trains."
    )
    hyperparameters: dict[str, Any] = Field(
        default_factory=dict, description="What that class is made with, where its own defaults are not wanted."
    )
    env: trieye.EnvConfig = Field(description="The environment.")
    evaluator: str = Field(
        default="{{ cookiecutter.slug }}.sb3:evaluate",
        description="The function that `trieye evaluate` calls.",
    )

    def check(self) -> None:
        """Refuse what stable-baselines3 would refuse, before anything is started: the model is made once."""
        super().check()
        if self.loop.steps is None:
            raise trieye.ConfigurationError("loop.steps=null: stable-baselines3 has to know how many timesteps to make")
        for name in UNUSED:
            if getattr(self.loop, name) != type(self.loop).model_fields[name].default:
                raise trieye.ConfigurationError(f"loop.{name} is not for stable-baselines3, which makes loop.steps")
        known = [name for name in inspect.signature(class_of(self).__init__).parameters if name not in OURS]
        for name in self.hyperparameters.keys() - set(known):
            hint = f"{trieye.did_you_mean(name, known)} (those are: {', '.join(known)}; seed and env stand beside them)"
            raise trieye.ConfigurationError(f"hyperparameters.{name} is none of {self.algorithm}{hint}")
        env = self.env.model_copy(update={"vector": "sync"} if self.env.vector == "async" else {})
        with closing(envs_of(self.model_copy(update={"env": env}), evaluates=True)) as envs:
            try:
                model_of(self, envs)
            except Exception as error:  # whatever stable-baselines3 and torch raise
                given = f"algorithm={self.algorithm} hyperparameters={self.hyperparameters} env.id={self.env.id}"
                raise trieye.ConfigurationError(f"{given} do not fit: {' '.join(str(error).split())}") from error


def class_of(cfg: Config) -> Any:
    """Return the class that trains."""
    try:
        import stable_baselines3
    except ImportError as error:
        message = f"stable-baselines3 cannot be imported ({error}): pip install 'trieye[sb3]'"
        raise trieye.ConfigurationError(message) from error
    return getattr(stable_baselines3, cfg.algorithm)


def envs_of(cfg: Config, **how: Any) -> Any:
    """Return the environments, as conf/env/ says."""
    from trieye.integrations.sb3 import make_envs

    return make_envs(cfg.env, gamma=cfg.hyperparameters.get("gamma", 0.99), **how)


def model_of(cfg: Config, envs: Any) -> Any:
    """Return a new model."""
    lists = {name: tuple(held) for name, held in cfg.hyperparameters.items() if isinstance(held, list)}  # train_freq
    return class_of(cfg)(**{"policy": "MlpPolicy", **cfg.hyperparameters, **lists}, env=envs, seed=cfg.seed)


@trieye.main(config_path="../conf", config_name="sb3")
def train(cfg: Config) -> float:
    """Train with stable-baselines3 and return the best mean reward of the evaluations."""
    import torch
    from stable_baselines3.common.callbacks import EvalCallback
    from trieye.integrations.sb3 import RunCallback

    torch.set_num_threads(1)  # for networks this small, more threads cost more than they give
    with trieye.Run(cfg) as run, closing(envs_of(cfg)) as envs, closing(envs_of(cfg, evaluates=True)) as eval_envs:
        eval_envs.seed(1_000_000)  # far away from the seeds of the training
        steps = cfg.loop.steps or 0  # check() refuses null
        every = max(min(cfg.loop.evaluate_every_steps or steps, steps) // cfg.env.num, 1)
        evaluation = EvalCallback(eval_envs, n_eval_episodes=cfg.env.eval_episodes, eval_freq=every, verbose=0)
        callback = RunCallback(run, evaluation=evaluation, video=cfg.env.eval_video)
        model_of(cfg, envs).learn(steps, callback=callback)  # the timesteps that are left; Ctrl-C saves
        return run.best()


def load(run_dir: Path, which: Which = "best", device: str = "auto") -> Any:
    """Return the model of a run, with environments as for an evaluation: its best checkpoint, the latest, or a step."""
    cfg = Config.of_run(run_dir)
    hyperparameters = {**cfg.hyperparameters, "device": device}
    cfg = cfg.model_copy(update={"hyperparameters": hyperparameters})
    class_of(cfg)  # which says what to install
    from trieye.integrations.sb3 import load_model

    return load_model(lambda: model_of(cfg, envs_of(cfg, evaluates=True)), run_dir, which)


def evaluate(
    run_dir: Path,
    which: Which = "best",
    *,
    episodes: int = 20,
    first_seed: int = 2_000_000,  # other starts than those by which the best one was chosen
    video: Path | None = None,
    device: str = "cpu",
) -> dict[str, Any]:
    """Play whole episodes with the model of a run, and return what `trieye.evaluate` returns."""
    if video is not None:
        raise trieye.ConfigurationError("no video of a run of sb3; train with env.eval_video=true, which logs some")
    saved, model = trieye.load_checkpoint(run_dir, which), load(run_dir, which, device)
    from stable_baselines3.common.evaluation import evaluate_policy

    with closing(model.get_env()) as envs:
        envs.seed(first_seed)
        returns, lengths = evaluate_policy(model, envs, episodes, return_episode_rewards=True)
    return {
        "run": run_dir.resolve().name,
        "checkpoint": str(saved.path),
        "is_best": which == "best" and saved.objective is not None,
        "step": saved.step,
        "episodes": episodes,
        **{f"return_{name}": float(getattr(np, name)(returns)) for name in ("mean", "std", "min", "max")},
        "length_mean": float(np.mean(lengths)),
        "returns": returns,
    }


if __name__ == "__main__":
    train()
