"""Checks of what a replay buffer is given: its capacity, priorities, and saved states."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trieye.exceptions import ConfigurationError
from trieye.replay.rows.layout import Layout, RowOptions
from trieye.replay.rows.schema import Column, describe
from trieye.snapshot.parts import SavedParts

FORMAT = 2


def checked_capacity(capacity: Any) -> int:
    """Return a capacity in rows.

    Raises:
        ConfigurationError: It is no whole number from 1 on.
    """
    if isinstance(capacity, bool) or not isinstance(capacity, int | np.integer) or capacity < 1:
        raise ConfigurationError(f"replay capacity is {capacity!r}; it must be a whole number of rows, at least 1")
    return int(capacity)


def checked_priorities(
    ids: ArrayLike, priorities: ArrayLike, total: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return ids `[n]` below `total` and their priorities `[n]`.

    Raises:
        ConfigurationError: The lengths differ, an id was never given out, or a priority is negative or not finite.
    """
    known, values = np.asarray(ids), np.asarray(priorities, np.float64)
    if known.shape != values.shape or known.ndim != 1:
        raise ConfigurationError(
            f"update_priorities: {known.shape} ids and {values.shape} priorities; both must be [n]"
        )
    if values.size and not (values.min() >= 0 and values.max() < np.inf):  # NaN is neither
        raise ConfigurationError("update_priorities: priorities must be finite and at least 0")
    if known.size and (known.dtype.kind not in "iu" or known.min() < 0 or known.max() >= total):
        raise ConfigurationError(f"update_priorities: ids must be whole numbers in [0, {total}), as add() returned")
    return known.astype(np.int64, copy=False), values


def checked_versions(versions: ArrayLike, count: int) -> NDArray[np.int64]:
    """Return the versions `[count]` of rows, of one number or as many as there are rows.

    Raises:
        ConfigurationError: They are no whole numbers, or of another length.
    """
    found = np.asarray(versions)
    if found.shape not in {(), (count,)} or found.dtype.kind not in "iu":
        raise ConfigurationError(
            f"extend: versions are {found.dtype}{list(found.shape)}; a whole number for each of {count} rows is needed"
        )
    return np.broadcast_to(found.astype(np.int64, copy=False), (count,))


def checked_state(state: Any, sampler: str) -> SavedParts:
    """Return what was saved of a buffer with this sampler, and the same bounds as far as it has any.

    Raises:
        ConfigurationError: It is something else, or of another format or sampler.
    """
    held = state.state if isinstance(state, SavedParts) and isinstance(state.state, dict) else {}
    if held.get("format") != FORMAT or held.get("sampler") != sampler:
        raise ConfigurationError(
            f"replay state has format {held.get('format')!r} and sampler {held.get('sampler')!r}; "
            f"this buffer reads format {FORMAT} and sampler {sampler!r}; make it with the same sampler and bounds"
        )
    saved: SavedParts = state
    return saved


def saved_columns(held: Mapping[str, Any], own: Layout | None, options: RowOptions) -> list[Column]:
    """Return the columns of saved rows.

    Args:
        held: What `RowStore.state_dict` returned.
        own: The layout of the buffer that takes them over, if it has one.
        options: What that buffer makes of its rows.

    Raises:
        ConfigurationError: They are not those of `own`, or they were made with other options.
    """
    columns = [Column(name, tuple(spec[1]), np.dtype(spec[0])) for name, spec in held["columns"].items()]
    if own is not None and list(own.columns.values()) != columns:
        found = describe({column.name: column for column in columns})
        raise ConfigurationError(
            f"replay state holds rows of {found}, this buffer of {describe(own.columns)}; "
            "load it into a buffer of the same schema"
        )
    if held["options"] != options.spec:
        raise ConfigurationError(
            f"replay state was made with {held['options']}, this buffer with {options.spec}; "
            "load it into a buffer of the same options"
        )
    return columns
