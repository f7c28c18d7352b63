"""Imports pickled replay buffers of stable-baselines3 and Minari datasets."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from trieye.config.packages import load
from trieye.exceptions import ConfigurationError, SerializationError, UntrustedPickleError
from trieye.replay.buffer import ReplayBuffer
from trieye.replay.exchange.files import separate_episodes
from trieye.replay.rows.schema import PREFIX

_NUMPY_MODULES = ("numpy._core.multiarray", "numpy.core.multiarray", "numpy._core.numeric", "numpy.core.numeric")
_NUMPY_NAMES = ("_reconstruct", "scalar", "_frombuffer")
_PICKLE_ERRORS = (pickle.UnpicklingError, EOFError, ValueError, TypeError, LookupError, AttributeError, MemoryError)


def import_minari(buffer: ReplayBuffer, dataset: Any, *, download: bool = False) -> int:
    """Add the steps of a Minari dataset to a buffer, episode by episode.

    The keys are obs, next_obs, action, reward, terminated and truncated. Dictionary observations replace obs and
    next_obs by their own keys and those keys prefixed with `next_`. Keys of nested dictionaries are joined with a dot.

    Args:
        buffer: The buffer that receives the steps.
        dataset: A `minari.MinariDataset`, or a dataset id such as `D4RL/door/human-v2`.
        download: Download the dataset if it is not on this machine.

    Returns:
        The number of rows added.

    Raises:
        MissingPackageError: minari is not installed.
        ConfigurationError: The dataset cannot be loaded, or its steps do not fit the buffer.
    """
    if isinstance(dataset, str):
        minari = load("minari", f"reading the dataset {dataset!r}")
        try:
            dataset = minari.load_dataset(dataset, download=download)
        except Exception as error:  # a remote call: each storage service raises the errors of its own client
            raise ConfigurationError(
                f"the Minari dataset {dataset!r} cannot be loaded ({error!r}); expected an id such as "
                "D4RL/door/human-v2, of a dataset on this machine or on the server of Minari"
            ) from error
    count = 0
    with separate_episodes(buffer):
        for episode_index, episode in enumerate(dataset.iterate_episodes()):
            rows = _minari_rows(episode)
            count += len(buffer.extend(rows, np.full(len(rows["reward"]), episode_index)))
    return count


def _minari_rows(episode: Any) -> dict[str, NDArray[Any]]:
    observations = _named(episode.observations, "obs")
    rows = {key: array[:-1] for key, array in observations.items()}
    rows |= {PREFIX + key: array[1:] for key, array in observations.items()}
    rows |= _named(episode.actions, "action")
    flags = {"terminated": episode.terminations, "truncated": episode.truncations}
    rows["reward"] = np.asarray(episode.rewards)
    return {**rows, **{key: np.asarray(values, np.bool_) for key, values in flags.items()}}


def _named(values: Any, name: str) -> dict[str, NDArray[Any]]:
    """Return the arrays in nested dictionaries and tuples by joined key; a single array is called `name`."""
    if isinstance(values, Mapping):
        items = {str(key): value for key, value in values.items()}
    elif isinstance(values, tuple):
        items = {f"{name}.{index}": value for index, value in enumerate(values)}
    else:
        return {name: np.asarray(values)}
    return {inner: array for key, value in items.items() for inner, array in _named(value, key).items()}


def import_sb3(buffer: ReplayBuffer, path: str | Path, *, allow_pickle: bool = False) -> int:
    """Add the rows of a pickled `ReplayBuffer` or `DictReplayBuffer` of stable-baselines3 2.x to a buffer.

    The keys are obs, next_obs, action, reward, terminated and truncated. Dictionary observations replace obs and
    next_obs by their own keys and those keys prefixed with `next_`. Actions of a bounded `Box` space, which
    stable-baselines3 stores scaled to [-1, 1], are scaled back to its bounds. stable-baselines3 need not be installed.

    Args:
        buffer: The buffer that receives the rows.
        path: The file.
        allow_pickle: Must be True, since the file is a pickle. Only NumPy arrays are unpickled, all other objects
            become empty placeholders; still, load files from trusted sources only.

    Returns:
        The number of rows added.

    Raises:
        UntrustedPickleError: `allow_pickle` is False.
        FileNotFoundError: The file does not exist.
        SerializationError: The file contains something else.
        ConfigurationError: The rows do not fit the buffer.
    """
    if not allow_pickle:
        raise UntrustedPickleError(
            f"{path} is a pickle file of stable-baselines3; if you trust its source, pass allow_pickle=True"
        )
    with Path(path).open("rb") as file:
        try:
            attributes = vars(_Unpickler(file).load())
            steps, num_envs = _sb3_steps(attributes), int(attributes["n_envs"])
            rows = _sb3_rows(attributes, steps)
        except (*_PICKLE_ERRORS, RecursionError) as error:
            raise SerializationError(f"{path} contains no replay buffer of stable-baselines3 ({error!r})") from error
    with separate_episodes(buffer):
        return len(buffer.extend(rows, np.tile(np.arange(num_envs), len(steps))))


def _sb3_steps(attributes: dict[str, Any]) -> NDArray[np.int64]:
    """Return the indices of the steps, oldest first."""
    size, position = int(attributes["buffer_size"]), int(attributes["pos"])
    steps = (np.arange(size) + position) % size if attributes["full"] else np.arange(position)
    if attributes.get("optimize_memory_usage"):
        # the next observation is stored at the following index, so the newest one overwrote the oldest observation
        steps = steps[1:] if attributes["full"] else steps
    return steps


def _sb3_rows(attributes: dict[str, Any], steps: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    observations, following = attributes["observations"], attributes.get("next_observations")
    if not isinstance(observations, dict):
        observations, following = {"obs": observations}, None if following is None else {"obs": following}
    rows = {key: _flat(array, steps) for key, array in observations.items()}
    for key, array in observations.items():
        next_values = _flat(array, (steps + 1) % len(array)) if following is None else _flat(following[key], steps)
        rows[PREFIX + key] = next_values
    done, timeout = (_flat(attributes[name], steps).astype(np.bool_) for name in ("dones", "timeouts"))
    rows["action"], rows["reward"] = _sb3_actions(attributes, steps), _flat(attributes["rewards"], steps)
    return {**rows, "terminated": done & ~timeout, "truncated": timeout}


def _sb3_actions(attributes: dict[str, Any], steps: NDArray[np.int64]) -> NDArray[Any]:
    """Return the environment's actions: stable-baselines3 scales those of a bounded `Box` to [-1, 1]."""
    actions, space = _flat(attributes["actions"], steps), vars(attributes["action_space"])
    if "low" not in space or not (np.isfinite(space["low"]).all() and np.isfinite(space["high"]).all()):
        return actions
    low, high = space["low"].reshape(-1), space["high"].reshape(-1)
    env_actions: NDArray[Any] = np.clip(low + 0.5 * (actions + 1) * (high - low), low, high).astype(actions.dtype)
    return env_actions


