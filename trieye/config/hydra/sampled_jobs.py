"""SampledJobs: a job of a sweep with each value of each key, to check all values before the sweep starts."""

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache

from trieye.config.hydra.axes import typed
from trieye.config.hydra.conditions import Conditions, same_value
from trieye.config.hydra.override_text import bare, values_of
from trieye.config.sweeper import SweeperConfig

_MOST_TRIES = 10_000


class SampledJobs:
    """Finds jobs by one of their values, with respect to zipped keys, exclusions and conditions.

    Args:
        keys: The keys, as typed.
        words: The overrides of each key, one per value.
        options: The options of the sweeper.

    Raises:
        ConfigurationError: A condition has an unknown key.

    Attributes:
        is_restricted: Whether the sweep lacks some combinations of its values.
    """

    def __init__(self, keys: Sequence[str], words: Sequence[Sequence[str]], options: SweeperConfig) -> None:
        self._keys, self._words = list(map(bare, keys)), words
        self._conditions = Conditions.of(options.when or {})
        own_keys = dict.fromkeys(key for key in self._keys if not key.startswith(("hydra.", "hydra/")))
        self._conditions.check_keys(list(own_keys))
        self._axes = [[index] for index in range(len(keys))]  # indices of keys that vary together
        for group in options.zip:
            zipped_axes = [axis for axis in self._axes if self._has_any(axis, set(map(bare, group)))]
            other_axes = [axis for axis in self._axes if axis not in zipped_axes]
            self._axes = [*other_axes, list(itertools.chain(*zipped_axes))]
        self._excluded = [{bare(key): typed(value) for key, value in each.items()} for each in options.exclude]
        self.is_restricted = bool(self._conditions or options.zip or self._excluded)
        restricting_keys = self._conditions.others().union(*self._excluded)
        self._restricting_axes = [axis for axis in self._axes if self._has_any(axis, restricting_keys)]
        self._restricting_axes.sort(key=lambda axis: self._has_any(axis, self._conditions.others()))

    def _has_any(self, axis: Sequence[int], keys: Collection[str]) -> bool:
        return any(self._keys[index] in keys for index in axis)

    def first(self) -> list[str]:
        """Return the overrides of a job; of the first values if exclusions leave none."""
        return next(self._jobs({}), None) or self._active({})

    def with_value(self, index: int, position: int) -> list[str] | None:
        """Return the overrides of a job with a value of a key; None if there is none."""
        axis = next(axis for axis in self._axes if index in axis)
        jobs = self._jobs(dict.fromkeys(axis, position), self._keys[index])
        return next((job for job in jobs if self._words[index][position] in job), None)

    def _jobs(self, fixed: Mapping[int, int], key: str = "") -> Iterator[list[str]]:
        """Yield the overrides of jobs with some fixed positions; the values that conditions read vary fastest.

        Args:
            fixed: Positions of keys, by index.
            key: Only values that its condition allows are tried.
        """
        axes = [axis for axis in self._restricting_axes if axis[0] not in fixed]
        choices = [(axis, self._positions(tuple(axis), key)) for axis in axes]
        num_tries = itertools.count()

        def tried(positions: Mapping[int, int], depth: int) -> Iterator[Mapping[int, int]]:
            if depth == len(choices):
                yield positions
                return
            axis, axis_positions = choices[depth]
            for position in axis_positions:
                if next(num_tries) >= _MOST_TRIES:
                    return
                more_positions = {**positions, **dict.fromkeys(axis, position)}
                if not self._is_excluded_early(more_positions):
                    yield from tried(more_positions, depth + 1)

        for positions in tried(fixed, 0):
            job = self._active(positions)
            if not self._is_excluded(job):
                yield job

    @cache  # noqa: B019 - as long as the check of a command line
    def _positions(self, axis: tuple[int, ...], key: str) -> Sequence[int]:
        """Return the positions along an axis that the condition of a key allows."""
        positions: Sequence[int] = range(max(len(self._words[index]) for index in axis))
        allowed = self._allowed(key)
        for index in (index for index in axis if self._keys[index] in allowed):
            texts = {position: self._word(index, position).partition("=")[2] for position in positions}
            values = allowed[self._keys[index]]
            positions = [at for at, text in texts.items() if any(same_value(text, value) for value in values)]
        return positions

    def _allowed(self, key: str) -> dict[str, tuple[str, ...]]:
        """Return the values of other keys that the conditions of a key, and of the keys that these read, allow."""
        condition = dict(self._conditions.when.get(key, {}))
        for other_key in list(condition):
            condition = {**self._allowed(other_key), **condition}
        return condition

    def _is_excluded_early(self, positions: Mapping[int, int]) -> bool:
        """Return whether some positions alone exclude a job, without keys that conditions may omit."""
        values = {self._keys[index]: self._word(index, position) for index, position in positions.items()}
        return any(
            all(
                key in values and key not in self._conditions.when and same_value(values[key].partition("=")[2], value)
                for key, value in each.items()
            )
            for each in self._excluded
        )

    def _word(self, index: int, position: int) -> str:
        words = self._words[index]
        return words[min(position, len(words) - 1)]

    def _is_excluded(self, words: Iterable[str]) -> bool:
        values = values_of(words) if self._excluded else {}
        return any(
            all(key in values and same_value(values[key], value) for key, value in each.items())
            for each in self._excluded
        )

    def _active(self, positions: Mapping[int, int]) -> list[str]:
        """Return the overrides of the keys that exist; zipped keys may have different numbers of values."""
        words = [self._word(index, positions.get(index, 0)) for index in range(len(self._words))]
        if not self._conditions:
            return words
        values = values_of(words)
        return [word for key, word in zip(self._keys, words, strict=True) if self._conditions.is_active(key, values)]
