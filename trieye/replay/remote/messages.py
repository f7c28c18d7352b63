"""Messages: what writers, readers and a replay server send each other."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trieye.replay.samplers.base import Draw, Ids

DEFAULT_TABLE = "default"


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
class Ack:
    """How far a table has come with the rows of one writer.

    Attributes:
        end: Number of its rows that are in the ring, or went through it.
        saved: Number of its rows that a snapshot holds.
        refused: Why nothing was taken this time; empty otherwise.
        lost: Number of its rows that were in the ring before the server died, and that nobody kept.
    """

    end: int
    saved: int = 0
    refused: str = ""
    lost: int = 0


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
        """Return the draws, as views."""
        masks = [None] * len(self.ids) if self.masks is None else list(self.masks)
        return [Draw(*parts) for parts in zip(self.ids, self.weights, self.infos, masks, self.scales, strict=True)]


@dataclass(frozen=True, slots=True)
class Memory:
    """Where the rows of a table are.

    Attributes:
        generation: Changes when the table gets other memory, as after the death of its process.
        handle: What `ReplayBuffer.attach` takes; None if the rows cannot be read from other processes.
    """

    generation: str
    handle: Any = None


def below(draw: Draw, low: int) -> NDArray[np.bool_]:
    """Return bool `[n]`, which rows or sequences have an id below `low`."""
    ids = draw.ids if draw.mask is None else np.where(draw.mask, draw.ids, low)
    found: NDArray[np.bool_] = ids < low if ids.ndim == 1 else ids.min(axis=1) < low
    return found
