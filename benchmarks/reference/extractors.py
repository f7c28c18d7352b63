"""Networks of stable-baselines3 that equal the encoders of the project template."""

import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn


class MinAtarFeatures(BaseFeaturesExtractor):
    """One 3x3 convolution with 16 channels and one hidden layer, as in the template's presets for MinAtar.

    Args:
        observation_space: Images `[height, width, channels]`.
        features_dim: Units of the hidden layer.
    """

    def __init__(self, observation_space: spaces.Box, features_dim: int = 128) -> None:
        super().__init__(observation_space, features_dim)
        height, width, channels = observation_space.shape
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 16, 3), nn.ReLU(), nn.Flatten(),
            nn.Linear(16 * (height - 2) * (width - 2), features_dim), nn.ReLU(),
        )  # fmt: skip

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Return features `[n, features_dim]` of images `[n, height, width, channels]`."""
        features: torch.Tensor = self.layers(obs.permute(0, 3, 1, 2))
        return features
