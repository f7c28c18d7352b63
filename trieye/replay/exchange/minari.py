"""Rows of Minari datasets, the offline format of the Farama foundation."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import ConfigurationError
from trieye.replay.buffer import ReplayBuffer
from trieye.replay.exchange.apart import apart
from trieye.replay.rows.dedup import PREFIX


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
            rows = _rows_of(episode)
            count += len(buffer.extend(rows, np.full(len(rows["reward"]), number)))
    return count


def _rows_of(episode: Any) -> dict[str, NDArray[Any]]:
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
