"""FarRows: rows of a table on another machine, copied by the server and sent to the reader."""

from collections.abc import Sequence

import numpy as np

from trieye.exceptions import ConfigurationError
from trieye.replay.batch import Batch
from trieye.replay.remote.ahead import Ahead
from trieye.replay.remote.calls import Deadline, poll_s
from trieye.replay.remote.channel import Channel


class FarRows:
    """Asks the server for whole batches, several at a time.

    Args:
        channel: The way to the server.
        table: Name of the table.
        ahead: Batches that come with one call.
        timeout_s: How long the reader waits at most, seconds.

    Attributes:
        generation: Of the memory that the rows came from; empty before the first draw.
    """

    def __init__(self, channel: Channel, table: str, ahead: int, timeout_s: float) -> None:
        self.generation = ""
        self._channel, self._table, self._num_ahead = channel, table, ahead
        self._poll_s = poll_s(timeout_s)
        self._batches: dict[tuple[int, tuple[str, ...] | None], Ahead[tuple[str, Batch]]] = {}

    def sample(self, n: int, out: Batch | None, keys: Sequence[str] | None, deadline: Deadline) -> Batch:
        """Draw rows.

        Raises:
            ReplayTimeoutError: There was nothing to draw in time.
            ConfigurationError: A key is unknown, or `out` is of another size.
        """
        wanted = None if keys is None else tuple(keys)
        batches = self._batches.get((n, wanted))
        if batches is None:
            batches = self._batches[n, wanted] = Ahead(
                lambda: self._channel.begin("batches", self._table, self._num_ahead, n, wanted, self._poll_s),
                lambda found: found,
                self._num_ahead // 2,
            )
        self.generation, batch = batches.next(deadline)
        if out is None:  # what was sent is read-only
            batch.data = {key: np.array(array) for key, array in batch.data.items()}
            return batch
        if len(out) != n or list(out) != list(batch):
            raise ConfigurationError(
                f"sample({n}): `out` holds {len(out)} rows of {', '.join(out)}; reuse a batch of the same size and keys"
            )
        for key, array in batch.data.items():
            np.copyto(out.data[key], array)
        batch.data, batch.records = out.data, out.records
        return batch
