"""Grid: the jobs of a sweep by index, computed without a list of all jobs."""

import hashlib
import itertools
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import NotRequired, Self, TypedDict

from trieye.config.base import did_you_mean
from trieye.config.hydra.conditions import NO_CONDITIONS, Conditions, positions_of, same_value
from trieye.config.hydra.override_text import bare, values_of
from trieye.config.redaction import redacted_override, redacted_values
from trieye.exceptions import ConfigurationError
from trieye.renames import current_override
from trieye.sweeps.numbering import Numbering

_MOST_SHOWN = 10
_LONGEST_NUMBER = 8
_FRACTION = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class Axis:
    """One varying key, or several keys that vary together.

    Attributes:
        keys: The keys, as typed.
        places: The positions along the axis, each with a value per key, as typed.
    """

    keys: tuple[str, ...]
    places: tuple[tuple[str, ...], ...]

    def overrides(self, position: int) -> tuple[str, ...]:
        """Return the overrides at a position along the axis."""
        return tuple(f"{key}={value}" for key, value in zip(self.keys, self.places[position], strict=True))

    def spelled_like(self, other: Self) -> Self:
        """Return the axis with the spelling of another axis at each position where both have the same values."""
        pairs = zip(self.places, other.places, strict=False)
        places = (now if all(map(same_value, old, now)) else old for old, now in pairs)
        return replace(self, places=(*places, *self.places[len(other.places) :]))

    def in_the_order_of(self, other: Self) -> Self:
        """Return another axis with the same keys if it has the same values of each key, else this axis."""
        own_values, other_values = (
            [sorted(values) for values in zip(*axis.places, strict=True)] for axis in (self, other)
        )
        return other if own_values == other_values else self


class PlainGrid(TypedDict):
    """A `Grid` in JSON."""

    axes: tuple[Axis, ...]
    without: tuple[dict[str, str], ...]
    when: NotRequired[dict[str, dict[str, tuple[str, ...]]]]
    growth: NotRequired[tuple[tuple[int, ...], ...]]


