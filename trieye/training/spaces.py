"""Spaces of one environment, also as plain data, to make a policy without an environment; observations as arrays."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import ConfigurationError, SerializationError

_PICTURE_AXES = 3  # environments, height and width


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


def columns_of(obs: Any) -> dict[str, NDArray[Any]]:
    """Return observations `[n, ...]` as `obs`, or a dict of them as `obs/<key>`.

    Images, uint8 with two axes or more, keep their dtype; other numbers become float32.
    """
    found = {f"obs/{key}": item for key, item in obs.items()} if isinstance(obs, Mapping) else {"obs": obs}
    return {name: as_column(np.asarray(item)) for name, item in found.items()}


def as_column(array: NDArray[Any]) -> NDArray[Any]:
    """Return observations `[n, ...]` in their stored form: images as bytes, anything else as float32."""
    is_image = array.dtype == np.uint8 and array.ndim >= _PICTURE_AXES
    return array if is_image else array.astype(np.float32, copy=False)


def nested(values: dict[str, Any]) -> Any:
    """Return the value under `obs`, or a dict of those under `obs/<key>`, `next_obs/<key>` and the like."""
    name = next(iter(values))
    return values[name] if "/" not in name else {key.partition("/")[2]: value for key, value in values.items()}


def as_batch(obs: Any, space: Any) -> tuple[Any, bool]:
    """Return observations `[n, ...]` of a space, and whether a single one was given, which becomes a batch of one.

    Raises:
        ConfigurationError: Keys or shapes do not match the space.
    """
    if isinstance(space, gym.spaces.Dict):
        if not isinstance(obs, Mapping) or obs.keys() != space.spaces.keys():
            keys = list(obs) if isinstance(obs, Mapping) else type(obs).__name__
            raise ConfigurationError(f"the observation needs the keys {', '.join(space.spaces)}, not {keys}")
        parts = {key: as_batch(obs[key], part) for key, part in space.spaces.items()}
        sizes = {(is_single, len(batch)) for batch, is_single in parts.values()}
        if len(sizes) > 1:
            raise ConfigurationError("the parts of the observation have different numbers of rows")
        return {key: batch for key, (batch, _) in parts.items()}, sizes.pop()[0]
    array, shape = np.asarray(obs), space.shape
    if array.shape == shape:
        return array[None], True
    if array.shape[1:] != shape or array.ndim != len(shape) + 1:
        several = ", ".join(map(str, ("n", *shape)))
        raise ConfigurationError(f"the observation has shape {list(array.shape)}, not {list(shape)} or [{several}]")
    return array, False
