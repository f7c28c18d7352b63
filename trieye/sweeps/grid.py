"""Grid: the jobs of a sweep by their number, without a list of them."""

import hashlib
import itertools
import json
import math
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from trieye.config.base import did_you_mean
from trieye.config.redaction import redacted
from trieye.exceptions import ConfigurationError

_MOST_SHOWN = 10
_LONGEST_NUMBER = 8
_LARGEST_TABLE = 1024
_SPACE = re.compile(r"(?<=[\[{,:]) +")
_WORDS = {"true": "true", "false": "false", "null": "null", "none": "null"}


@dataclass(frozen=True, slots=True)
class Axis:
    """What varies: one key, or several that vary together.

    Attributes:
        keys: As they are typed.
        places: What each place along the axis sets, a value for each key as it is typed.
    """

    keys: tuple[str, ...]
    places: tuple[tuple[str, ...], ...]

    def overrides(self, place: int) -> tuple[str, ...]:
        """Return what a place along the axis sets, as overrides."""
        return tuple(f"{key}={value}" for key, value in zip(self.keys, self.places[place], strict=True))

    def has_values_of(self, other: Self) -> bool:
        """Tell whether another axis has the same values for each key, in whatever order."""
        if self.keys != other.keys or len(self.places) != len(other.places):
            return False
        columns = zip(zip(*self.places, strict=True), zip(*other.places, strict=True), strict=True)
        return all(sorted(mine) == sorted(theirs) for mine, theirs in columns)

    def begins_with(self, other: Self) -> bool:
        """Tell whether it is another axis with further places at its end, or with none."""
        return self.keys == other.keys and self.places[: len(other.places)] == other.places


