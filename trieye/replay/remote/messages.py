"""Messages: what writers, readers and a replay server send each other."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from trieye.replay.rows.memory import RamMemory
from trieye.replay.rows.ring import Ring
from trieye.replay.rows.schema import Column
from trieye.replay.samplers.base import Draw, Ids

DEFAULT_TABLE = "default"

INTERRUPTION = 1 << 32
"""Added to the numbers of a writer's environments by each interruption, so that later rows start new episodes."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows on their way to a table.

    Attributes:
        columns: Arrays `[n, ...]` by key, or one array `[n]` of records whose fields are the keys.
        env_ids: int64 `[n]`, the writer's own number of the environment of each row; None if it has only one.
        priorities: float64 `[n]`, NaN where the row gets the default; None if no row was given one.
        versions: int64 `[n]`, of the models that made the rows, -1 where that is the table's; None if it always is.
    """

    columns: Mapping[str, NDArray[Any]] | NDArray[Any]
    env_ids: Ids | None = None
    priorities: NDArray[np.float64] | None = None
    versions: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        if isinstance(self.columns, np.ndarray):
            return len(self.columns)
        return len(next(iter(self.columns.values())))

    def by_key(self) -> Mapping[str, NDArray[Any]]:
        """Return the arrays by key, as views."""
        if isinstance(self.columns, np.ndarray):
            return {name: self.columns[name] for name in self.columns.dtype.names or ()}
        return self.columns


@dataclass(frozen=True, slots=True)
class Plan:
    """Several draws, decided by the server for a reader that copies the rows itself.

    Attributes:
        generation: Of the memory that the ids belong to.
        ids: int64 `[k, n]` or `[k, n, length]`.
        weights: float32 `[k, n]`.
        infos: What the sampler told about each draw.
        scales: The largest weight of each draw before they were divided by it.
        masks: bool `[k, n, length]`, or None.
    """

    generation: str
    ids: Ids
    weights: NDArray[np.float32]
    infos: tuple[Mapping[str, float], ...]
    scales: tuple[float, ...]
    masks: NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, generation: str, draws: list[Draw]) -> "Plan":
        """Put draws of the same size together, so that they travel as two arrays."""
        masks = [draw.mask for draw in draws if draw.mask is not None]
        return cls(
            generation,
            np.stack([draw.ids for draw in draws]),
            np.stack([draw.weights for draw in draws]),
            tuple(dict(draw.info) for draw in draws),
            tuple(draw.scale for draw in draws),
            np.stack(masks) if masks else None,
        )

    def draws(self) -> list[Draw]:
        """Return the draws, as copies: what was sent is read-only."""
        masks = [None] * len(self.ids) if self.masks is None else [mask.copy() for mask in self.masks]
        ids, weights = [each.copy() for each in self.ids], [each.copy() for each in self.weights]
        return [Draw(*parts) for parts in zip(ids, weights, self.infos, masks, self.scales, strict=True)]


@dataclass(frozen=True, slots=True)
class Memory:
    """Where the rows of a table are.

    Attributes:
        generation: Changes when the table gets other memory, as after the death of its process.
        handle: What `ReplayBuffer.attach` takes; None if the rows cannot be read from other processes.
    """

    generation: str
    handle: Any = None


_ASIDE: Mapping[str, tuple[DTypeLike, float]] = {
    "env_ids": (np.int64, 0), "priorities": (np.float64, np.nan), "versions": (np.int64, -1)
}  # fmt: skip
"""What `Rows` has beside the columns: dtype, and the value of rows that were given none."""


class Block:
    """Memory for `capacity` rows, filled from the front.

    Args:
        capacity: Rows.
        columns: The keys of a row.
    """

    def __init__(self, capacity: int, columns: Iterable[Column]) -> None:
        self.capacity = capacity
        self.count = 0
        self._ring = Ring(capacity, columns, RamMemory(prefault=False))
        self._aside: dict[str, NDArray[Any]] = {}  # of `_ASIDE`, what at least one row was given

    @property
    def columns(self) -> Mapping[str, Column]:
        """The keys of a row."""
        return self._ring.columns

    @property
    def room(self) -> int:
        """Rows that still fit."""
        return self.capacity - self.count

    def add(self, row: Mapping[str, Any], env_id: int, version: int | None) -> None:
        """Copy one row in; nothing is written if one of its values is refused."""
        self._ring.write_row(self.count, row)
        if env_id:
            self._note("env_ids", 1, env_id)
        if version is not None:
            self._note("versions", 1, version)
        self.count += 1

    def extend(
        self, rows: Mapping[str, NDArray[Any]], env_ids: Ids | None, priorities: Any, version: int | None
    ) -> None:
        """Copy rows in, arrays `[n, ...]` with `n` not above `room`; nothing is written if one of them is refused."""
        arrays, count = self._ring.conform(rows)
        self._ring.write_rows(self.count, arrays, count)
        for name, values in (("env_ids", env_ids), ("priorities", priorities), ("versions", version)):
            if values is not None:
                self._note(name, count, values)
        self.count += count

    def reuse(self) -> None:
        """Forget the rows."""
        self.count, self._aside = 0, {}

    def rows(self) -> Rows:
        """Return the rows in it, as views of this memory."""
        ring = self._ring
        columns: Any = {name: cells[: self.count] for name, cells in ring.cells.items()}
        if ring.records is not None:
            columns = ring.records[: self.count]
        return Rows(columns, **{name: values[: self.count] for name, values in self._aside.items()})

    @property
    def size_bytes(self) -> int:
        """Bytes of memory."""
        ring = self._ring
        return ring.records.nbytes if ring.records is not None else sum(cells.nbytes for cells in ring.cells.values())

    def _note(self, name: str, count: int, values: Any) -> None:
        """Write what the next rows were given."""
        if name not in self._aside:
            dtype, default = _ASIDE[name]
            self._aside[name] = np.full(self.capacity, default, dtype)
        self._aside[name][self.count : self.count + count] = values
