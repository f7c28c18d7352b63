"""Networks for the algorithms: an encoder that fits the observation space, and MLPs."""

import math
from itertools import pairwise
from typing import Any

import torch
from torch import nn


class Encoder(nn.Module):
    """Normalize and encode observations: images by convolutions, others flattened; parts of a dict are concatenated.

    Args:
        space: A `Box`, or a `Dict` of boxes.
        normalizer: The policy's observation normalizer; unless it is `Identity`, byte images are not scaled by 1/255.

    Attributes:
        size: Length of an encoded vector.
    """

    def __init__(self, space: Any, normalizer: nn.Module) -> None:
        """Create one part per key, or a single part for a `Box`."""
        super().__init__()
        # a bound method, because as a submodule it would be saved once per encoder
        self.normalize = normalizer.forward
        normalized = not isinstance(normalizer, nn.Identity)
        self.keys = list(space.spaces) if hasattr(space, "spaces") else None
        spaces = [space] if self.keys is None else list(space.spaces.values())
        self.parts = nn.ModuleList(_encoder(part, normalized=normalized) for part in spaces)
        self.size = sum(part(torch.zeros(box.shape)).shape[0] for part, box in zip(self.parts, spaces, strict=True))

    def forward(self, obs: Any) -> torch.Tensor:
        """Return `[..., size]` for observations `[..., *shape]`."""
        obs = self.normalize(obs)
        if self.keys is None:
            [part] = self.parts
            features: torch.Tensor = part(obs)
            return features
        return torch.cat([part(obs[key]) for key, part in zip(self.keys, self.parts, strict=True)], dim=-1)


def _encoder(space: Any, *, normalized: bool) -> nn.Module:
    is_bytes, axes = space.dtype.kind == "u", len(space.shape)
    is_image = axes > 2 or (axes == 2 and is_bytes)
    scale = 1 / 255 if is_bytes and not normalized else 1.0
    return Convolutions(space.shape, scale=scale) if is_image else Flat(axes)


class Flat(nn.Module):
    """Flatten the last axes into one.

    Args:
        axes: Number of axes to flatten.
    """

    def __init__(self, axes: int) -> None:
        """Store the number of axes."""
        super().__init__()
        self.axes = axes

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Return `[..., size]`."""
        return obs if self.axes == 1 else obs.reshape(*obs.shape[: obs.ndim - self.axes], -1)


class Convolutions(nn.Module):
    """Convolutions of Mnih et al. (2015), or one 3x3 layer for images below 36 pixels (MinAtar, Young and Tian 2019).

    Sides below 3 pixels have a kernel of their length.

    For square images, the channel axis is the axis that differs in size; if all three are equal, as in MinAtar's
    Seaquest, it is the last. Otherwise it is the smaller of the first and the last axis.

    Args:
        shape: `[height, width]`, with channels first or last; stacked frames are the leading axis.
        scale: Factor applied to the pixels.
    """

    def __init__(self, shape: tuple[int, ...], *, scale: float) -> None:
        """Determine the channel axis and create layers that fit the image size."""
        super().__init__()
        self.axes, self.scale = len(shape), scale
        self.channels_last = len(shape) > 2 and _has_channels_last(*shape[-3:])
        height, width = shape[-3:-1] if self.channels_last else shape[-2:]
        channels = math.prod(shape) // (height * width)
        self.planes = (channels, height, width)
        if min(height, width) < 36:
            layers: list[nn.Module] = [nn.Conv2d(channels, 16, (min(3, height), min(3, width))), nn.ReLU()]
        else:
            layers = [nn.Conv2d(channels, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU()]
            layers += [nn.Conv2d(64, 64, 3), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Flatten())

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Return `[..., size]`."""
        batch_shape = obs.shape[: obs.ndim - self.axes]
        planes = obs.movedim(-1, -3) if self.channels_last else obs
        features: torch.Tensor = self.layers(planes.reshape(-1, *self.planes).float() * self.scale)
        return features.reshape(*batch_shape, -1)


class Critics(nn.Module):
    """Two Q-networks; updates use the lower value, which counters overestimation (Fujimoto et al. 2018).

    Args:
        space: Space of the observations.
        normalizer: The policy's observation normalizer.
        action_size: Number of action dimensions.
        hidden_sizes: Units per hidden layer.
    """

    def __init__(self, space: Any, normalizer: nn.Module, action_size: int, hidden_sizes: list[int]) -> None:
        """Create both networks."""
        super().__init__()
        self.encoder = Encoder(space, normalizer)
        sizes = [self.encoder.size + action_size, *hidden_sizes, 1]
        self.first, self.second = mlp(sizes), mlp(sizes)

    def forward(self, obs: Any, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both Q-values, `[n]` each, for actions `[n, action_size]`."""
        inputs = torch.cat((self.encoder(obs), action), dim=1)
        return self.first(inputs)[:, 0].float(), self.second(inputs)[:, 0].float()

    def first_value(self, obs: Any, action: torch.Tensor) -> torch.Tensor:
        """Return the Q-values of the first network, `[n]`."""
        value: torch.Tensor = self.first(torch.cat((self.encoder(obs), action), dim=1))[:, 0].float()
        return value


def _has_channels_last(first: int, middle: int, last: int) -> bool:
    if first == middle or middle == last:
        return first == middle
    return last < first


def mlp(sizes: list[int], activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return an MLP, `[..., sizes[0]]` to `[..., sizes[-1]]`, with the activation between layers."""
    layers = [layer for i, o in pairwise(sizes) for layer in (nn.Linear(i, o), activation())]
    return nn.Sequential(*layers[:-1])
