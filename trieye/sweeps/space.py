"""SearchSpace: the dimensions of a search, and the overrides of drawn values."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from trieye.config.hydra.axes import Dimension, dimensions_of
from trieye.config.hydra.conditions import NO_CONDITIONS, Conditions
from trieye.config.hydra.override_text import bare, values_of
from trieye.config.redaction import HIDDEN
from trieye.exceptions import ConfigurationError
from trieye.process.progress import say
from trieye.renames import current_override
from trieye.sweeps.record import OTHER_SWEEP

_LARGEST_CONDITION = 10_000
"""Largest integer of a range that a condition may require."""


@dataclass(frozen=True)
class SearchSpace:
    """The dimensions of a search, some of which may exist only with certain values of others.

    Attributes:
        dimensions: The dimensions; a dimension with a single choice is a constant key.
        conditions: The conditions of keys.
    """

    dimensions: tuple[Dimension, ...]
    conditions: Conditions = NO_CONDITIONS

    @classmethod
    def of(cls, dimensions: Sequence[Dimension], when: Mapping[str, Mapping[str, Any]] | None = None) -> Self:
        """Return the space with the conditions of `hydra.sweeper.when`.

        Raises:
            ConfigurationError: A condition has an unknown key, or cannot hold.
        """
        conditions = Conditions.of(when or {})
        conditions.check({bare(axis.key): _choices(axis) for axis in dimensions})
        return cls(tuple(dimensions), conditions)

    @cached_property
    def order(self) -> list[str]:
        """The keys, each after the keys that its condition reads."""
        return self.conditions.order([bare(axis.key) for axis in self.dimensions])

    def constants(self) -> dict[str, str]:
        """Return the values of the constant keys."""
        return {bare(axis.key): axis.choices[0] for axis in self.dimensions if len(axis.choices) == 1}

    def overrides(self, values: Mapping[str, str]) -> tuple[str, ...]:
        """Return the overrides of the keys that exist with these values."""
        active = self.conditions.active(values)
        keys = ((axis.key, bare(axis.key)) for axis in self.dimensions)
        return tuple(f"{key}={active[name]}" for key, name in keys if name in active)

    def resumed(self, index: int, recorded: Sequence[str]) -> tuple[str, ...]:
        """Return the recorded drawn values, and constants, which may be secrets, from the current command."""
        values = self.constants() | values_of(recorded)
        constants = {
            bare(axis.key): f"{axis.key}={axis.choices[0]}"
            for axis in self.dimensions
            if len(axis.choices) == 1 and self.conditions.is_active(bare(axis.key), values)
        }
        words = [constants.pop(bare(word.partition("=")[0]), word) for word in recorded]
        if hidden := next((word for word in words if HIDDEN in word), None):
            key = hidden.partition("=")[0]
            raise ConfigurationError(f"job {index}: {hidden}: secrets are not recorded; add {key}=VALUE to the command")
        return (*words, *constants.values())


def check_search(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    directory: Path,
    *,
    budget: Sequence[str] = (),
    config_loader: Any = None,
) -> None:
    """Check that a resumed search differs from its earlier start by a larger space only; print the larger keys.

    Args:
        before: The search of its record; empty for a grid.
        now: The same of this start.
        directory: Directory of the sweep.
        budget: Keys that may change.
        config_loader: Lists the options of a group for `glob(*)`.

    Raises:
        ConfigurationError: Something else differs.
    """
    before, space = before or {"kind": "grid"}, now.get("space", {})
    earlier_space = {current_override(key, space): text for key, text in before.get("space", {}).items()}
    pairs = [(f"hydra.sweeper.{name}", before.get(name), now.get(name)) for name in ("kind", "sampler", "seed", "when")]
    pairs += [(key, earlier_space.get(key), space.get(key)) for key in {**earlier_space, **space} if key not in budget]
    for key, old, new in pairs:
        if old in (new, HIDDEN):
            continue
        if old is None or new is None or key not in earlier_space or not _extends(key, new, old, config_loader):
            change = f"{key}={old}, and would have {key}={new}" if old is not None else f"no {key}, and would have one"
            raise ConfigurationError(
                f"{directory}: its search has {change}; a search can only grow by trials, wider intervals and appended "
                f"values; {OTHER_SWEEP}"
            )
        say(f"sweep: {key}={new} in new trials, {old} in earlier ones")


def _extends(key: str, new: str, old: str, config_loader: Any) -> bool:
    (larger,), (smaller,) = (dimensions_of([f"{key}={text}"], config_loader) for text in (new, old))
    return larger.extends(smaller)


def _choices(dimension: Dimension) -> Sequence[str]:
    if dimension.choices or not dimension.is_int:
        return dimension.choices
    return [str(value) for value in range(int(dimension.low), min(int(dimension.high), _LARGEST_CONDITION) + 1)]


def drawn(dimension: Dimension, generator: random.Random) -> str:
    """Return a random value of a dimension, as typed in an override."""
    if dimension.choices:
        return generator.choice(dimension.choices)
    low, high = dimension.low, dimension.high
    if dimension.is_int and not dimension.is_log:
        return str(generator.randint(int(low), int(high)))
    if dimension.is_log:
        value = math.exp(generator.uniform(math.log(low), math.log(high)))
    else:
        value = generator.uniform(low, high)
    return str(round(value)) if dimension.is_int else repr(min(max(value, low), high))