def _flat(array: NDArray[Any], steps: NDArray[np.int64]) -> NDArray[Any]:
    """Return the values of steps, `[steps, envs, ...]`, as rows."""
    values = np.asarray(array)[steps]
    return values.reshape(values.shape[0] * values.shape[1], *values.shape[2:])


class _Placeholder:
    """Placeholder for an object of a class that is not needed."""

    def __new__(cls, *_arguments: Any, **_options: Any) -> Self:
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        attributes = state[0] if isinstance(state, tuple) else state
        self.__dict__.update(attributes if isinstance(attributes, dict) else {})

    def __setitem__(self, key: Any, value: Any) -> None:
        self.__dict__[str(key)] = value

    def append(self, value: Any) -> None:
        """Discard an item."""


class _Unpickler(pickle.Unpickler):
    """Unpickles NumPy arrays and plain data; other classes and functions are neither imported nor called."""

    def find_class(self, module: str, name: str) -> Any:
        if module in _NUMPY_MODULES and name in _NUMPY_NAMES:
            return super().find_class(module, name)
        if (module, name) in {("numpy", "ndarray"), ("numpy", "dtype")}:
            return getattr(np, name)
        if (module, name) in {("collections", "OrderedDict"), ("builtins", "dict")}:
            return dict
        return _Placeholder
