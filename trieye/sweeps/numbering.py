"""Numbering: the index of each combination of positions along axes, which does not change when an axis grows."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Numbering:
    """Indices of all combinations of positions.

    The combinations of the first stage come first, followed by those that each later stage adds. Within a stage, the
    last axis varies fastest.

    Attributes:
        stages: Lengths of the axes at each stage, oldest first; no axis shrinks.
    """

    stages: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, stages: Sequence[tuple[int, ...]]) -> "Numbering":
        """Return the numbering without stages that have no effect, because only the slowest axis grew after them."""
        kept_stages = [stages[-1]]
        for stage in reversed(stages[:-1]):
            if not _grows_at_the_end(stage, kept_stages[0]):
                kept_stages.insert(0, stage)
        return cls(tuple(kept_stages))

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        return tuple(math.prod(stage) for stage in self.stages)

    @cached_property
    def _axes(self) -> tuple[tuple[tuple[int, int, int], ...], ...]:
        """For each stage and axis, `old`, `added` and `step`.

        `old` is the length of the axis in the previous stage. A position below it is followed by `added` combinations
        of this stage if all slower axes are at old positions too, and every other position by `step` combinations.
        """
        tables, before = [], tuple(0 for _ in self.stages[0])
        for stage in self.stages:
            steps = [math.prod(stage[axis + 1 :]) for axis in range(len(stage))]
            old_steps = [math.prod(before[axis + 1 :]) if axis + 1 < len(before) else 1 for axis in range(len(stage))]
            added = (step - old_step for step, old_step in zip(steps, old_steps, strict=True))
            tables.append(tuple(zip(before, added, steps, strict=True)))
            before = stage
        return tuple(tables)

    def positions(self, index: int) -> tuple[int, ...]:
        """Return the position along each axis of a combination.

        Args:
            index: From 0, below the number of combinations of the last stage.
        """
        stage = bisect_right(self._ends, index)
        offset = index - (self._ends[stage - 1] if stage else 0)
        positions, is_old = [], True
        for old, added, step in self._axes[stage]:
            if is_old and offset < old * added:
                position, offset = divmod(offset, added)
            else:
                offset -= old * added if is_old else 0
                position, offset = divmod(offset, step)
                position += old if is_old else 0
                is_old = False
            positions.append(position)
        return tuple(positions)

    def index(self, positions: Sequence[int]) -> int:
        """Return the index of a combination."""
        stage = next(
            stage_index
            for stage_index, lengths in enumerate(self.stages)
            if all(position < length for position, length in zip(positions, lengths, strict=True))
        )
        index, is_old = self._ends[stage - 1] if stage else 0, True
        for position, (old, added, step) in zip(positions, self._axes[stage], strict=True):
            if is_old and position < old:
                index += position * added
            else:
                index += old * added + (position - old) * step if is_old else position * step
                is_old = False
        return index


def _grows_at_the_end(old_lengths: Sequence[int], new_lengths: Sequence[int]) -> bool:
    """Return whether growth changes the index of no combination even without a separate stage."""
    axes = [axis for axis, (old, new) in enumerate(zip(old_lengths, new_lengths, strict=True)) if old != new]
    return not axes or (len(axes) == 1 and all(length == 1 for length in new_lengths[: axes[0]]))
