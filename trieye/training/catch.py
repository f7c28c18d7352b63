"""Catch: a small pixel game in NumPy, `env.id=trieye.training.catch:Catch-v0`."""

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

_SIDE = 10
_PIXELS = 16
_MOVES = (-1, 0, 1)


class Catch(gym.Env[NDArray[np.float32], np.int64]):
    """A ball falls from the top row; move the paddle in the bottom row to where it lands.

    Follows `bsuite/environments/catch.py`, on a square board. An episode has 9 steps; the reward of the last step is 1
    or -1, of the others 0. One observation is the full state, so frames need not be stacked.

    Observations are float32 `[1, 10, 10]` with values 0 or 1: the layout `[channels, height, width]` of torch's
    convolutions and of stacked Atari frames, and a range that needs no scaling. Actions are 0 = left, 1 = stay,
    2 = right.

    Args:
        render_mode: `rgb_array` for frames of 160x160 pixels.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 8}  # noqa: RUF012 - Gymnasium declares it so

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(0.0, 1.0, (1, _SIDE, _SIDE), np.float32)
        self.action_space = gym.spaces.Discrete(len(_MOVES))
        self._row = self._column = 0
        self._paddle = _SIDE // 2

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Drop a ball in a random column; the paddle starts in the middle."""
        super().reset(seed=seed, options=options)
        self._row, self._column = 0, int(self.np_random.integers(_SIDE))
        self._paddle = _SIDE // 2
        return self._board(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Move the paddle, then drop the ball by one row."""
        self._paddle = min(max(self._paddle + _MOVES[action], 0), _SIDE - 1)
        self._row += 1
        has_landed = self._row == _SIDE - 1
        reward = (1.0 if self._paddle == self._column else -1.0) if has_landed else 0.0
        return self._board(), reward, has_landed, False, {}

    def render(self) -> NDArray[np.uint8]:
        """Return the board in white on black, uint8 `[160, 160, 3]`."""
        pixels = np.kron(self._board()[0], np.ones((_PIXELS, _PIXELS)))
        return np.repeat((pixels * 255).astype(np.uint8)[..., None], 3, axis=2)

    def _board(self) -> NDArray[np.float32]:
        board = np.zeros((1, _SIDE, _SIDE), np.float32)
        board[0, self._row, self._column] = board[0, _SIDE - 1, self._paddle] = 1.0
        return board


gym.register("Catch-v0", f"{__name__}:{Catch.__name__}")
