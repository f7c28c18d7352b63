"""SampledJobs: a job of a sweep with each value of each key, to check all values before the sweep starts."""

import itertools
from collections.abc import Iterable, Mapping, Sequence

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
        self._conditions.check_keys([*(["seed"] if options.seeds else []), *own_keys])
        self._groups: dict[int, list[int]] = {}
        for zipped_keys in (list(map(bare, group)) for group in options.zip):
            group = [at for at, key in enumerate(self._keys) if key in zipped_keys]
            group = sorted({other for at in group for other in self._group(at)})  # of groups that share a key
            self._groups |= dict.fromkeys(group, group)
        self._excluded = [{bare(key): typed(value) for key, value in each.items()} for each in options.exclude]
        excluded_keys = {key for each in self._excluded for key in each}
        self._varied = {self._group(at)[0] for at, key in enumerate(self._keys) if key in excluded_keys}
        self.is_restricted = bool(self._conditions or options.zip or self._excluded)

    def first(self) -> list[str]:
        """Return the overrides of a job; of the first values if exclusions leave none."""
        return self._job({}) or self._active([0] * len(self._keys))

    def with_value(self, index: int, position: int) -> list[str] | None:
        """Return the overrides of a job with a value of a key; None if there is none."""
        fixed: dict[int, int] = {}
        self._fix(fixed, index, position)
        return self._job(fixed)

    def _group(self, index: int) -> list[int]:
        """Return a key and the keys that vary together with it."""
        return self._groups.get(index, [index])

    def _fix(self, fixed: dict[int, int], index: int, position: int) -> None:
        """Set a value, the values that are zipped with it, and values that its key requires, unless they are set."""
        group = self._group(index)
        for at in group:
            fixed.setdefault(at, min(position, len(self._words[at]) - 1))
        for condition in (self._conditions.when.get(self._keys[at], {}) for at in group):
            for key, allowed in condition.items():
                for other in (at for at, name in enumerate(self._keys) if name == key and at not in fixed):
                    choices = (at for at, word in enumerate(self._words[other]) if _has_any_of(word, allowed))
                    self._fix(fixed, other, next(choices, 0))

    def _job(self, fixed: Mapping[int, int]) -> list[str] | None:
        """Return the overrides of a job with fixed positions; exclusions vary the others."""
        if self._is_excluded(word for at, word in enumerate(self._at(fixed)) if at in fixed):
            return None
        free_keys = [at for at in sorted(self._varied) if at not in fixed]
        choices = itertools.product(*(range(len(self._words[at])) for at in free_keys))
        for positions in itertools.islice(choices, _MOST_TRIES):
            by_key = {
                other: min(position, len(self._words[other]) - 1)
                for at, position in zip(free_keys, positions, strict=True)
                for other in self._group(at)
            }
            words = self._active([(by_key | dict(fixed)).get(at, 0) for at in range(len(self._keys))])
            if not self._is_excluded(words):
                return words
        return None

    def _at(self, positions: Mapping[int, int]) -> list[str]:
        return [words[positions.get(at, 0)] for at, words in enumerate(self._words)]

    def _is_excluded(self, words: Iterable[str]) -> bool:
        values = values_of(words) if self._excluded else {}
        return any(
            all(key in values and same_value(values[key], value) for key, value in each.items())
            for each in self._excluded
        )

    def _active(self, positions: Sequence[int]) -> list[str]:
        """Return the overrides of the keys that exist."""
        words = self._at(dict(enumerate(positions)))
        if not self._conditions:
            return words
        values = values_of(words)
        return [word for key, word in zip(self._keys, words, strict=True) if self._conditions.is_active(key, values)]


def _has_any_of(word: str, allowed: Iterable[str]) -> bool:
    return any(same_value(word.partition("=")[2], value) for value in allowed)
