"""RemoteExperience: the replay of an engine with explorers, in a separate process."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from numpy.typing import ArrayLike

from trieye.replay.remote import RemoteReplay, ReplayServer, Writer
from trieye.replay.remote.channel import ReplayChannel
from trieye.training.batches import Minibatch, finite_parts, minibatch_of, valid_priorities
from trieye.training.finite import OnNonfinite
from trieye.training.rows import Rows


class RemoteExperience(RemoteReplay):
    """The counterpart of `Experience` for an engine with explorers.

    Args:
        channel: Connection to the process that holds the rows.
        is_synchronous: Whether each batch is drawn only on request, with all earlier priorities applied.
        directory: Directory of its snapshots, deleted on close.

    Attributes:
        on_nonfinite: Handles rows and priorities that are NaN or infinite; the replay never stores them.
    """

    on_nonfinite = OnNonfinite()

    def __init__(
        self, channel: ReplayChannel[ReplayServer], *, is_synchronous: bool, directory: Path | None = None
    ) -> None:
        super().__init__(channel)
        self._is_synchronous, self._directory = is_synchronous, directory
        self._reader = self.reader(ahead=1 if is_synchronous else 8)
        self._writer: Writer | None = None

    def extend(self, batch: Mapping[str, ArrayLike] | Rows, env_ids: ArrayLike | None = None) -> None:
        """Add rows of the learner itself; those of explorers are in the replay already, and `collect` returns none."""
        if isinstance(batch, Rows):
            if not len(batch):
                return
            batch, env_ids = batch.transitions()
        self._writer = self._writer or self.writer()
        for part_rows, part_env_ids, _, env_id in finite_parts(batch, env_ids, None, self.on_nonfinite):
            self._writer.extend(part_rows, part_env_ids)
            self._writer.flush()
            if env_id is not None:
                self._writer.interrupt(lost_rows=True)

    def minibatch(self, n: int, device: torch.device) -> Minibatch:
        """Sample `n` rows as tensors on a device."""
        if self._is_synchronous:
            self._reader.flush()
        return minibatch_of(self._reader.sample, n, device)

    def update_priorities(self, ids: ArrayLike, priorities: ArrayLike) -> None:
        """Send priorities of rows; the id -1 marks rows from elsewhere; see `Experience.update_priorities`."""
        self._reader.update_priorities(*valid_priorities(ids, priorities, self.on_nonfinite))

    def interrupt(self) -> None:
        """Do nothing: each attempt has new writers, which never continue the episodes of earlier ones."""

    def close(self) -> None:
        """Stop the process, and delete its snapshots."""
        super().close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
