"""Evaluation: plays whole episodes without exploration, in separate environments, from fixed seeds."""

import os
import traceback
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

from trieye.config.env import EnvConfig
from trieye.exceptions import ConfigurationError
from trieye.process import watchdog
from trieye.process.progress import say
from trieye.process.stopping import StepInterrupted, StopRequest
from trieye.training.environments import make_env, seed_spaces
from trieye.training.policy import Context, EvaluationMode, Policy, chosen_actions, episode_metrics, map_state
from trieye.training.seeds import FIRST_SEED
from trieye.training.spaces import columns_of, nested

VideoT = TypeVar("VideoT")
_MAX_PARALLEL = 16


@dataclass(slots=True)
class Episode:
    """Result of one episode.

    Attributes:
        seed: Seed of its environment.
        total: Undiscounted return.
        length: Number of steps.
        metrics: Metrics returned by `Policy.on_episode`.
        frames: Rendered frames, uint8 `[h, w, 3]` each; empty unless requested.
        is_cut: Whether it was cut at `env.eval_max_steps` steps.
        fps: Frames per second, the `render_fps` of the environment.
    """

    seed: int
    total: float = 0.0
    length: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    frames: list[NDArray[np.uint8]] = field(default_factory=list)
    is_cut: bool = False
    fps: float = 30.0

    def encoded(self, encode: Callable[..., VideoT]) -> VideoT:
        """Return `encode(frames, fps=fps)`, with every second frame, or fourth and so on, if they exceed its limits.

        Args:
            encode: `run.log_video` or `run.video.video`, without their other arguments.

        Raises:
            ValueError: The sizes of the frames differ.
        """
        frames, fps = np.stack(self.frames), self.fps
        while len(frames) > 1:
            with suppress(ValueError):
                return encode(frames, fps=fps)
            frames, fps = frames[::2], fps / 2
        return encode(frames, fps=fps)


