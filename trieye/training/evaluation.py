"""Evaluation: whole episodes without exploring, in environments of their own, from the same starts each time."""

import os
import traceback
from concurrent.futures import CancelledError
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

from trieye.config.env import EnvConfig
from trieye.exceptions import ConfigurationError
from trieye.process import watchdog
from trieye.process.progress import say
from trieye.process.stopping import StepInterrupted, StopRequest
from trieye.run.media import number_of
from trieye.training.environments import make_env, seed_spaces
from trieye.training.policy import Context, EvaluationMode, Policy, chosen_actions, mapped
from trieye.training.seeds import FIRST_SEED
from trieye.training.spaces import columns_of, nested

_MAX_AT_ONCE = 16


@dataclass(slots=True)
class Episode:
    """How an episode went.

    Attributes:
        seed: Of its environment.
        total: The undiscounted return.
        length: Steps.
        metrics: What `Policy.on_episode` returned.
        frames: uint8 `[h, w, 3]` each, where pictures were asked for.
        is_cut: Whether it was longer than `env.eval_max_steps`.
        fps: Frames per second, `render_fps` of the environment.
    """

    seed: int
    total: float = 0.0
    length: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    frames: list[NDArray[np.uint8]] = field(default_factory=list)
    is_cut: bool = False
    fps: float = 30.0


class Evaluation:
    """Environments for evaluations, made when the first one is wanted.

    Args:
        config: Of the environments; their rewards are those of the environment, neither clipped nor scaled.
        stop: Whether a stop was requested.

    Attributes:
        is_cancelled: Set by another thread, it ends what is played.
    """

    def __init__(self, config: EnvConfig, stop: StopRequest | None = None) -> None:
        single = {"num": 1, "vector": "sync", "clip_rewards": False, "normalize_rewards": False}
        self._config = config.model_copy(update=single)
        self._stop = stop or StopRequest()
        self._envs: list[Any] = []
        self._has_told_cut = False
        self.is_cancelled = False

    def play(
        self,
        policy: Policy,
        episodes: int,
        *,
        env_steps: int = 0,
        first_seed: int = FIRST_SEED,
        with_frames: bool = False,
    ) -> list[Episode]:
        """Play whole episodes; those under way at the same time are given to the policy at once.

        Args:
            policy: What acts, in its evaluation mode and with a generator of its own.
            episodes: How many, from the starts that the seeds from `first_seed` on make.
            env_steps: For schedules.
            first_seed: Seed of the first one.
            with_frames: Record the pictures of the first one.

        Raises:
            ConfigurationError: The environment cannot be made, or makes no pictures.
            CancelledError: Another thread has set `is_cancelled`.
            StepInterrupted: A stop was requested.
        """
        waiting = [Episode(seed) for seed in reversed(range(first_seed, first_seed + episodes))]
        done: list[Episode] = []
        generator = torch.Generator(policy.device).manual_seed(first_seed)
        ctx = Context(explore=False, env_steps=env_steps, generator=generator)
        try:
            with EvaluationMode(policy):
                if with_frames:
                    with closing(make_env(self._config, render_mode="rgb_array")) as env:
                        waiting[-1].fps = float(env.metadata.get("render_fps") or waiting[-1].fps)
                        self._play_some([waiting.pop()], [env], policy, ctx, done)
                while len(self._envs) < min(len(waiting), _MAX_AT_ONCE):
                    self._envs.append(make_env(self._config))
                if waiting:
                    self._play_some(waiting, self._envs, policy, ctx, done)
        except StepInterrupted:
            self._envs.clear()  # one may be in the middle of a call, and may never close
            raise
        self._tell_cut(done)
        return sorted(done, key=lambda episode: episode.seed)

    def _play_some(
        self, waiting: list[Episode], envs: list[Any], policy: Policy, ctx: Context, done: list[Episode]
    ) -> None:
        """Play the episodes that wait; each environment takes the next one when it is free."""
        active: list[tuple[Any, Episode]] = []
        calls = watchdog.calls()
        free, obs, state = list(envs), dict[int, Any](), policy.initial_state(0)
        while waiting or active:
            begun = 0
            while waiting and free:
                env, episode = free.pop(), waiting.pop()
                seed_spaces(env, episode.seed)
                with calls:
                    obs[id(env)] = env.reset(seed=episode.seed)[0]
                active.append((env, episode))
                begun += 1
            state = mapped(state, _joined, policy.initial_state(begun)) if begun else state
            columns = columns_of(_stacked([obs[id(env)] for env, _ in active]))
            self._check()
            with torch.inference_mode():
                seen = nested({name: torch.from_numpy(item).to(policy.device) for name, item in columns.items()})
                act = policy.act(seen, state, ctx)
                actions = chosen_actions(policy, act)
            going = np.ones(len(active), bool)
            for n, (env, episode) in enumerate(active):
                if env.render_mode is not None:
                    episode.frames.append(_picture(env))
                with calls:
                    obs[id(env)], reward, terminated, truncated, info = env.step(actions[n])
                episode.total, episode.length = episode.total + float(reward), episode.length + 1
                episode.is_cut = not (terminated or truncated) and episode.length >= self._config.eval_max_steps
                if terminated or truncated or episode.is_cut:
                    going[n] = False
                    own = {} if episode.is_cut else policy.on_episode(info)  # it reads the info of a last step
                    episode.metrics = {name: number_of(f"eval/{name}", value) for name, value in own.items()}
                    done.append(episode)
                    free.append(env)
            state = mapped(act.state, partial(_kept, going=torch.from_numpy(going)))
            active = [pair for pair, goes in zip(active, going, strict=True) if goes]

    def _check(self) -> None:
        if self.is_cancelled:
            raise CancelledError("the evaluation was cancelled")
        if self._stop.is_made:
            raise StepInterrupted("an evaluation was under way")

    def _tell_cut(self, episodes: list[Episode]) -> None:
        num_cut = sum(episode.is_cut for episode in episodes)
        if num_cut and not self._has_told_cut:
            self._has_told_cut = True
            say(
                f"evaluation: {num_cut} of {len(episodes)} episodes of {self._config.id} did not end within "
                f"env.eval_max_steps={self._config.eval_max_steps} steps and were cut; their returns count up to there"
            )

    def close(self) -> None:
        """Close the environments."""
        while self._envs:
            with watchdog.calls():
                self._envs.pop().close()


