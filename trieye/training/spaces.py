"""Spaces of one environment, their plain-data form, and conversion of observations to arrays."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import ConfigurationError, SerializationError

Value = TypeVar("Value")

_KINDS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "discrete": (gym.spaces.Discrete, ("n", "start")),
    "multi_discrete": (gym.spaces.MultiDiscrete, ("nvec", "start")),
    "multi_binary": (gym.spaces.MultiBinary, ("n",)),
    "box": (gym.spaces.Box, ("low", "high")),
}
"""Class and arguments of each kind of space; the dtype is that of the first argument, if it is an array."""

_MIN_IMAGE_AXES = 3  # environments, height and width


class Spaces(NamedTuple):
    """The spaces of one environment, wrappers included.

    Attributes:
        observation: A Gymnasium `Box`, `Discrete`, `MultiDiscrete` or `MultiBinary`, or a `Dict` of these.
        action: One of the same spaces, except `Dict`.
    """

    observation: Any
    action: Any


def as_data(spaces: Spaces) -> dict[str, Any]:
    """Return spaces as plain data: dicts, numbers and arrays."""
    return {name: _data(space) for name, space in spaces._asdict().items()}


def from_data(data: dict[str, Any]) -> Spaces:
    """Return the spaces described by `as_data`.

    Raises:
        SerializationError: The data do not describe spaces.
    """
    try:
        return Spaces(**{name: _space(description) for name, description in data.items()})
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise SerializationError(f"the data do not describe the spaces of an environment: {error}") from error


def _data(space: Any) -> dict[str, Any]:
    if isinstance(space, gym.spaces.Dict):
        return {"kind": "dict", "spaces": {key: _data(item) for key, item in space.spaces.items()}}
    kind = next(kind for kind, (space_class, _) in _KINDS.items() if isinstance(space, space_class))
    return {"kind": kind, **{name: getattr(space, name) for name in _KINDS[kind][1]}}


def _space(data: dict[str, Any]) -> Any:
    if data["kind"] == "dict":
        # pairs: Gymnasium sorts a plain dict, and policies concatenate the parts in their original order
        return gym.spaces.Dict([(key, _space(item)) for key, item in data["spaces"].items()])
    space_class, names = _KINDS[data["kind"]]
    first_value = data[names[0]]
    dtype = {"dtype": first_value.dtype.type} if isinstance(first_value, np.ndarray) else {}
    return space_class(**{name: data[name] for name in names}, **dtype)


def columns_of(obs: Any) -> dict[str, NDArray[Any]]:
    """Return observations `[n, ...]` as the column `obs`, or the parts of a dict as `obs/<key>`.

    Images (uint8 with at least two axes) keep their dtype; other arrays become float32.
    """
    items = {f"obs/{key}": item for key, item in obs.items()} if isinstance(obs, Mapping) else {"obs": obs}
    return {name: as_column(np.asarray(item)) for name, item in items.items()}


def stacks_in(space: Any, frame_stack: int | None) -> dict[str, int]:
    """Return the number of frames of each observation column that `env.frame_stack` stacks; see `columns_of`."""
    is_dict = isinstance(space, gym.spaces.Dict)
    parts = {f"obs/{key}": part for key, part in space.spaces.items()} if is_dict else {"obs": space}
    return {name: part.shape[0] for name, part in parts.items() if part.shape and part.shape[0] == frame_stack}


def as_column(array: NDArray[Any]) -> NDArray[Any]:
    """Return observations `[n, ...]` in their stored dtype: images as uint8, all others as float32."""
    is_image = array.dtype == np.uint8 and array.ndim >= _MIN_IMAGE_AXES
    return array if is_image else array.astype(np.float32, copy=False)


def nested(values: dict[str, Value]) -> Value | dict[str, Value]:
    """Return the value of `obs`, or a dict of the values of `obs/<key>`; likewise for `next_obs` and other prefixes."""
    name = next(iter(values))
    return values[name] if "/" not in name else {key.partition("/")[2]: value for key, value in values.items()}


def as_batch(obs: Any, space: Any) -> tuple[Any, bool]:
    """Return observations as a batch `[n, ...]`, and whether `obs` was a single one, which becomes a batch of one.

    Raises:
        ConfigurationError: Keys or shapes do not match the space.
    """
    if isinstance(space, gym.spaces.Dict):
        if not isinstance(obs, Mapping) or obs.keys() != space.spaces.keys():
            keys = list(obs) if isinstance(obs, Mapping) else type(obs).__name__
            raise ConfigurationError(f"the observation has keys {keys}; expected {', '.join(space.spaces)}")
        parts = {key: as_batch(obs[key], part) for key, part in space.spaces.items()}
        sizes = {(is_single, len(batch)) for batch, is_single in parts.values()}
        if len(sizes) > 1:
            raise ConfigurationError("the parts of the observation have different numbers of rows")
        return {key: batch for key, (batch, _) in parts.items()}, sizes.pop()[0]
    array, shape = np.asarray(obs), space.shape
    if array.shape == shape:
        return array[None], True
    if array.shape[1:] != shape or array.ndim != len(shape) + 1:
        batch_shape_text = ", ".join(map(str, ("n", *shape)))
        raise ConfigurationError(
            f"the observation has shape {list(array.shape)}; expected {list(shape)} or [{batch_shape_text}]"
        )
    return array, False
