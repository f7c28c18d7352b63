"""Spaces: those of one environment, as plain data too, so that a policy is made without its environment."""

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from trieye.exceptions import SerializationError


class Spaces(NamedTuple):
    """The spaces of one environment, wrappers included.

    Attributes:
        observation: A `Box`, `Discrete`, `MultiDiscrete` or `MultiBinary` of Gymnasium, or a `Dict` of such.
        action: Likewise, but no `Dict`.
    """

    observation: Any
    action: Any


def as_data(spaces: Spaces) -> dict[str, Any]:
    """Return spaces as dicts, numbers and arrays."""
    return {name: _data(space) for name, space in spaces._asdict().items()}


def from_data(data: dict[str, Any]) -> Spaces:
    """Return the spaces that `as_data` described.

    Raises:
        SerializationError: The data describe no spaces.
    """
    try:
        return Spaces(**{name: _space(held) for name, held in data.items()})
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise SerializationError(f"these are no spaces: {error}") from error


def _data(space: Any) -> dict[str, Any]:
    if isinstance(space, gym.spaces.Dict):
        return {"kind": "dict", "spaces": {key: _data(item) for key, item in space.spaces.items()}}
    if isinstance(space, gym.spaces.Discrete):
        return {"kind": "discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, gym.spaces.MultiDiscrete):
        return {"kind": "multi_discrete", "nvec": np.array(space.nvec), "start": np.array(space.start)}
    if isinstance(space, gym.spaces.MultiBinary):
        return {"kind": "multi_binary", "shape": list(space.shape)}
    return {"kind": "box", "low": np.array(space.low), "high": np.array(space.high)}


def _space(data: dict[str, Any]) -> Any:
    kind = data["kind"]
    if kind == "dict":
        # a plain dict would be sorted, and policies join the parts in their order
        return gym.spaces.Dict([(key, _space(item)) for key, item in data["spaces"].items()])
    if kind == "discrete":
        return gym.spaces.Discrete(data["n"], start=data["start"])
    if kind == "multi_discrete":
        return gym.spaces.MultiDiscrete(data["nvec"], dtype=data["nvec"].dtype.type, start=data["start"])
    if kind == "multi_binary":
        return gym.spaces.MultiBinary(data["shape"] if len(data["shape"]) > 1 else data["shape"][0])
    if kind == "box":
        return gym.spaces.Box(data["low"], data["high"], dtype=data["low"].dtype.type)
    raise SerializationError(f"there is no space of the kind {kind!r}")