def _picture(env: Any) -> NDArray[np.uint8]:
    try:
        picture: Any = env.render()
    except (gym.error.Error, ImportError, NotImplementedError) as error:
        raise ConfigurationError(f"{env} makes no picture for a video: {error}") from error
    except Exception as error:
        if not _is_of_mujoco(error):
            raise
        backend = os.environ.get("MUJOCO_GL", "not set")
        raise ConfigurationError(
            f"{env} makes no picture for a video: {error}; without a display set the environment variable "
            f"MUJOCO_GL=egl, or MUJOCO_GL=osmesa without a GPU (it is {backend})"
        ) from error
    if not isinstance(picture, np.ndarray):
        raise ConfigurationError(f"{env} makes no picture for a video: its render() returned {picture!r:.60}")
    return picture


def _is_of_mujoco(error: BaseException) -> bool:
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any({"mujoco", "dm_control"} & set(name.split(".")) for name in modules)


def summary(episodes: list[Episode]) -> dict[str, float]:
    """Return the metrics of an evaluation."""
    returns = np.array([episode.total for episode in episodes])
    found = {"eval/return": float(returns.mean()), "eval/return_std": float(returns.std())}
    found["eval/length"] = float(np.mean([episode.length for episode in episodes]))
    for name in dict.fromkeys(name for episode in episodes for name in episode.metrics):
        values = [episode.metrics[name] for episode in episodes if name in episode.metrics]
        found[f"eval/{name}"] = float(np.mean(values))
    return found


def _stacked(observations: list[Any]) -> Any:
    if isinstance(observations[0], dict):
        return {key: np.stack([obs[key] for obs in observations]) for key in observations[0]}
    return np.stack(observations)


def _joined(item: torch.Tensor, fresh: torch.Tensor) -> torch.Tensor:
    return torch.cat((item, fresh))


def _kept(item: torch.Tensor, going: torch.Tensor) -> torch.Tensor:
    return item[going.to(item.device)]
