"""SequenceSampler: draws sequences of consecutive rows from one episode."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trieye.exceptions import ConfigurationError
from trieye.replay.rows.episodes import EpisodeLinks
from trieye.replay.samplers.base import Ids, RowSampler, SampledIds, Sampler, UniformSampler
from trieye.replay.samplers.prioritized import PrioritizedSampler

_LEAST_SHARE = 1 / 64  # lower bound of the estimated acceptance rate; smaller values would make far too many proposals


class SequenceSampler(Sampler):
    """Draws sequences of `length` consecutive rows of one episode, by default uniformly from all possible starts.

    It proposes starts and rejects invalid ones, so adding rows costs nothing. If hardly any row starts a sequence, it
    scans all rows, which takes some milliseconds per million rows.
    """

    def __init__(
        self,
        links: EpisodeLinks,
        length: int,
        *,
        period: int = 1,
        cross_episodes: bool = False,
        pad: bool = False,
        starts: RowSampler | None = None,
    ) -> None:
        """Create a sampler.

        Args:
            links: Successor links of the rows; with `count_steps` if `period` is above 1.
            length: Rows in a sequence.
            period: Only every `period`-th row of an episode, from its first row on, starts a sequence; two sequences
                share at most `length - period` rows.
            cross_episodes: Let a sequence continue with the next episode of the same environment.
            pad: Permit sequences shorter than `length`, padded with ids of -1 and a mask of False.
            starts: Draws the first rows, for instance by priority; uniformly if None.

        Raises:
            ConfigurationError: The length or the period is below 1.
        """
        if length < 1 or period < 1:
            raise ConfigurationError(f"sequences of length {length} and period {period}: both must be at least 1")
        self.length, self.period, self.pad, self.cross_episodes = length, period, pad, cross_episodes
        self.starts = starts or UniformSampler()
        self._links = links
        self._possible: tuple[tuple[int, int], Ids] | None = None  # starts in the rows [low, high) of the last scan
        self._share = 1.0  # recent acceptance rate of proposals

    def added(self, first_id: int, count: int) -> None:
        """Forward to the sampler of first rows."""
        self.starts.added(first_id, count)

    def forgot(self, low_id: int) -> None:
        """Forward to the sampler of first rows."""
        self.starts.forgot(low_id)

    def draw(self, n: int, low: int, high: int, rng: np.random.Generator) -> SampledIds:
        """Draw `n` sequences from the rows `[low, high)`.

        Raises:
            ConfigurationError: These rows contain no sequence.
        """
        batches: list[Ids] = []
        num_missing, budget = n, max(high - low, n)
        while num_missing and budget > 0:
            count = min(int(num_missing * 1.2 / self._share) + 8, budget)
            try:
                proposed_ids = self.starts.propose(count, low, high, rng)
            except ConfigurationError:
                break  # every chance is 0; the scan below decides whether any row starts a sequence
            sequence_ids = self._complete(proposed_ids)
            self._share = max((len(sequence_ids) + 1) / (count + 1), _LEAST_SHARE)
            batches.append(sequence_ids[:num_missing])
            num_missing -= len(batches[-1])
            budget -= count
        if num_missing:
            batches.append(self._following(self.starts.pick(num_missing, self._all_starts(low, high), rng)))
        ids = np.ascontiguousarray(np.concatenate(batches))  # the links are in column-major order
        draw = self.starts.judge(ids[:, 0], low, high)
        return SampledIds(ids, draw.weights, draw.info, ids >= 0 if self.pad else None, draw.scale)

    def discarded(self, ids: Ids, *, for_good: bool) -> None:
        """Forward to the sampler of first rows."""
        self.starts.discarded(ids, for_good=for_good)

    def handed_out(self, draw: SampledIds) -> None:
        """Forward to the sampler of first rows."""
        self.starts.handed_out(draw)

    def update(self, ids: Ids, priorities: ArrayLike) -> None:
        """Set the priorities of first rows, `SampledIds.ids[:, 0]`."""
        self.starts.update(ids, priorities)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the sampler of first rows and the acceptance rate."""
        return {"starts": self.starts.state_dict(), "share": self._share}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self.starts.load_state_dict(state["starts"])
        self._share, self._possible = float(state["share"]), None

    def _complete(self, starts: Ids) -> Ids:
        """Return the sequences, int64 `[m, length]`, that begin with these rows."""
        is_first = self._is_first(starts)
        ids = self._following(starts[is_first])
        is_whole = np.ones(len(ids), np.bool_) if self.pad else ids[:, -1] >= 0
        if isinstance(self.starts, PrioritizedSampler):
            cut = ids[~is_whole]
            invalid_starts = [starts[~is_first]] if self.cross_episodes else [starts[~is_first], self._ended_early(cut)]
            # at the initial priority of new rows, invalid starts would crowd out the rows that are drawn and updated
            self.starts.set_chances(rows := np.concatenate(invalid_starts), np.zeros(len(rows), np.float32))
        return ids[is_whole]

    def _ended_early(self, ids: Ids) -> Ids:
        """Return the first rows of sequences that can never be completed because their episode ended."""
        last_ids = ids[np.arange(len(ids)), (ids >= 0).sum(axis=1) - 1]
        return np.asarray(ids[self._links.has_ended(last_ids), 0])

    def _following(self, starts: Ids) -> Ids:
        return self._links.following(starts, self.length, across=self.cross_episodes)

    def _is_first(self, rows: Ids) -> NDArray[np.bool_]:
        if self.period == 1:
            return np.ones(len(rows), np.bool_)
        return np.equal(self._links.steps(rows) % self.period, 0)

    def _all_starts(self, low: int, high: int) -> Ids:
        if self._possible is None or self._possible[0] != (low, high):
            self._possible = (low, high), self._look_up(np.arange(low, high))
        if not self._possible[1].size:
            raise ConfigurationError(
                f"none of the {high - low} rows starts a sequence of {self.length} rows of one episode; "
                "add longer episodes, reduce the sequence length, or enable padding"
            )
        return self._possible[1]

    def _look_up(self, rows: Ids) -> Ids:
        starts = rows[self._is_first(rows)]
        if self.pad:
            return starts
        low, last_ids = int(rows[0]), starts
        # the row 1, 2, 4, ... steps later, for each row; the final entry, -1, means none and points to itself
        jump = np.append(self._links.next_ids(rows, across=self.cross_episodes), -1)
        jump[jump >= 0] -= low
        positions, steps_left = last_ids - low, self.length - 1
        while steps_left:
            if steps_left & 1:
                positions = jump[positions]
            jump, steps_left = jump[jump], steps_left >> 1
        return starts[positions >= 0]
