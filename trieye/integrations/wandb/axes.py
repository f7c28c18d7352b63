"""Axes: the step metric and the summary of each metric, from `define_metric`."""

import fnmatch
import math
from collections.abc import Callable, Collection, Mapping
from itertools import chain

_LARGEST = 2.0**53
"""Beyond it a float no longer distinguishes neighbouring integers."""


class Axes:
    """Map each metric to a step, which is an integer: the number of its row, or the value of its step metric.

    A step metric with fractional values, such as an epoch of 0.25, cannot be a step without merging points. From the
    first such value on, its metrics are placed at the number of their row, which keeps every point; the step metric is
    a curve over the same steps.

    Args:
        on_fraction: Called with the name and the value of a step metric at its first fractional value.
        fractional: Step metrics that had a fractional value in an earlier attempt.
    """

    def __init__(self, on_fraction: Callable[[str, float], None], fractional: Collection[str] = ()) -> None:
        self.fractional = set(fractional)
        self._on_fraction = on_fraction
        self._rules: list[tuple[str, str | None, str | None]] = []
        self._latest: dict[str, float] = {}
        self._rule_by_name: dict[str, tuple[str | None, str | None]] = {}

    def define(self, pattern: str, step_metric: str | None, summary: str | None = None) -> None:
        """Add a rule; of the rules that match a name, an exact one applies before a pattern, and the latest first."""
        self._rules.append((pattern, step_metric, summary))
        self._rule_by_name.clear()

    def update(self, values: Mapping[str, float]) -> None:
        """Take the values of a row; a step metric keeps its latest value in later rows."""
        self._latest |= values

    def step_of(self, name: str, row: int) -> int:
        """Return the step of a value that is logged in a row."""
        axis = self.rule_of(name)[0]
        x = math.nan if axis is None else self._latest.get(axis, math.nan)
        if axis is None or axis in self.fractional or not math.isfinite(x):
            return row
        if x.is_integer() and abs(x) <= _LARGEST:
            return int(x)
        self.fractional.add(axis)
        self._on_fraction(axis, x)
        return row

    def rule_of(self, name: str) -> tuple[str | None, str | None]:
        """Return the step metric and the summary of a metric."""
        if name not in self._rule_by_name:
            exact_rules = (rule for rule in reversed(self._rules) if name == rule[0])
            glob_rules = (rule for rule in reversed(self._rules) if fnmatch.fnmatchcase(name, rule[0]))
            _, axis, summary = next(chain(exact_rules, glob_rules), (name, None, None))
            self._rule_by_name[name] = (None if axis == name else axis), summary
        return self._rule_by_name[name]

    @property
    def step_metrics(self) -> set[str]:
        """Names of all step metrics."""
        return {axis for _, axis, _ in self._rules if axis is not None}
