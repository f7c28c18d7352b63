"""The rows of a buffer as they were added, for other formats."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trieye.replay.rows.store import RowStore


def chunks_of(store: RowStore, chunk: int) -> Iterator[tuple[dict[str, NDArray[Any]], NDArray[np.int64]]]:
    """Yield the rows, oldest first, and the number of the episode of each; see `ReplayBuffer.iter_rows`."""
    low, total = store.low, store.total
    episodes = _episodes(store, low, total)
    for first in range(low, total, chunk):
        ids = np.arange(first, min(first + chunk, total))
        rows = {key: store.reader.column(key, ids, low) for key in store.layout.columns}
        yield rows, episodes[first - low : first - low + len(ids)]


def _episodes(store: RowStore, low: int, total: int) -> NDArray[np.int64]:
    episodes = np.zeros(total - low, np.int64)
    links = store.reader.links
    if links is None:
        return episodes
    previous = (links.previous_ids(np.arange(low, total), low) - low).tolist()
    numbers, count = [0] * len(previous), 0
    for row, before in enumerate(previous):
        if before >= 0:
            numbers[row] = numbers[before]
        else:
            numbers[row] = count
            count += 1
    episodes[:] = numbers
    return episodes