@dataclass(frozen=True)
class Grid:
    """All combinations of its axes, indexed from 0; the last axis varies fastest, as in Hydra's sweeps.

    A job that is excluded, or that equals an earlier job without its inactive keys, keeps its index, so neither
    renumbers anything. Jobs that growth adds follow all earlier jobs, whichever axis grows.

    Attributes:
        axes: The axes; an axis with a single position is a constant key.
        without: Excluded combinations: values by key, as typed; unnamed keys may have any value.
        conditions: Keys that exist only with certain values of other keys.
        growth: Earlier lengths of the axes, oldest first.
    """

    axes: tuple[Axis, ...]
    without: tuple[Mapping[str, str], ...] = ()
    conditions: Conditions = NO_CONDITIONS
    growth: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        for combination in self.without:
            for key, value in combination.items():
                self._positions(key, value)
        self.conditions.check(
            {
                key: [values[column] for values in self.axes[axis].places]
                for key, (axis, column) in self._columns.items()
            }
        )

    @cached_property
    def size(self) -> int:
        """Number of jobs, including jobs that are left out."""
        return math.prod(len(axis.places) for axis in self.axes)

    @property
    def num_jobs(self) -> int:
        """Number of jobs to run."""
        return sum(1 for _ in self) if self.without or self.conditions else self.size

    def samples(self) -> list[int]:
        """Return the first job, and jobs that differ from it in the value of a single key or zipped keys."""
        first_index, stride, strides = next(iter(self), None), 1, []
        for axis in reversed(self.axes):
            strides.append(stride)
            stride *= len(axis.places)
        indices = (index for index in dict.fromkeys(strides) if index < self.size and not self.is_left_out(index))
        return [] if first_index is None else [first_index, *(index for index in indices if index != first_index)]

    @cached_property
    def varying(self) -> tuple[str, ...]:
        """The keys with more than one value."""
        return tuple(key for axis in self.axes if len(axis.places) > 1 for key in axis.keys)

    @cached_property
    def _numbering(self) -> Numbering:
        return Numbering.of([*self.growth, tuple(len(axis.places) for axis in self.axes)])

    def __getitem__(self, index: int) -> tuple[str, ...]:
        """Return the overrides of a job.

        Raises:
            IndexError: The index is out of range.
        """
        words: tuple[str, ...] = sum(
            (self._overrides[axis][position] for axis, position in enumerate(self._place(index))), ()
        )
        if not self.conditions:
            return words
        values = self.conditions.active(self.all_values(index))
        return tuple(word for word in words if bare(word.partition("=")[0]) in values)

    @cached_property
    def _overrides(self) -> list[list[tuple[str, ...]]]:
        """Overrides at each position along each axis."""
        return [[axis.overrides(position) for position in range(len(axis.places))] for axis in self.axes]

    def _place(self, index: int) -> tuple[int, ...]:
        """Return the position of a job along each axis."""
        if not 0 <= index < self.size:
            raise IndexError(f"job {index} does not exist: the sweep has jobs 0 to {self.size - 1}")
        return self._numbering.positions(index)

    def all_values(self, index: int) -> dict[str, str]:
        """Return the values of a job by key without Hydra's prefixes, including constant and inactive keys."""
        positions = self._place(index)
        return {key: self.axes[axis].places[positions[axis]][column] for key, (axis, column) in self._columns.items()}

    def values(self, index: int) -> dict[str, str]:
        """Return the varying values of a job, by key without Hydra's prefixes."""
        varying_keys = {bare(key) for key in self.varying}
        active_values = self.conditions.active(self.all_values(index))
        return {key: value for key, value in active_values.items() if key in varying_keys}

    def is_left_out(self, index: int) -> bool:
        """Return whether `without` excludes a job, or whether it equals an earlier job because of inactive keys."""
        if not (self.without or self.conditions):
            return False
        active_values = self.conditions.active(self.all_values(index))
        return self._is_excluded(active_values) or self._is_repetition(index, active_values)

    def _is_excluded(self, active_values: Mapping[str, str]) -> bool:
        return any(
            all(
                bare(key) in active_values and same_value(active_values[bare(key)], value)
                for key, value in combination.items()
            )
            for combination in self.without
        )

    @cached_property
    def _conditional_axes(self) -> list[int]:
        conditional_keys = self.conditions.when.keys()
        return [index for index, axis in enumerate(self.axes) if not conditional_keys.isdisjoint(map(bare, axis.keys))]

    def _is_repetition(self, index: int, active_values: Mapping[str, str]) -> bool:
        positions = self._place(index)
        for axis, position in ((self.axes[axis_index], positions[axis_index]) for axis_index in self._conditional_axes):
            columns = [column for column, key in enumerate(axis.keys) if bare(key) in active_values]
            if position and len(columns) < len(axis.keys):
                values = [tuple(row[column] for column in columns) for row in axis.places[: position + 1]]
                if values[-1] in values[:-1]:
                    return True
        return False

    def __iter__(self) -> Iterator[int]:
        """Iterate over the indices of the jobs to run."""
        return (index for index in range(self.size) if not self.is_left_out(index))

    def find(self, wanted_values: Mapping[str, str]) -> Iterator[int]:
        """Yield the indices of the jobs with these values, in order.

        Args:
            wanted_values: Values by key; unnamed keys may have any value.

        Raises:
            ConfigurationError: No axis has the key or the value.
        """
        allowed: list[Sequence[int]] = [range(len(axis.places)) for axis in self.axes]
        for key, value in wanted_values.items():
            axis_index, positions = self._positions(key, value)
            allowed[axis_index] = [position for position in allowed[axis_index] if position in positions]
        indices: Iterable[int] = map(self._numbering.index, itertools.product(*allowed))
        for index in sorted(indices) if self.growth else indices:
            if not self.is_left_out(index) and self._has_keys(index, wanted_values):
                yield index

    def _has_keys(self, index: int, keys: Iterable[str]) -> bool:
        if not self.conditions:
            return True
        active_values = self.conditions.active(self.all_values(index))
        return all(bare(key) in active_values for key in keys)

    @cached_property
    def _columns(self) -> dict[str, tuple[int, int]]:
        """Index of the axis and of the column of each key without prefixes."""
        columns: dict[str, tuple[int, int]] = {}
        for axis_index, axis in enumerate(self.axes):
            for column, name in enumerate(axis.keys):
                if len(axis.places) > 1 or bare(name) not in columns:  # `x=1,2 ~x` has two axes of x
                    columns[bare(name)] = (axis_index, column)
        return columns

    def _positions(self, key: str, value: str) -> tuple[int, list[int]]:
        """Return the index of the axis with a key, and the positions along it with a value."""
        columns = self._columns
        if bare(key) not in columns:
            raise ConfigurationError(
                f"{key}: the sweep has no such axis{did_you_mean(key, columns)} (axes: {', '.join(columns) or 'none'})"
            )
        axis_index, column = columns[bare(key)]
        values = [position[column] for position in self.axes[axis_index].places]
        positions = positions_of(key, value, values)
        if not positions:
            values_text = ", ".join([*values[:_MOST_SHOWN], *(["..."] if len(values) > _MOST_SHOWN else [])])
            raise ConfigurationError(f"{key}={value}: the sweep has no such value (values of {key}: {values_text})")
        return axis_index, positions

    @property
    def fingerprint(self) -> str:
        """A short hash of everything that determines the indices of jobs."""
        text = json.dumps(self.plain(), default=asdict, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def without_secrets(self) -> Self:
        """Return the grid with secrets replaced by `***`, for storage."""
        axes = []
        for axis in self.axes:
            columns = map(redacted_values, axis.keys, zip(*axis.places, strict=True))
            axes.append(Axis(axis.keys, tuple(zip(*columns, strict=True))))
        without = tuple(
            {key: redacted_values(key, [value])[0] for key, value in combination.items()}
            for combination in self.without
        )
        return replace(self, axes=tuple(axes), without=without)

    def plain(self) -> PlainGrid:
        """Return a dict that msgspec stores as JSON, and that `of_plain` converts back."""
        plain: PlainGrid = {"axes": self.axes, "without": tuple(map(dict, self.without))}
        if self.conditions:
            plain["when"] = {key: dict(condition) for key, condition in self.conditions.when.items()}
        if self.growth:
            plain["growth"] = self.growth
        return plain

    @classmethod
    def of_plain(cls, plain: PlainGrid) -> Self:
        """Return the grid of a dict from `plain`."""
        return cls(plain["axes"], plain["without"], Conditions(plain.get("when", {})), plain.get("growth", ()))

    def renamed_like(self, other: Self) -> Self:
        """Return a stored grid with the current names of its keys, where another grid of the sweep uses these."""
        keys = {bare(key) for axis in other.axes for key in axis.keys}
        axes = (Axis(tuple(current_override(key, keys) for key in axis.keys), axis.places) for axis in self.axes)
        without = ({current_override(key, keys): value for key, value in item.items()} for item in self.without)
        conditions = Conditions(
            {
                current_override(key, keys): {
                    current_override(name, keys): values for name, values in condition.items()
                }
                for key, condition in self.conditions.when.items()
            }
        )
        return replace(self, axes=tuple(axes), without=tuple(without), conditions=conditions)

    def spelled_like(self, other: Self) -> Self:
        """Return a stored grid with the values as another grid spells them: `'1e3'` where this grid has `1000.0`.

        A plan does not know the types of the program's keys, which quotes numbers in texts.
        """
        other_axes = {axis.keys: axis for axis in other.axes}
        axes = (axis.spelled_like(other_axes[axis.keys]) if axis.keys in other_axes else axis for axis in self.axes)
        return replace(self, axes=tuple(axes))

    def with_constants_of(self, other: Self, keys: Collection[str]) -> Self:
        """Return this grid with the constant axes of another grid for these keys."""

        def is_constant(axis: Axis) -> bool:
            return len(axis.keys) == len(axis.places) == 1 and bare(axis.keys[0]) in keys

        axis_indices = [axis_index for axis_index, axis in enumerate(self.axes) if not is_constant(axis)]
        axes = [self.axes[axis_index] for axis_index in axis_indices]
        growth = [[lengths[axis_index] for axis_index in axis_indices] for lengths in self.growth]
        for axis_index, axis in enumerate(other.axes):
            if is_constant(axis):
                axes.insert(axis_index, axis)
                for lengths in growth:
                    lengths.insert(axis_index, 1)
        return replace(self, axes=tuple(axes), growth=tuple(map(tuple, growth)))

    def grown_from(self, old_grid: Self) -> Self | None:
        """Return this grid with the indices of an earlier, smaller grid; None if a job of that grid differs."""
        if [axis.keys for axis in self.axes] != [axis.keys for axis in old_grid.axes]:
            return None
        lengths = tuple(len(axis.places) for axis in old_grid.axes)
        if any(now.places[: len(old.places)] != old.places for now, old in zip(self.axes, old_grid.axes, strict=True)):
            return None
        stages = Numbering.of([*old_grid.growth, lengths, tuple(len(axis.places) for axis in self.axes)]).stages
        result = replace(self, growth=stages[:-1])
        is_same = self.conditions == old_grid.conditions or all(result[index] == old_grid[index] for index in old_grid)
        return result if is_same else None

    def first_difference(self, old_grid: Self) -> int:
        """Return the index of the first job of an earlier grid that differs or is missing here."""
        common_size = min(self.size, old_grid.size)
        return next((index for index in range(common_size) if self[index] != old_grid[index]), common_size)

    def in_the_order_of(self, old_grid: Self, keys: set[str]) -> Self:
        """Return the grid with the value order of an earlier grid along axes that have the same values.

        Args:
            old_grid: The earlier grid.
            keys: Axes that may be reordered, by one of their keys as typed.
        """
        old_axes = {axis.keys: axis for axis in old_grid.axes}
        axes = (
            axis.in_the_order_of(old_axes[axis.keys])
            if axis.keys in old_axes and not keys.isdisjoint(axis.keys)
            else axis
            for axis in self.axes
        )
        return replace(self, axes=tuple(axes))


def shown(overrides: Iterable[str], varying: Iterable[str]) -> list[str]:
    """Format the overrides of varying keys for display, without secrets and with the last part of each key."""
    values = values_of(map(redacted_override, overrides)).items()
    return [f"{key.rpartition('.')[2]}={short(value)}" for key, value in values if key in varying]


def short(value: str) -> str:
    """Format a value for display; long decimal fractions get four significant digits."""
    is_long = len(value) > _LONGEST_NUMBER and _FRACTION.fullmatch(value)
    return f"{float(value):.4g}" if is_long else value


def headings(keys: Sequence[str]) -> list[str]:
    """Return column headings of keys: their last part, or the full key where that is ambiguous."""
    lasts = [key.rpartition(".")[2] for key in keys]
    return [last if lasts.count(last) == 1 else key for key, last in zip(keys, lasts, strict=True)]
