"""Gymnasium wrappers that log episodes, and videos of selected episodes, to a run."""

import time
from collections.abc import Callable
from typing import Any, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from trieye.config.packages import explaining
from trieye.exceptions import ConfigurationError
from trieye.run.recorder import Recorder

with explaining(__name__):
    import gymnasium

MAX_FRAMES = 1000
"""Longest video; the rest of a longer episode is not recorded."""


def some_episodes(episode: int) -> bool:
    """Return whether an episode is a cube number up to 1000 (0, 1, 8, 27, ...) or a later multiple of 1000."""
    return round(episode ** (1 / 3)) ** 3 == episode if episode < 1000 else episode % 1000 == 0  # noqa: PLR2004


class LogEpisodes(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Logs `episode/return`, `episode/length` and `episode/seconds` at the last step of each episode.

    Steps count on from the checkpoint that the run has restored before the first `reset` or `step`.

    Args:
        env: The environment; videos require `render_mode="rgb_array"`.
        run: A `trieye.Run` or `RunClient`.
        video: Maps the number of an episode of this process to whether it is recorded, like `some_episodes`; None
            records none.
        prefix: Prefix of the metric names.

    Raises:
        ConfigurationError: `video` is set and the environment does not render arrays.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        run: Recorder,
        *,
        video: Callable[[int], bool] | None = None,
        prefix: str = "episode",
    ) -> None:
        super().__init__(env)
        if video is not None and env.render_mode != "rgb_array":
            raise ConfigurationError(
                f"LogEpisodes(video=...): this environment has render_mode={env.render_mode!r}; make it with "
                "render_mode='rgb_array'"
            )
        self._run, self._video, self._prefix = run, video, prefix
        self._steps: int | None = None
        self._episode = 0
        self._begin()

    def _begin(self) -> None:
        self._return, self._length, self._began = 0.0, 0, time.perf_counter()
        self._frames: list[Any] | None = [] if self._video is not None and self._video(self._episode) else None

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode; an unfinished episode is not logged."""
        obs_and_info = super().reset(**options)
        self._steps = _steps_so_far(self._steps, self._run)
        self._begin()
        self._capture_frame()
        return obs_and_info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take a step, and log the episode if it ends."""
        obs, reward, terminated, truncated, info = super().step(action)
        self._steps = _steps_so_far(self._steps, self._run) + 1
        self._return += float(reward)
        self._length += 1
        self._capture_frame()
        if terminated or truncated:
            self._log()
        return obs, reward, terminated, truncated, info

    def _capture_frame(self) -> None:
        if self._frames is not None and len(self._frames) < MAX_FRAMES:
            self._frames.append(np.array(self.env.render()))  # a copy: the next frame may be drawn into the same array

    def _log(self) -> None:
        seconds = time.perf_counter() - self._began
        stats = {"return": self._return, "length": self._length, "seconds": seconds}
        self._run.log({f"{self._prefix}/{name}": value for name, value in stats.items()}, step=self._steps)
        if self._frames:
            fps = float(self.env.metadata.get("render_fps", 30))
            self._run.log_video(f"{self._prefix}/video", np.stack(self._frames), self._steps, fps=fps)
        self._frames = None
        self._episode += 1


class LogVectorEpisodes(gymnasium.vector.VectorWrapper):
    """Logs the episodes of a vector environment like `LogEpisodes`, without videos.

    A step counts once for each environment; automatic resets do not count as steps.

    Args:
        env: The vector environment.
        run: A `trieye.Run` or `RunClient`.
        prefix: Prefix of the metric names.
    """

    def __init__(
        self, env: gymnasium.vector.VectorEnv[Any, Any, Any], run: Recorder, *, prefix: str = "episode"
    ) -> None:
        super().__init__(env)
        self._run, self._prefix = run, prefix
        self._steps: int | None = None
        mode = self.metadata.get("autoreset_mode", gymnasium.vector.AutoresetMode.NEXT_STEP)
        self._resets_next = mode == gymnasium.vector.AutoresetMode.NEXT_STEP
        self._returns, self._lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, np.int64)
        self._began, self._is_over = np.zeros(self.num_envs), np.zeros(self.num_envs, np.bool_)

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode in each environment, or in those of a `reset_mask`; unfinished episodes are not logged."""
        starting = (options.get("options") or {}).get("reset_mask", np.ones(self.num_envs, np.bool_))
        obs_and_info = super().reset(**options)  # may remove the mask from the options
        self._steps = _steps_so_far(self._steps, self._run)
        self._returns[starting], self._lengths[starting] = 0.0, 0
        self._began[starting], self._is_over[starting] = time.perf_counter(), False
        return obs_and_info

    def step(self, actions: Any) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Take a step in each environment, and log the episodes that end."""
        obs, rewards, terminated, truncated, info = super().step(actions)
        is_step = ~self._is_over  # in the other environments, this call was the automatic reset
        self._returns[is_step] += rewards[is_step]
        self._lengths[is_step] += 1
        self._steps = _steps_so_far(self._steps, self._run) + int(is_step.sum())
        is_done = (terminated | truncated) & is_step
        now = time.perf_counter()
        for index in np.flatnonzero(is_done):
            seconds = now - self._began[index]
            stats = {"return": self._returns[index], "length": self._lengths[index], "seconds": seconds}
            self._run.log({f"{self._prefix}/{name}": float(value) for name, value in stats.items()}, step=self._steps)
        self._returns[is_done], self._lengths[is_done], self._began[is_done] = 0.0, 0, now
        self._is_over = is_done if self._resets_next else np.zeros_like(is_done)
        return obs, rewards, terminated, truncated, info


def _steps_so_far(steps: int | None, run: Recorder) -> int:
    """Return the step of a wrapper; None: the step of the checkpoint that its run has restored in the meantime."""
    return max(getattr(run, "saved_step", 0), 0) if steps is None else steps