@dataclass(frozen=True)
class Grid:
    """All combinations of the places of its axes, numbered from 0; the last axis varies fastest, as in Hydra's sweeps.

    A job that is left out keeps its number, so that nothing is numbered anew by that.

    Attributes:
        axes: The axes; one with a single place is a key that does not vary.
        without: Combinations that are left out: values by key, as typed; a key that is not named may have any value.
    """

    axes: tuple[Axis, ...]
    without: tuple[Mapping[str, str], ...] = ()

    def __post_init__(self) -> None:
        for combination in self.without:
            for key, value in combination.items():
                self._places(key, value)

    @cached_property
    def size(self) -> int:
        """How many numbers there are, those of jobs that are left out among them."""
        return math.prod(len(axis.places) for axis in self.axes)

    @cached_property
    def varying(self) -> tuple[str, ...]:
        """The keys that have more than one value."""
        return tuple(key for axis in self.axes if len(axis.places) > 1 for key in axis.keys)

    @cached_property
    def _strides(self) -> tuple[int, ...]:
        strides, stride = [], 1
        for axis in reversed(self.axes):
            strides.append(stride)
            stride *= len(axis.places)
        return tuple(reversed(strides))

    def __getitem__(self, index: int) -> tuple[str, ...]:
        """Return the overrides of a job.

        Raises:
            IndexError: There is no such job.
        """
        self._check(index)
        words: tuple[str, ...] = ()
        for table in self._tables:
            index, place = divmod(index, len(table))
            words = table[place] + words
        return words

    @cached_property
    def _tables(self) -> list[list[tuple[str, ...]]]:
        """The overrides of neighbouring axes together, from the fastest on: a look-up takes 0.4 us for four axes."""
        tables: list[list[tuple[str, ...]]] = [[()]]
        for axis in reversed(self.axes):
            here = [axis.overrides(place) for place in range(len(axis.places))]
            if len(here) * len(tables[-1]) <= _LARGEST_TABLE:
                tables[-1] = [slow + fast for slow in here for fast in tables[-1]]
            else:
                tables.append(here)
        return tables

    def _check(self, index: int) -> None:
        if not 0 <= index < self.size:
            raise IndexError(f"job {index}: the sweep has the jobs 0 to {self.size - 1}")

    def places_of(self, index: int) -> tuple[int, ...]:
        """Return the place of a job along each axis.

        Raises:
            IndexError: There is no such job.
        """
        self._check(index)
        return tuple(index // stride % len(axis.places) for axis, stride in zip(self.axes, self._strides, strict=True))

    def values(self, index: int) -> dict[str, str]:
        """Return what varies in a job: values by key, without the marks of Hydra's grammar before it."""
        found: dict[str, str] = {}
        for axis, place in zip(self.axes, self.places_of(index), strict=True):
            if len(axis.places) > 1:
                found |= zip((bare(key) for key in axis.keys), axis.places[place], strict=True)
        return found

    def is_left_out(self, index: int) -> bool:
        """Tell whether a job is one of those that are not to run."""
        if not self.without:
            return False
        set_here = {
            bare(key): value
            for axis, place in zip(self.axes, self.places_of(index), strict=True)
            for key, value in zip(axis.keys, axis.places[place], strict=True)
        }
        return any(
            all(same_value(set_here[bare(key)], value) for key, value in combination.items())
            for combination in self.without
        )

    def __iter__(self) -> Iterator[int]:
        """Iterate over the numbers of the jobs that are to run."""
        return (index for index in range(self.size) if not self.is_left_out(index))

    def find(self, wanted: Mapping[str, str]) -> Iterator[int]:
        """Yield the numbers of the jobs with these values, in order.

        Args:
            wanted: Values by key; a key that is not named may have any value.

        Raises:
            ConfigurationError: No axis has a key or a value.
        """
        allowed: list[Sequence[int]] = [range(len(axis.places)) for axis in self.axes]
        for key, value in wanted.items():
            number, places = self._places(key, value)
            allowed[number] = [place for place in allowed[number] if place in places]
        for chosen in itertools.product(*allowed):
            index = sum(map(operator.mul, chosen, self._strides))
            if not self.is_left_out(index):
                yield index

    def _places(self, key: str, value: str) -> tuple[int, list[int]]:
        """Return the axis with a key, and the places along it with a value."""
        known: dict[str, tuple[int, int]] = {}
        for number, axis in enumerate(self.axes):
            for at, name in enumerate(axis.keys):
                if len(axis.places) > 1 or bare(name) not in known:  # `x=1,2 ~x` has two axes of x
                    known[bare(name)] = (number, at)
        if bare(key) not in known:
            raise ConfigurationError(
                f"{key}: the sweep has no such axis{did_you_mean(key, known)} (axes: {', '.join(known) or 'none'})"
            )
        number, at = known[bare(key)]
        values = [place[at] for place in self.axes[number].places]
        places = [place for place, held in enumerate(values) if same_value(held, value)]
        if not places:
            shown = ", ".join([*values[:_MOST_SHOWN], *(["..."] if len(values) > _MOST_SHOWN else [])])
            raise ConfigurationError(f"{key}={value}: the sweep has no such value (values of {key}: {shown})")
        return number, places

    @property
    def fingerprint(self) -> str:
        """A short hash of all that decides which number is which job."""
        held = json.dumps(self.plain(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(held.encode()).hexdigest()[:12]

    def without_secrets(self) -> Self:
        """Return the grid as it may be written down: with `***` in the place of secrets."""
        axes = []
        for axis in self.axes:
            columns = redacted(dict(zip(axis.keys, zip(*axis.places, strict=True), strict=True)))
            axes.append(Axis(axis.keys, tuple(zip(*columns.values(), strict=True))))
        return type(self)(tuple(axes), tuple(redacted(dict(combination)) for combination in self.without))

    def plain(self) -> dict[str, Any]:
        """Return it as what JSON can hold; `of_plain` makes it again."""
        return {
            "axes": [{"keys": axis.keys, "places": axis.places} for axis in self.axes],
            "without": [dict(combination) for combination in self.without],
        }

    @classmethod
    def of_plain(cls, held: Mapping[str, Any]) -> Self:
        """Return the grid that `plain` described."""
        axes = (Axis(tuple(axis["keys"]), tuple(map(tuple, axis["places"]))) for axis in held["axes"])
        return cls(tuple(axes), tuple(held["without"]))

    def first_renumbered(self, then: Self) -> int | None:
        """Return the first job of an earlier grid that has another number here, or none; None if all are as before."""
        pairs = list(zip(self.axes, then.axes, strict=False))
        grown = next((at for at, (now, before) in enumerate(pairs) if now != before), None)
        if len(self.axes) == len(then.axes):
            if grown is None:
                return None
            is_slowest = all(len(now.places) == 1 for now, _ in pairs[:grown])
            if (
                is_slowest
                and self.axes[grown + 1 :] == then.axes[grown + 1 :]
                and self.axes[grown].begins_with(then.axes[grown])
            ):
                return None
        both = min(self.size, then.size)
        gone = both if both < then.size else None
        return next((index for index in range(both) if self[index] != then[index]), gone)

    def in_the_order_of(self, then: Self, keys: set[str]) -> Self:
        """Return the grid with the order of an earlier one along axes with the same values.

        Args:
            then: The earlier grid.
            keys: Which axes may be put into another order, by one of their keys as typed.
        """
        before = {axis.keys: axis for axis in then.axes}
        axes = (
            before[axis.keys]
            if axis.keys in before and not keys.isdisjoint(axis.keys) and axis.has_values_of(before[axis.keys])
            else axis
            for axis in self.axes
        )
        return type(self)(tuple(axes), self.without)


def with_seeds(axes: Iterable[Axis], num: int, key: str = "seed") -> tuple[Axis, ...]:
    """Return axes with one more for repetitions, the slowest: whoever wants more of them later renumbers nothing.

    Args:
        axes: The others.
        num: How many seeds, from 0.
        key: What takes the seed.

    Raises:
        ConfigurationError: The number is not positive, or the key has an axis already.
    """
    axes = tuple(axes)
    if num < 1:
        raise ConfigurationError(f"seeds={num}: there has to be one")
    if any(key in map(bare, axis.keys) for axis in axes):
        raise ConfigurationError(f"{key} is an axis of the sweep already; leave it or the number of seeds out")
    return (Axis((key,), tuple((str(seed),) for seed in range(num))), *axes)


def zipped(axes: Iterable[Axis], groups: Iterable[Sequence[str]]) -> tuple[Axis, ...]:
    """Return axes of which some vary together, place by place; they stand where the first of them stood.

    Args:
        axes: The axes, with one key each.
        groups: Keys that vary together.

    Raises:
        ConfigurationError: A key has no axis, or those of a group are not of one length.
    """
    held = list(axes)
    for group in (list(map(bare, named)) for named in groups):
        by_key = {bare(key): axis for axis in held for key in axis.keys}
        for key in group:
            if key not in by_key:
                raise ConfigurationError(
                    f"zip={','.join(group)}: the sweep has no axis {key}{did_you_mean(key, by_key)} "
                    f"(axes: {', '.join(by_key) or 'none'})"
                )
        members = list(dict.fromkeys(by_key[key] for key in group))
        lengths = {key: len(by_key[key].places) for key in group}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{key} has {length}" for key, length in lengths.items())
            raise ConfigurationError(
                f"zip={','.join(group)}: keys that vary together need as many values each; {counts}"
            )
        places = tuple(sum(parts, ()) for parts in zip(*(axis.places for axis in members), strict=True))
        together = Axis(sum((axis.keys for axis in members), ()), places)
        at = min(held.index(axis) for axis in members)
        held = [
            together if number == at else axis
            for number, axis in enumerate(held)
            if number == at or axis not in members
        ]
    return tuple(held)


def bare(key: str) -> str:
    """Return a key without the marks of Hydra's grammar before it."""
    return key.lstrip("+~")


def shown(overrides: Iterable[str], varying: Iterable[str]) -> list[str]:
    """Return the overrides of keys that vary, each with the last part of its key, as people want to read them."""
    pairs = [word.partition("=") for word in overrides]
    return [f"{bare(key).rpartition('.')[2]}={short(value)}" for key, _, value in pairs if bare(key) in varying]


def short(value: str) -> str:
    """Return a value as people want to read it: a number with four digits that count."""
    try:
        return value if len(value) <= _LONGEST_NUMBER else f"{float(value):.4g}"
    except ValueError:
        return value


def same_value(one: str, other: str) -> bool:
    """Tell whether two values are the same, also where a number, a list or null is written in another way."""
    if one == other:
        return True
    try:
        return float(one) == float(other)
    except ValueError:
        return _simplest(one) == _simplest(other)


def _simplest(value: str) -> str:
    """Return a value as the grammar of Hydra writes it, also where it was written by YAML or Python; without quotes."""
    return _WORDS.get(value.casefold()) or _SPACE.sub("", value).strip("'\"")