class Evaluation:
    """Environments for evaluations, created on first use.

    Args:
        config: Config of the training environments; evaluations use `config.for_evaluation()`.
        stop: The stop request of the run.

    Attributes:
        is_cancelled: Another thread sets it to cancel `play`.
    """

    def __init__(self, config: EnvConfig, stop: StopRequest | None = None) -> None:
        self._config = config.for_evaluation()
        self._stop = stop or StopRequest()
        self._envs: list[Any] = []
        self._has_reported_cut = False
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
        """Play whole episodes; `policy.act` gets a batch with the observations of all running episodes.

        Args:
            policy: The policy; it acts in evaluation mode, with a separate random generator.
            episodes: Number of episodes; their seeds count up from `first_seed`.
            env_steps: Argument of schedules.
            first_seed: Seed of the first episode.
            with_frames: Record frames of the first episode.

        Raises:
            ConfigurationError: The environment cannot be created or rendered.
            CancelledError: Another thread set `is_cancelled`.
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
                        self._play_batched([waiting.pop()], [env], policy, ctx, done, with_frames=True)
                while len(self._envs) < min(len(waiting), _MAX_PARALLEL):
                    self._envs.append(make_env(self._config))
                if waiting:
                    self._play_batched(waiting, self._envs, policy, ctx, done)
        except StepInterrupted:
            self._envs.clear()  # a call of one may be stuck, so that close() would block
            raise
        self._report_cut(done)
        return sorted(done, key=lambda episode: episode.seed)

    def _play_batched(
        self,
        waiting: list[Episode],
        envs: list[Any],
        policy: Policy,
        ctx: Context,
        done: list[Episode],
        *,
        with_frames: bool = False,
    ) -> None:
        """Play the waiting episodes; free environments take the next one."""
        active: list[tuple[Any, Episode]] = []
        calls = watchdog.calls()
        free_envs, obs, state = list(envs), dict[int, Any](), policy.initial_state(0)
        while waiting or active:
            num_started = 0
            while waiting and free_envs:
                env, episode = free_envs.pop(), waiting.pop()
                seed_spaces(env, episode.seed)
                with calls:
                    obs[id(env)] = env.reset(seed=episode.seed)[0]
                active.append((env, episode))
                num_started += 1
            if num_started:
                state = map_state(state, lambda *parts: torch.cat(parts), policy.initial_state(num_started))
            columns = columns_of(_stack([obs[id(env)] for env, _ in active]))
            self._check()
            with torch.inference_mode():
                batch_obs = nested({name: torch.from_numpy(item).to(policy.device) for name, item in columns.items()})
                act = policy.act(batch_obs, state, ctx)
                actions = chosen_actions(policy, act)
            is_running = np.ones(len(active), bool)
            for n, (env, episode) in enumerate(active):
                if with_frames:
                    episode.frames.append(_frame_of(env))
                with calls:
                    obs[id(env)], reward, terminated, truncated, info = env.step(actions[n])
                episode.total, episode.length = episode.total + float(reward), episode.length + 1
                episode.is_cut = not (terminated or truncated) and episode.length >= self._config.eval_max_steps
                if terminated or truncated or episode.is_cut:
                    is_running[n] = False
                    if not episode.is_cut:  # the metrics need the info of the last step
                        episode.metrics = episode_metrics(policy, info, "eval")
                    done.append(episode)
                    free_envs.append(env)
            state = map_state(act.state, partial(_select, is_running=torch.from_numpy(is_running)))
            active = [pair for pair, still_running in zip(active, is_running, strict=True) if still_running]

    def _check(self) -> None:
        if self.is_cancelled:
            raise CancelledError("the evaluation was cancelled")
        if self._stop.is_made:
            raise StepInterrupted("interrupted during an evaluation")

    def _report_cut(self, episodes: list[Episode]) -> None:
        num_cut = sum(episode.is_cut for episode in episodes)
        if num_cut and not self._has_reported_cut:
            self._has_reported_cut = True
            say(
                f"evaluation: {num_cut} of {len(episodes)} episodes of {self._config.id} were cut at "
                f"env.eval_max_steps={self._config.eval_max_steps} steps; their returns cover these steps only"
            )

    def close(self) -> None:
        """Close the environments."""
        while self._envs:
            with watchdog.calls():
                self._envs.pop().close()


def _frame_of(env: Any) -> NDArray[np.uint8]:
    try:
        picture: Any = env.render()
    except Exception as error:
        hint = ""
        if _was_raised_by_mujoco(error):
            backend = os.environ.get("MUJOCO_GL", "not set")
            hint = f"; without a display set MUJOCO_GL=egl, or MUJOCO_GL=osmesa without a GPU (now {backend})"
        elif not isinstance(error, gym.error.Error | ImportError | NotImplementedError):
            raise
        raise ConfigurationError(f"{env.spec.id if env.spec else env} cannot render a video: {error}{hint}") from error
    if not isinstance(picture, np.ndarray):
        raise ConfigurationError(f"{env} cannot render a video: render() returned {picture!r:.60}, not an array")
    return picture.copy()  # the environment may draw the next frame into the same array


def _was_raised_by_mujoco(error: BaseException) -> bool:
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any({"mujoco", "dm_control"} & set(name.split(".")) for name in modules)


def summary(episodes: list[Episode]) -> dict[str, float]:
    """Return the metrics of an evaluation: means, and the standard deviation of the returns."""
    returns = np.array([episode.total for episode in episodes])
    metrics = {"eval/return": float(returns.mean()), "eval/return_std": float(returns.std())}
    metrics["eval/length"] = float(np.mean([episode.length for episode in episodes]))
    for name in dict.fromkeys(name for episode in episodes for name in episode.metrics):
        values = [episode.metrics[name] for episode in episodes if name in episode.metrics]
        metrics[f"eval/{name}"] = float(np.mean(values))
    return metrics


def _stack(observations: list[Any]) -> Any:
    if isinstance(observations[0], dict):
        return {key: np.stack([obs[key] for obs in observations]) for key in observations[0]}
    return np.stack(observations)


def _select(item: torch.Tensor, is_running: torch.Tensor) -> torch.Tensor:
    return item[is_running.to(item.device)]
