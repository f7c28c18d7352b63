"""SampledJobs: a job of a sweep with each value of each key, to check all values before the sweep starts."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from trieye.config.hydra.axes import typed
from trieye.config.hydra.conditions import Conditions, same_value
from trieye.config.sweeper import SweeperConfig

_MOST_TRIES = 10_000


class SampledJobs:
    """Finds jobs by one of their values, with respect to zipped keys, exclusions and conditions.

    Args:
        keys: The keys, without prefixes.
        words: The overrides of each key, one per value.
        options: The options of the sweeper.
    """

    def __init__(self, keys: Sequence[str], words: Sequence[Sequence[str]], options: SweeperConfig) -> None:
        self._keys, self._words = keys, words
        self._conditions = Conditions.of(options.when or {})
        groups = [list(map(_bare, group)) for group in options.zip]
        self._zipped = [[at for at, key in enumerate(keys) if key in group] for group in groups]
        self._excluded = [{_bare(key): typed(value) for key, value in each.items()} for each in options.exclude]
        restricted = {*self._conditions.keys(), *itertools.chain(*self._excluded)}
        self._dependent = {at for at, key in enumerate(keys) if key in restricted}.union(*self._zipped)

    def is_dependent(self, index: int) -> bool:
        """Return whether values of a key restrict other keys."""
        return index in self._dependent

    def first(self) -> list[str]:
        """Return the overrides of a job."""
        positions = next(self._allowed([0] * len(self._keys), range(len(self._keys))), [0] * len(self._keys))
        return self._active(positions)

    def with_value(self, index: int, position: int) -> list[str] | None:
        """Return the overrides of a job with a value of a key; None if no job has it."""
        positions = [0] * len(self._keys)
        fixed_keys = self._put(positions, index, position)
        free_keys = [at for at in range(len(self._keys)) if at not in fixed_keys]
        return next(map(self._active, self._allowed(positions, free_keys)), None)

    def _put(self, positions: list[int], index: int, position: int) -> set[int]:
        """Set a value, the values that are zipped with it, and values that its key requires; return their keys."""
        group = next((group for group in self._zipped if index in group), [index])
        fixed_keys = set(group)
        for at in group:
            positions[at] = min(position, len(self._words[at]) - 1)
        for key, allowed in ((k, v) for at in group for k, v in self._conditions.when.get(self._keys[at], {}).items()):
            for other in (at for at, other_key in enumerate(self._keys) if other_key == key and at not in fixed_keys):
                choices = (at for at, word in enumerate(self._words[other]) if _is_one_of(word, allowed))
                fixed_keys |= self._put(positions, other, next(choices, 0))
        return fixed_keys

    def _allowed(self, positions: Sequence[int], free_keys: Iterable[int]) -> Iterator[list[int]]:
        """Yield positions that no exclusion contains, which differ in keys of exclusions."""
        names = {key for each in self._excluded for key in each}
        varied_keys = [at for at in free_keys if self._keys[at] in names]
        choices = itertools.product(*(range(len(self._words[at])) for at in varied_keys))
        for values in itertools.islice(choices, _MOST_TRIES):
            job_positions = list(positions)
            for at, position in zip(varied_keys, values, strict=True):
                self._put(job_positions, at, position)
            if not self._is_excluded(self._values(self._active(job_positions))):
                yield job_positions

    def _is_excluded(self, values: Mapping[str, str]) -> bool:
        return any(
            all(key in values and same_value(values[key], value) for key, value in each.items())
            for each in self._excluded
        )

    def _active(self, positions: Sequence[int]) -> list[str]:
        """Return the overrides of the keys that exist."""
        words = [choices[position] for choices, position in zip(self._words, positions, strict=True)]
        values = self._values(words)
        pairs = zip(self._keys, words, strict=True)
        return [word for key, word in pairs if self._conditions.is_active(key, values)]

    @staticmethod
    def _values(words: Iterable[str]) -> dict[str, str]:
        return {_bare(key): value for key, _, value in (word.partition("=") for word in words)}


def _bare(key: str) -> str:
    return key.lstrip("+~")


def _is_one_of(word: str, allowed: Iterable[str]) -> bool:
    return any(same_value(word.partition("=")[2], value) for value in allowed)
