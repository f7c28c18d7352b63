"""Draws of rows whose stacks are whole: the oldest rows of a buffer lack frames that were overwritten."""

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import ConfigurationError
from trieye.replay.rows.store import RowStore
from trieye.replay.samplers.base import Draw, RowSampler, Sampler, spliced

_TRIES, _MORE_TRIES = 8, 100
_NONE_WHOLE = "no row of the replay buffer has all frames of its stack; raise replay.capacity"


def with_history(draw: Draw, store: RowStore, sampler: Sampler, rng: np.random.Generator) -> Draw:
    """Replace those of the drawn rows, or sequences, whose stacks begin with frames that were overwritten by now.

    Raises:
        ConfigurationError: No row has all its frames.
    """
    low, high = store.low, store.total
    lacking = _lacking(draw.ids, store)
    if not lacking.size:
        return draw
    if not isinstance(sampler, RowSampler):
        return _drawn_again(draw, lacking, store, sampler, rng)
    ids = draw.ids.copy()
    for _ in range(_TRIES):
        ids[lacking] = sampler.propose(lacking.size, low, high, rng)
        lacking = _lacking(ids, store)
        if not lacking.size:
            return sampler.judge(ids, low, high)
    every = np.arange(low, high)
    whole = np.delete(every, _lacking(every, store))
    if not whole.size:
        raise ConfigurationError(_NONE_WHOLE)
    ids[lacking] = sampler.pick(lacking.size, whole, rng)
    return sampler.judge(ids, low, high)


def _lacking(ids: NDArray[np.int64], store: RowStore) -> NDArray[np.int64]:
    return np.flatnonzero(store.reader.lacks_history(ids.reshape(len(ids), -1)[:, 0], store.low))


def _drawn_again(
    draw: Draw, lacking: NDArray[np.int64], store: RowStore, sampler: Sampler, rng: np.random.Generator
) -> Draw:
    for _ in range(_MORE_TRIES):
        draw = spliced(draw, lacking, sampler.draw(lacking.size, store.low, store.total, rng))
        lacking = _lacking(draw.ids, store)
        if not lacking.size:
            return draw
    raise ConfigurationError(_NONE_WHOLE)
