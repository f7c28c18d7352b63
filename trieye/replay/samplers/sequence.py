"""SequenceSampler: consecutive rows of one episode."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trieye.exceptions import ConfigurationError
from trieye.replay.rows.episodes import EpisodeLinks
from trieye.replay.samplers.base import Draw, Ids, RowSampler, UniformSampler
from trieye.replay.samplers.prioritized import PrioritizedSampler

_LEAST_SHARE = 1 / 64  # of the proposals that are taken; a guess below it would ask for very many at once


class SequenceSampler:
    """Draws sequences of `length` rows that follow each other in one episode; every possible start is drawn alike.

    Nothing is kept about the possible starts, so adding a row costs nothing: starts are proposed and refused. Where
    hardly any row starts a sequence, all rows are looked at, at the price of some milliseconds for each million.
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
        """Make a sampler.

        Args:
            links: Which row follows which; with `count_steps` if `period` is above 1.
            length: Rows in a sequence.
            period: Only each `period`-th row of an episode, from its first one on, starts a sequence; two sequences
                share at most `length - period` rows.
            cross_episodes: Let a sequence go on with the next episode of the same environment.
            pad: Let a sequence be shorter than `length`; its ids are filled up with -1, and the mask is False there.
            starts: Draws the first rows, by their priorities for instance; uniformly if None.

        Raises:
            ConfigurationError: The length or the period is below 1.
        """
        if length < 1 or period < 1:
            raise ConfigurationError(f"sequences of length {length} and period {period}: both must be at least 1")
        self.length, self.period, self.pad, self.cross_episodes = length, period, pad, cross_episodes
        self.starts = starts or UniformSampler()
        self._links = links
        self._possible: tuple[tuple[int, int], Ids] | None = None  # starts in the rows [low, high), as last looked up
        self._share = 1.0  # of the proposals that were taken lately

    def added(self, first_id: int, count: int) -> None:
        """Tell the sampler of the starts."""
        self.starts.added(first_id, count)

    def forgot(self, low_id: int) -> None:
        """Tell the sampler of the starts."""
        self.starts.forgot(low_id)

    def draw(self, n: int, low: int, high: int, rng: np.random.Generator) -> Draw:
        """Draw `n` sequences from the rows `[low, high)`.

        Raises:
            ConfigurationError: No sequence lies in these rows.
        """
        taken: list[Ids] = []
        missing, budget = n, max(high - low, n)
        while missing and budget > 0:
            count = min(int(missing * 1.2 / self._share) + 8, budget)
            try:
                proposed = self.starts.propose(count, low, high, rng)
            except ConfigurationError:
                break  # every chance is 0; whether any row starts a sequence is found out below
            found = self._complete(proposed)
            self._share = max((len(found) + 1) / (count + 1), _LEAST_SHARE)
            taken.append(found[:missing])
            missing -= len(taken[-1])
            budget -= count
        if missing:
            taken.append(self._links_of(self.starts.pick(missing, self._all_starts(low, high), rng)))
        ids = np.ascontiguousarray(np.concatenate(taken))  # the links come column by column
        draw = self.starts.judge(ids[:, 0], low, high)
        return Draw(ids, draw.weights, draw.info, ids >= 0 if self.pad else None, draw.scale)

    def discarded(self, ids: Ids, *, for_good: bool) -> None:
        """Tell the sampler of the starts."""
        self.starts.discarded(ids, for_good=for_good)

    def handed_out(self, draw: Draw) -> None:
        """Tell the sampler of the starts."""
        self.starts.handed_out(draw)

    def update(self, ids: Ids, priorities: ArrayLike) -> None:
        """Set priorities of first rows, `Draw.ids[:, 0]`."""
        self.starts.update(ids, priorities)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the sampler of the starts, and how many proposals to make."""
        return {"starts": self.starts.state_dict(), "share": self._share}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a saved state."""
        self.starts.load_state_dict(state["starts"])
        self._share, self._possible = float(state["share"]), None

    def _complete(self, starts: Ids) -> Ids:
        """Return the sequences, int64 `[m, length]`, of those rows that start one."""
        is_first = self._is_first(starts)
        ids = self._links_of(starts[is_first])
        is_whole = np.ones(len(ids), np.bool_) if self.pad else ids[:, -1] >= 0
        if isinstance(self.starts, PrioritizedSampler):
            cut = ids[~is_whole]
            hopeless = [starts[~is_first]] if self.cross_episodes else [starts[~is_first], self._ended_early(cut)]
            # with the priority of a new row for ever, they would crowd out those that are drawn and updated
            self.starts.set_chances(rows := np.concatenate(hopeless), np.zeros(len(rows), np.float32))
        return ids[is_whole]

    def _ended_early(self, ids: Ids) -> Ids:
        """Return the first rows of those sequences that will never be whole, as their episode ended."""
        last = ids[np.arange(len(ids)), (ids >= 0).sum(axis=1) - 1]
        return np.asarray(ids[self._links.has_ended(last), 0])

    def _links_of(self, starts: Ids) -> Ids:
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
                "add longer episodes, ask for shorter sequences, or let them be padded"
            )
        return self._possible[1]

    def _look_up(self, rows: Ids) -> Ids:
        starts = rows[self._is_first(rows)]
        if self.pad:
            return starts
        low, last = int(rows[0]), starts
        # the row 1, 2, 4, ... places further on, for each row; -1 at the end stands for none, and leads to itself
        jump = np.append(self._links.next_ids(rows, across=self.cross_episodes), -1)
        jump[jump >= 0] -= low
        at, left = last - low, self.length - 1
        while left:
            if left & 1:
                at = jump[at]
            jump, left = jump[jump], left >> 1
        return starts[at >= 0]
