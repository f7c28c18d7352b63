"""ReplayRows: incremental state of a Stable-Baselines3 replay buffer; each checkpoint stores only new rows."""

import secrets
from collections.abc import Collection, Iterator, Mapping
from operator import itemgetter
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from trieye.exceptions import CheckpointError
from trieye.journal.ranges import uncovered
from trieye.replay.rows.segments import MAX_PART_BYTES, MAX_SMALL_PARTS, SMALL_PART_BYTES
from trieye.snapshot.nodes import StateParts
from trieye.snapshot.parts import SavedParts

_CHANGING = ("ep_start", "ep_length")
"""Arrays of hindsight replay that the end of an episode rewrites, and that are therefore saved in full."""

Arrays = dict[str, NDArray[Any]]
Part = tuple[str, int, int]
"""Name, first row, end."""


class ReplayRows:
    """Rows and write position of a buffer.

    Supports any buffer that stores its rows in arrays (or dicts of arrays) of shape (buffer_size, n_envs, ...), such as
    the buffers of Stable-Baselines3 and sb3-contrib. The `infos` that hindsight replay copies are not saved.

    Args:
        buffer: The buffer.

    Attributes:
        total: Number of rows ever added, one per step of all environments; the caller that adds rows increases it.
    """

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer
        self.total = self._num_added()
        self._parts: list[Part] = []

    def state_parts(self, stored_names: Collection[str]) -> StateParts:
        """Return a snapshot; only rows outside the stored parts are copied."""
        if self.total < self._num_added() or self.total % self._size != self._buffer.pos:
            self.total, self._parts = self._num_added(), []  # the buffer was filled without counting
        arrays, low = self._arrays(), max(self.total - self._size, 0)
        row_bytes = max(sum(array[:1].nbytes for array in arrays.values()), 1)
        parts = [part for part in self._parts if part[0] in stored_names and part[2] > low]
        small = [part for part in parts if (part[2] - part[1]) * row_bytes < SMALL_PART_BYTES]
        if len(small) > MAX_SMALL_PARTS:
            parts = [part for part in parts if part not in small]
        reused_names, new_parts = tuple(name for name, _, _ in parts), dict[str, Arrays]()
        max_rows = max(MAX_PART_BYTES // row_bytes, 1)
        for first, end in uncovered(low, self.total, [part[1:] for part in parts]):
            for start in range(first, end, max_rows):
                stop = min(start + max_rows, end)
                name, slots = f"sb3-{start}-{stop}-{secrets.token_hex(4)}", np.arange(start, stop) % self._size
                new_parts[name] = {key: array[slots] for key, array in arrays.items()}
                parts.append((name, start, stop))
        self._parts = parts = sorted(parts, key=itemgetter(1))
        state = {"total": self.total, "parts": [list(part) for part in parts], "arrays": _shapes(arrays)}
        return StateParts({**state, **self._state_without_rows(arrays)}, reused_names, new_parts)

    def load_state_dict(self, state: Any) -> None:
        """Restore a saved state; an unfinished episode ends at the last saved row.

        Raises:
            CheckpointError: The arrays of the saved buffer differ, or a part is damaged.
        """
        saved = state.state if isinstance(state, SavedParts) else {}
        arrays, buffer = self._arrays(), cast("Any", self._buffer)
        if saved.get("arrays") != _shapes(arrays):
            raise CheckpointError(
                f"the saved replay buffer has arrays {saved.get('arrays')} and this buffer has {_shapes(arrays)}; "
                "create the model with the same buffer_size, n_envs and environment"
            )
        self.total, self._parts = saved["total"], [(name, first, end) for name, first, end in saved["parts"]]
        low = max(self.total - self._size, 0)
        for name, first, end in self._parts:
            rows, start = state.map(name), max(first, low)
            for key, array in arrays.items():
                array[np.arange(start, end) % self._size] = rows[key][start - first :]
        buffer.pos, buffer.full = self.total % self._size, self.total >= self._size
        for key, array in saved["changing"].items():
            getattr(buffer, key)[:] = array
        if (next_obs := saved["next_obs"]) is not None:
            buffer.observations[buffer.pos] = next_obs
        if self.total:
            self._end_episodes()

    def _end_episodes(self) -> None:
        buffer = cast("Any", self._buffer)
        if isinstance(buffer, HerReplayBuffer):
            buffer.truncate_last_trajectory()
        elif isinstance(buffer, NStepReplayBuffer):
            buffer.timeouts[buffer.pos - 1] = 1 - buffer.dones[buffer.pos - 1]
        elif buffer.optimize_memory_usage:  # the next episode's first observation will overwrite the next observation
            buffer.dones[buffer.pos - 1] = True

    @property
    def _size(self) -> int:
        return int(self._buffer.buffer_size)

    def _num_added(self) -> int:
        return int(self._buffer.pos) + (self._size if self._buffer.full else 0)

    def _arrays(self) -> Arrays:
        """Return the arrays with one row per buffer row."""
        fields = {name: value for name, value in vars(self._buffer).items() if name not in _CHANGING}
        return {
            key: array for key, array in _flat(fields) if array.shape[:1] == (self._size,) and array.dtype != object
        }

    def _state_without_rows(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        buffer, num_rows = cast("Any", self._buffer), min(self.total, self._size)
        changing = {name: getattr(buffer, name)[:num_rows].copy() for name in _CHANGING if hasattr(buffer, name)}
        changing = {name: np.pad(array, ((0, self._size - num_rows), (0, 0))) for name, array in changing.items()}
        if hasattr(buffer, "_current_ep_start"):
            changing["_current_ep_start"] = buffer._current_ep_start.copy()  # noqa: SLF001 - docs/private_apis.md
        tail = arrays["observations"][buffer.pos].copy() if buffer.optimize_memory_usage else None
        return {"changing": changing, "next_obs": tail}


def _shapes(arrays: Arrays) -> dict[str, list[Any]]:
    return {key: [str(array.dtype), *array.shape] for key, array in arrays.items()}


def _flat(fields: Mapping[str, Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    for name, value in fields.items():
        if isinstance(value, np.ndarray):
            yield name, value
        elif isinstance(value, dict):
            yield from ((f"{name}.{key}", array) for key, array in _flat(value))
