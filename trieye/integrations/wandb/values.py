"""Config and Summary: what `wandb` keeps besides curves, by item and by attribute."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError


class Config(MutableMapping[str, Any]):
    """Parameters by item and by attribute; each change is recorded, and a value that is there does not change."""

    def __init__(self, record: Callable[[Mapping[str, Any]], None]) -> None:
        self.__dict__.update(_items={}, _record=record)

    def update(self, given: Any = (), /, *, allow_val_change: bool = False, **more: Any) -> None:
        """Take parameters of a dict, a namespace of argparse, or named ones.

        Raises:
            ConfigurationError: One has another value already, and `allow_val_change` does not allow that.
        """
        items = {
            **dict(vars(given) if hasattr(given, "__dict__") and not isinstance(given, Mapping) else given),
            **more,
        }
        for key, value in items.items():
            if not allow_val_change and key in self._items and self._items[key] != value:
                raise ConfigurationError(
                    f"config.{key} is {self._items[key]!r} and was to become {value!r}; "
                    "config.update(..., allow_val_change=True) allows that"
                )
        self._items.update(items)
        if items:
            self._record(items)

    def setdefaults(self, given: Mapping[str, Any]) -> None:
        """Take those parameters that are not there."""
        self.update({key: value for key, value in given.items() if key not in self._items})

    def as_dict(self) -> dict[str, Any]:
        """Return a copy."""
        return dict(self._items)

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.update({key: value})

    def __delitem__(self, key: str) -> None:
        raise ConfigurationError(f"config.{key}: a parameter that was recorded stays")

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __getattr__(self, key: str) -> Any:
        try:
            return self._items[key]
        except KeyError:
            raise AttributeError(f"config has no {key!r}{did_you_mean(key, self._items)}") from None

    def __setattr__(self, key: str, value: Any) -> None:
        self[key] = value


class Summary(dict[str, Any]):
    """The last value of each name, or what `define_metric(summary=...)` says; by item and by attribute."""

    def __getattr__(self, key: str) -> Any:
        try:
            return self[key]
        except KeyError:
            raise AttributeError(f"summary has no {key!r}{did_you_mean(key, self)}") from None

    def __setattr__(self, key: str, value: Any) -> None:
        self[key] = value
