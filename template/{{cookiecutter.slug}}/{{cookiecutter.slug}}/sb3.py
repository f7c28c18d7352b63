"""Train an algorithm of stable-baselines3 as a run; select it with `algorithm=DQN`.

With a `run_name`, Ctrl-C saves a checkpoint and the same command resumes. Of this project, the file needs only
`conf/sb3.yaml` and `conf/env/`. Functions import torch and stable-baselines3 on use, so `--help` is fast.
"""

import inspect
import pkgutil
import re
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import numpy as np
import trieye
from pydantic import Field

Which = Literal["best", "latest"] | int
RESERVED = {"self", "env", "seed", "_init_setup_model"}


class Config(trieye.TrieyeConfig):
    """Config of `python -m {{ cookiecutter.slug }}.sb3`."""

    algorithm: Literal["A2C", "DDPG", "DQN", "PPO", "SAC", "TD3"] = Field(
        default="PPO", description="Algorithm: a class of stable_baselines3."
    )
    hyperparameters: dict[str, Any] = Field(
        default_factory=dict,
        description="Arguments of that class that differ from its defaults; {start: 3e-4, end: 0} = linear schedule, "
        "action_noise=0.1 = standard deviation of Gaussian noise, module:Class = a class, such as of a network.",
    )
    env: trieye.EnvConfig = Field(description="Environment.")
    evaluator: str = Field(
        default="{{ cookiecutter.slug }}.sb3:evaluate",
        description="Function that `trieye evaluate` calls.",
    )

    def check(self) -> None:
        """Create the model once, so that invalid hyperparameters are reported before a run is created."""
        super().check()
        self.loop.check_own_loop("stable-baselines3")
        arguments = [name for name in inspect.signature(class_of(self).__init__).parameters if name not in RESERVED]
        for name in self.hyperparameters.keys() - set(arguments):
            hint = f"{trieye.did_you_mean(name, arguments)} (arguments: {', '.join(arguments)}; seed and env are keys)"
            raise trieye.ConfigurationError(f"hyperparameters.{name} is not an argument of {self.algorithm}{hint}")
        env = self.env.model_copy(update={"vector": "sync"} if self.env.vector == "async" else {})
        with closing(envs_of(self.model_copy(update={"env": env}), evaluates=True)) as envs:
            try:
                model_of(self, envs)
            except Exception as error:  # stable-baselines3 and torch raise various types
                values = f"algorithm={self.algorithm} hyperparameters={self.hyperparameters} env.id={self.env.id}"
                raise trieye.ConfigurationError(f"{values}: {' '.join(str(error).split())}") from error


def class_of(cfg: Config) -> Any:
    """Return the class of the algorithm."""
    try:
        import stable_baselines3
    except ImportError as error:
        message = f"stable-baselines3 cannot be imported ({error}): pip install 'trieye[sb3]'"
        raise trieye.ConfigurationError(message) from error
    return getattr(stable_baselines3, cfg.algorithm)


def envs_of(cfg: Config, **options: Any) -> Any:
    """Return vectorized environments that the config describes."""
    from trieye.integrations.sb3 import make_envs

    return make_envs(cfg.env, gamma=cfg.hyperparameters.get("gamma", 0.99), **options)


def model_of(cfg: Config, envs: Any) -> Any:
    """Return a new model."""
    arguments = {name: argument(value) for name, value in cfg.hyperparameters.items()}
    if isinstance(frequency := arguments.get("train_freq"), list):
        arguments["train_freq"] = tuple(frequency)  # stable-baselines3 accepts no list here, and no tuple as net_arch
    if isinstance(scale := arguments.get("action_noise"), int | float):
        from stable_baselines3.common.noise import NormalActionNoise

        zeros = np.zeros(envs.action_space.shape)
        arguments["action_noise"] = NormalActionNoise(zeros, zeros + scale)
    return class_of(cfg)(**{"policy": "MlpPolicy", **arguments}, env=envs, seed=cfg.seed)


def argument(value: Any) -> Any:
    """Convert a hyperparameter: `{start, end}` to a schedule, `module:Class` to the class."""
    if isinstance(value, dict) and value.keys() == {"start", "end"}:
        return lambda remaining: value["end"] + (value["start"] - value["end"]) * remaining  # from 1 to 0
    if isinstance(value, dict):
        return {name: argument(part) for name, part in value.items()}
    if isinstance(value, str) and re.fullmatch(r"[\w.]+:[A-Za-z_]\w*", value):  # not a device such as cuda:0
        return pkgutil.resolve_name(value)
    return value


@trieye.main(config_path="../conf", config_name="sb3")
def train(cfg: Config) -> float:
    """Train with stable-baselines3 and return the best mean reward of the evaluations."""
    import torch
    from trieye.integrations.sb3 import RunCallback, SameEpisodes

    torch.set_num_threads(1)  # more threads slow down networks this small
    with trieye.Run(cfg) as run, closing(envs_of(cfg)) as envs, closing(envs_of(cfg, evaluates=True)) as eval_envs:
        steps = cfg.loop.steps or 0  # check() rejects null
        every = max(min(cfg.loop.evaluate_every_steps or steps, steps) // cfg.env.num, 1)
        evaluation = SameEpisodes(eval_envs, n_eval_episodes=cfg.env.eval_episodes, eval_freq=every, verbose=0)
        callback = RunCallback(run, evaluation=evaluation, video=cfg.env.eval_video)
        model_of(cfg, envs).learn(steps, callback=callback)  # makes the remaining timesteps; Ctrl-C saves
        return run.best()


def load(run_dir: Path, which: Which = "best", device: str = "auto") -> Any:
    """Return the model of a run with evaluation environments, from the best checkpoint, the latest or a step."""
    cfg = Config.of_run(run_dir)
    hyperparameters = {**cfg.hyperparameters, "device": device}
    cfg = cfg.model_copy(update={"hyperparameters": hyperparameters})
    class_of(cfg)  # an error names the package to install
    from trieye.integrations.sb3 import load_model

    return load_model(lambda: model_of(cfg, envs_of(cfg, evaluates=True)), run_dir, which)


def evaluate(
    run_dir: Path,
    which: Which = "best",
    *,
    episodes: int = 20,
    first_seed: int = 2_000_000,  # not the seeds that selected the best checkpoint
    video: Path | None = None,
    device: str = "cpu",
) -> dict[str, Any]:
    """Play full episodes with the model of a run and return a report as `trieye.evaluate` does."""
    if video is not None:
        raise trieye.ConfigurationError("sb3 runs do not support video; train with env.eval_video=true to log it")
    checkpoint, model = trieye.load_checkpoint(run_dir, which), load(run_dir, which, device)
    from stable_baselines3.common.evaluation import evaluate_policy
    from trieye.integrations.sb3 import start_episodes

    with closing(model.get_env()) as envs:
        start_episodes(envs, episodes, first_seed)
        returns, lengths = evaluate_policy(model, envs, episodes, return_episode_rewards=True)
    return {
        "run": run_dir.resolve().name,
        "checkpoint": str(checkpoint.path),
        "is_best": which == "best" and checkpoint.objective is not None,
        "step": checkpoint.step,
        "episodes": episodes,
        **{f"return_{name}": float(getattr(np, name)(returns)) for name in ("mean", "std", "min", "max")},
        "length_mean": float(np.mean(lengths)),
        "returns": returns,
    }


if __name__ == "__main__":
    train()
