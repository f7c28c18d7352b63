"""Rows that others collected: pickled replay buffers of stable-baselines3, and Minari datasets."""

import pickle
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import ConfigurationError, SerializationError, UntrustedPickleError
from trieye.replay.buffer import ReplayBuffer
from trieye.replay.exchange.files import apart
from trieye.replay.rows.schema import PREFIX

_NUMPY_MODULES = ("numpy._core.multiarray", "numpy.core.multiarray", "numpy._core.numeric", "numpy.core.numeric")
_NUMPY_NAMES = ("_reconstruct", "scalar", "_frombuffer")
_PICKLE_ERRORS = (pickle.UnpicklingError, EOFError, ValueError, TypeError, LookupError, AttributeError, MemoryError)


def import_minari(buffer: ReplayBuffer, dataset: Any, *, download: bool = False) -> int:
    """Add the steps of a Minari dataset to a buffer, episode by episode.

    The keys are obs, next_obs, action, reward, terminated and truncated; with dictionary observations their own keys
    and those with `next_` before them, in place of obs and next_obs. Dictionaries inside are joined with a dot.

    Args:
        buffer: Where the steps are added.
        dataset: A `minari.MinariDataset`, or the id of one, such as `D4RL/door/human-v2`.
        download: Download a dataset that is not on this machine.

    Returns:
        How many rows were added.

    Raises:
        ConfigurationError: minari is not installed (`pip install minari`), or the steps do not fit the buffer.
    """
    if isinstance(dataset, str):
        try:
            minari = import_module("minari")
        except ImportError as error:
            raise ConfigurationError(
                f"reading the dataset {dataset!r} needs minari; install it with pip install 'minari[hdf5]'"
            ) from error
        dataset = minari.load_dataset(dataset, download=download)
    count = 0
    with apart(buffer):
        for number, episode in enumerate(dataset.iterate_episodes()):
            rows = _minari_rows(episode)
            count += len(buffer.extend(rows, np.full(len(rows["reward"]), number)))
    return count


def _minari_rows(episode: Any) -> dict[str, NDArray[Any]]:
    observed = _named(episode.observations, "obs")
    rows = {key: array[:-1] for key, array in observed.items()}
    rows |= {PREFIX + key: array[1:] for key, array in observed.items()}
    rows |= _named(episode.actions, "action")
    flags = {"terminated": episode.terminations, "truncated": episode.truncations}
    rows["reward"] = np.asarray(episode.rewards)
    return {**rows, **{key: np.asarray(values, np.bool_) for key, values in flags.items()}}


def _named(values: Any, name: str) -> dict[str, NDArray[Any]]:
    """Return the arrays inside dictionaries and tuples, by their keys; a single array is called `name`."""
    if isinstance(values, Mapping):
        items = {str(key): value for key, value in values.items()}
    elif isinstance(values, tuple):
        items = {f"{name}.{index}": value for index, value in enumerate(values)}
    else:
        return {name: np.asarray(values)}
    return {inner: array for key, value in items.items() for inner, array in _named(value, key).items()}


def import_sb3(buffer: ReplayBuffer, path: str | Path, *, allow_pickle: bool = False) -> int:
    """Add the rows of a pickled `ReplayBuffer` or `DictReplayBuffer` of stable-baselines3 2.x to a buffer.

    The keys are obs, next_obs, action, reward, terminated and truncated; with dictionary observations their own keys
    and those with `next_` before them, in place of obs and next_obs. stable-baselines3 is not needed.

    Args:
        buffer: Where the rows are added.
        path: The file.
        allow_pickle: Has to be True: the file is a pickle. Only NumPy's arrays are made of what it says, anything else
            becomes an empty object; still, read none from whom you do not trust.

    Returns:
        How many rows were added.

    Raises:
        UntrustedPickleError: `allow_pickle` is False.
        FileNotFoundError: There is no such file.
        SerializationError: It is something else.
        ConfigurationError: The rows do not fit the buffer.
    """
    if not allow_pickle:
        raise UntrustedPickleError(
            f"{path} is a pickle, as stable-baselines3 writes them; if you trust where it comes from, pass "
            "allow_pickle=True"
        )
    with Path(path).open("rb") as file:
        try:
            held = vars(_Unpickler(file).load())
            steps, num_envs = _sb3_steps(held), int(held["n_envs"])
            rows = _sb3_rows(held, steps)
        except (*_PICKLE_ERRORS, RecursionError) as error:
            raise SerializationError(f"{path} holds no replay buffer of stable-baselines3 ({error!r})") from error
    if not len(steps):
        return 0
    with apart(buffer):
        return len(buffer.extend(rows, np.tile(np.arange(num_envs), len(steps))))


def _sb3_steps(held: dict[str, Any]) -> NDArray[np.int64]:
    """Return the places of the steps, oldest first."""
    size, position = int(held["buffer_size"]), int(held["pos"])
    steps = (np.arange(size) + position) % size if held["full"] else np.arange(position)
    if held.get("optimize_memory_usage"):
        # the next observation is that of the following place; the newest one's lies where the oldest step was
        steps = steps[1:] if held["full"] else steps
    return steps


def _sb3_rows(held: dict[str, Any], steps: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    observed, following = held["observations"], held.get("next_observations")
    if not isinstance(observed, dict):
        observed, following = {"obs": observed}, None if following is None else {"obs": following}
    rows = {key: _flat(array, steps) for key, array in observed.items()}
    for key, array in observed.items():
        after = _flat(array, (steps + 1) % len(array)) if following is None else _flat(following[key], steps)
        rows[PREFIX + key] = after
    done, timeout = (_flat(held[name], steps).astype(np.bool_) for name in ("dones", "timeouts"))
    rows["action"], rows["reward"] = _flat(held["actions"], steps), _flat(held["rewards"], steps)
    return {**rows, "terminated": done & ~timeout, "truncated": timeout}


def _flat(array: NDArray[Any], steps: NDArray[np.int64]) -> NDArray[Any]:
    """Return the values of steps, `[steps, envs, ...]`, as rows."""
    chosen = np.asarray(array)[steps]
    return chosen.reshape(chosen.shape[0] * chosen.shape[1], *chosen.shape[2:])


class _Empty:
    """Stands for an object of a class that is not needed."""

    def __new__(cls, *_arguments: Any, **_options: Any) -> Self:
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        attributes = state[0] if isinstance(state, tuple) else state
        self.__dict__.update(attributes if isinstance(attributes, dict) else {})

    def __setitem__(self, key: Any, value: Any) -> None:
        self.__dict__[str(key)] = value

    def append(self, value: Any) -> None:
        """Forget an item."""


class _Unpickler(pickle.Unpickler):
    """Makes NumPy arrays and plain data; whatever else a pickle names is neither imported nor called."""

    def find_class(self, module: str, name: str) -> Any:
        if module in _NUMPY_MODULES and name in _NUMPY_NAMES:
            return super().find_class(module, name)
        if (module, name) in {("numpy", "ndarray"), ("numpy", "dtype")}:
            return getattr(np, name)
        if (module, name) in {("collections", "OrderedDict"), ("builtins", "dict")}:
            return dict
        return _Empty
