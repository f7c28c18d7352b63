"""Space: the search space of a study."""

from typing import Any

from ray import tune

from trieye.config import TrieyeConfig
from trieye.config.fingerprint import leaves
from trieye.config.hydra.axes import Dimension, axes_of, dimensions_of, typed, value_of
from trieye.config.redaction import HIDDEN
from trieye.exceptions import ConfigurationError
from trieye.sweeps.grid import Axis, Grid
from trieye.tune.ended import overrides_of
from trieye.tune.values import with_values


class Space:
    """The search space of a study.

    Args:
        config: The config of the study, whose `tune.space` is read.

    Attributes:
        dimensions: The interval or choices of each key.

    Raises:
        ConfigurationError: A key is unknown, an expression cannot be parsed, or a bound or a choice is invalid for its
            key.
    """

    def __init__(self, config: TrieyeConfig) -> None:
        words = [f"{key}={_text(key, value)}" for key, value in leaves(config.tune.space)]
        try:
            self.dimensions = dimensions_of(words)
            self._axes = axes_of(words) if config.tune.search == "grid" else []
        except ConfigurationError as error:
            raise ConfigurationError(f"tune.space.{error}") from error
        self._check(config)

    def _check(self, config: TrieyeConfig) -> None:
        for dimension in self.dimensions:
            if dimension.key.partition(".")[0] in {"tune", "run_name", "app_name"}:
                raise ConfigurationError(f"tune.space.{dimension.key}: a study does not vary this key")
            ends = () if dimension.choices else (dimension.low, dimension.high)
            values = [*map(value_of, dimension.choices), *(_end(dimension, end) for end in ends)]
            for value in values:
                with_values(config, {dimension.key: value})
            secrets = [word for value in values for word in overrides_of({dimension.key: value}) if HIDDEN in word]
            if len(secrets) > len(set(secrets)):
                raise ConfigurationError(
                    f"tune.space.{dimension.key}: a study cannot vary a secret, since secrets are not recorded and its "
                    "trials would look the same"
                )
        if all(len(dimension.choices) == 1 for dimension in self.dimensions):
            raise ConfigurationError(
                "tune.space: nothing varies; set a key to interval(a,b), range(1,9) or several values, as in 1,2,3"
            )

    @property
    def keys(self) -> list[str]:
        """The varying keys."""
        return [dimension.key for dimension in self.dimensions if len(dimension.choices) != 1]

    @property
    def grid(self) -> Grid:
        """All combinations of the values, for a grid search."""
        return Grid(tuple(Axis((key,), tuple((text,) for text in texts)) for key, texts in self._axes))

    def mutations(self) -> dict[str, Any]:
        """Return the mutations of population-based training: choices move to a neighbor, numbers scale by a factor."""
        varying = [dimension for dimension in self.dimensions if len(dimension.choices) != 1]
        return {axis.key: [value_of(text) for text in axis.choices] or _domain(axis) for axis in varying}

    def clamp(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return values within their intervals, which factors of population-based training may leave."""
        bounds = {axis.key: axis for axis in self.dimensions if not axis.choices and axis.key in values}
        return values | {key: _end(axis, min(max(values[key], axis.low), axis.high)) for key, axis in bounds.items()}


def _text(key: str, value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(typed, value))
    if value is None:
        raise ConfigurationError(f"tune.space.{key} is null; remove the key, or set its values")
    return str(value)


def _end(dimension: Dimension, value: float) -> float:
    return round(value) if dimension.is_int else float(value)


def _domain(dimension: Dimension) -> Any:
    low, high = dimension.low, dimension.high
    if dimension.is_int:
        make_domain = tune.lograndint if dimension.is_log else tune.randint
        return make_domain(int(low), int(high) + 1)
    return (tune.loguniform if dimension.is_log else tune.uniform)(low, high)
