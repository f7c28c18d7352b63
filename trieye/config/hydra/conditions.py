"""Conditions: keys of a sweep that exist only with certain values of other keys."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Any, Self

from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError

OPTION = "hydra.sweeper.when"
_QUOTES = ("'", '"')


@dataclass(frozen=True)
class Conditions:
    """The condition of each conditional key.

    Attributes:
        when: Allowed values of other keys, by conditional key; all keys without prefixes.
    """

    when: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)

    @classmethod
    def of(cls, when: Mapping[str, Mapping[str, Any]]) -> Self:
        """Return the conditions of the option `when`, whose values are single values or lists.

        Raises:
            ConfigurationError: The conditions depend on each other.
        """
        conditions = cls(
            {key: {other: _texts(value) for other, value in condition.items()} for key, condition in when.items()}
        )
        try:
            TopologicalSorter(conditions.when).prepare()
        except CycleError as error:
            cycle = " -> ".join(error.args[1])
            raise ConfigurationError(f"{OPTION}: the conditions depend on each other: {cycle}") from None
        return conditions

    def __bool__(self) -> bool:
        return bool(self.when)

    def keys(self) -> set[str]:
        """Return the conditional keys, and the keys that they depend on."""
        return {*self.when, *self.others()}

    def others(self) -> set[str]:
        """Return the keys that conditions read."""
        return {key for condition in self.when.values() for key in condition}

    def sentences(self) -> list[str]:
        """Return each condition as text, such as `agent.clip_range exists where agent=ppo`."""
        terms = {
            key: [f"{other}={'|'.join(values)}" for other, values in condition.items()]
            for key, condition in self.when.items()
        }
        return [f"{key} exists where {' and '.join(term)}" for key, term in terms.items()]

    def check_keys(self, keys: Sequence[str]) -> None:
        """Check that each key exists.

        Raises:
            ConfigurationError: A key is unknown.
        """
        for name in (name for key, condition in self.when.items() for name in (key, *condition)):
            if name not in keys:
                raise ConfigurationError(
                    f"{OPTION}: {name} is not a key of the sweep{did_you_mean(name, keys)} (keys: {', '.join(keys)})"
                )

    def check(self, choices: Mapping[str, Sequence[str]]) -> None:
        """Check that each key exists and each condition can hold; a key with a single value restricts the sweep.

        Args:
            choices: Values of each key of the sweep; empty for an interval.

        Raises:
            ConfigurationError: A key is unknown, or has none of the required values.
        """
        self.check_keys(list(choices))
        for key, condition in self.when.items():
            for other, values in condition.items():
                allowed = choices[other]
                if not allowed:
                    raise ConfigurationError(
                        f"{OPTION}: {key} depends on {other}, which has an interval; only keys with a range of "
                        "integers or listed values can be conditions"
                    )
                can_hold = any([positions_of(other, value, allowed) for value in values])
                if len(allowed) > 1 and not can_hold:
                    raise ConfigurationError(
                        f"{OPTION}: {key} depends on {other}={'|'.join(values)}, which is not a value of {other}"
                        f"{did_you_mean(values[0], allowed)} (values: {', '.join(allowed)})"
                    )

    def order(self, keys: Sequence[str]) -> list[str]:
        """Return keys so that each key follows all keys that its condition reads."""
        sorter = TopologicalSorter({key: [other for other in self.when.get(key, ()) if other in keys] for key in keys})
        return list(sorter.static_order()) if self.when else list(keys)

    def is_active(self, key: str, values: Mapping[str, str]) -> bool:
        """Return whether a key exists.

        Args:
            key: A key.
            values: Values of the other keys; a missing key satisfies no condition.
        """
        for other_key, allowed in self.when.get(key, {}).items():
            value = values.get(other_key)
            if value is None or not (value in allowed or any(same_value(value, one) for one in allowed)):
                return False
            if other_key in self.when and not self.is_active(other_key, values):
                return False
        return True

    def active(self, values: Mapping[str, str]) -> dict[str, str]:
        """Return the values of the keys that exist."""
        inactive = [key for key in self.when if not self.is_active(key, values)]
        return {key: value for key, value in values.items() if key not in inactive} if inactive else dict(values)


NO_CONDITIONS = Conditions()


def _texts(value: Any) -> tuple[str, ...]:
    from trieye.config.hydra.axes import typed  # imports Hydra, which readers of grids do not need

    return tuple(map(typed, value)) if isinstance(value, list | tuple) else (typed(value),)


def same_value(one: str, other: str) -> bool:
    """Return whether two values in Hydra's grammar are equal, including different spellings of a number or a list.

    Two quoted values are texts: '1.1' differs from '1.10'. One quoted value may be a number that a YAML file quotes.
    """
    if one == other or (one[:1] in _QUOTES and other[:1] in _QUOTES):
        return one == other or _normalized(one) == _normalized(other)
    return _comparable(one) == _comparable(other)


def positions_of(key: str, value: str, choices: Sequence[str]) -> list[int]:
    """Return the positions of a value of a key among choices.

    Raises:
        ConfigurationError: A number equals several texts, such as 1.1 and 1.10.
    """
    positions = [position for position, choice in enumerate(choices) if same_value(choice, value)]
    texts = list(dict.fromkeys(choices[position] for position in positions if choices[position][:1] in _QUOTES))
    if len(texts) > 1 and value[:1] not in _QUOTES:
        raise ConfigurationError(f"{key}={value} is a number, and {key} has the texts {', '.join(texts)}; quote one")
    return positions


@lru_cache(maxsize=65_536)
def _comparable(text: str) -> float | str:
    for number_type in (int, float) if "_" not in text else ():  # '1_0' is a text, and 1_0 the number 10
        with suppress(ValueError):
            return number_type(text.strip("'\""))  # YAML files quote some numbers
    value = _normalized(text)
    return value if value == text else _comparable(value)


@lru_cache(maxsize=65_536)
def _normalized(text: str) -> str:
    from trieye.config.hydra.axes import normalized

    return normalized(text)
