"""WandbConfig and Summary: hyperparameters and summary values, accessible as items and attributes."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from typing import Any

from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError
from trieye.integrations.wandb.media import Media, Text

_MOST_ITEMS = 1000
"""Size of the largest array that a summary or config stores as numbers."""


class Summary(MutableMapping[str, Any]):
    """Last value of each name, or the aggregate of `define_metric(summary=...)`, as items and attributes.

    Args:
        earlier: Values of earlier attempts.
        on_change: Called with the new values when the program sets values.
    """

    def __init__(self, earlier_values: Mapping[str, Any], on_change: Callable[[Mapping[str, Any]], None]) -> None:
        self.__dict__.update(_items=dict(earlier_values), _recorded=set(), _record=on_change)

    def set_silently(self, items: Mapping[str, Any]) -> None:
        """Set values without a call of `on_change`."""
        self._items.update(items)

    def update(self, *values: Any, **keyword_values: Any) -> None:
        """Set values and call `on_change`."""
        self.set_silently(items := dict(*values, **keyword_values))
        self._record(items)

    def as_dict(self) -> dict[str, Any]:
        """Return a copy."""
        return dict(self._items)

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.update({key: value})

    def __delitem__(self, key: str) -> None:
        del self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __getattr__(self, key: str) -> Any:
        try:
            return self._items[key]
        except KeyError:
            kind = type(self).__name__.removeprefix("Wandb").lower()
            raise AttributeError(f"{kind} has no {key!r}{did_you_mean(key, self._items)}") from None

    def __setattr__(self, key: str, value: Any) -> None:
        self[key] = value


class WandbConfig(Summary):
    """Hyperparameters as items and attributes; each change is recorded, and recorded values are immutable.

    Values of earlier attempts may change.
    """

    def update(self, params: Any = (), /, *, allow_val_change: bool = False, **keyword_values: Any) -> None:
        """Set parameters from a dict, an argparse namespace or keyword arguments.

        Raises:
            ConfigurationError: A recorded parameter would change, and `allow_val_change` is False.
        """
        is_namespace = hasattr(params, "__dict__") and not isinstance(params, Mapping)
        items = {**dict(vars(params) if is_namespace else params), **keyword_values}
        for key in () if allow_val_change else [key for key in items if key in self._recorded]:
            if not _are_equal(self[key], items[key]):
                raise ConfigurationError(
                    f"config.{key} is already recorded as {self[key]!r} and cannot become {items[key]!r}; "
                    "config.update(..., allow_val_change=True) allows the change"
                )
        self._recorded.update(items)
        if items:
            super().update(items)

    def setdefaults(self, params: Mapping[str, Any]) -> None:
        """Set the parameters that have no value yet."""
        self.update({key: value for key, value in params.items() if key not in self})

    def __delitem__(self, key: str) -> None:
        raise ConfigurationError(f"config.{key}: recorded parameters cannot be deleted")


def flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested dicts under names such as `a.b`; a medium in a wandb file is one value."""
    for key, value in data.items():
        if isinstance(value, Mapping) and "_type" not in value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _are_equal(old_value: Any, new_value: Any) -> bool:
    """Return whether values, or what is stored of them, are equal; NaN equals NaN."""
    with suppress(Exception):  # an array has no truth value, and objects may raise any error
        if old_value == new_value:
            return True
    one, other = plain(old_value), plain(new_value)
    return bool(one == other) or json.dumps(one) == json.dumps(other)


def plain(value: Any) -> Any:
    """Convert a value to JSON; arrays and tensors become numbers and lists, large ones text."""
    if isinstance(value, Media):
        return {"_type": type(value).__name__.lower()} if not isinstance(value, Text) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist") and math.prod(getattr(value, "shape", ())) <= _MOST_ITEMS:
        with suppress(RuntimeError):  # a sparse or quantized tensor
            items = value.tolist()  # of a longdouble, the value itself
            return str(value) if type(items) is type(value) else plain(items)
    return value if value is None or isinstance(value, int | float | str) else str(value)
