"""An environment that renders without a rendering library."""

import gymnasium
import numpy as np


class Square(gymnasium.Env):
    """Draws a square that moves, without a library for it; an episode has ten steps."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    render_mode = "rgb_array"

    def __init__(self):
        self.position = 0
        self._picture = np.zeros((16, 16, 3), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.position += 1
        return np.zeros(1, np.float32), 1.0, self.position == 10, False, {}

    def render(self):
        self._picture[:] = 0  # the same array each time
        self._picture[self.position, self.position] = 255
        return self._picture
