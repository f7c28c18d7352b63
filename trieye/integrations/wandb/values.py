"""WandbConfig and Summary: hyperparameters and summary values, accessible as items and attributes."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError


class WandbConfig(MutableMapping[str, Any]):
    """Hyperparameters as items and attributes; each change is recorded, and recorded values are immutable.

    Args:
        record: Called with new and changed parameters.
        earlier: Parameters of earlier attempts, which this attempt may change.
    """

    def __init__(self, record: Callable[[Mapping[str, Any]], None], earlier: Mapping[str, Any]) -> None:
        self.__dict__.update(_items=dict(earlier), _earlier=set(earlier), _record=record)

    def update(self, params: Any = (), /, *, allow_val_change: bool = False, **more: Any) -> None:
        """Set parameters from a dict, an argparse namespace or keyword arguments.

        Raises:
            ConfigurationError: A recorded parameter would change, and `allow_val_change` is False.
        """
        items = {
            **dict(vars(params) if hasattr(params, "__dict__") and not isinstance(params, Mapping) else params),
            **more,
        }
        for key, value in items.items():
            is_recorded = key in self._items and key not in self._earlier
            if is_recorded and not allow_val_change and self._items[key] != value:
                raise ConfigurationError(
                    f"config.{key} is already recorded as {self._items[key]!r} and cannot become {value!r}; "
                    "config.update(..., allow_val_change=True) allows the change"
                )
        self._items.update(items)
        self._earlier.difference_update(items)
        if items:
            self._record(items)

    def setdefaults(self, params: Mapping[str, Any]) -> None:
        """Set the parameters that have no value yet."""
        self.update({key: value for key, value in params.items() if key not in self._items})

    def as_dict(self) -> dict[str, Any]:
        """Return a copy."""
        return dict(self._items)

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.update({key: value})

    def __delitem__(self, key: str) -> None:
        raise ConfigurationError(f"config.{key}: recorded parameters cannot be deleted")

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
    """Last value of each name, or the aggregate of `define_metric(summary=...)`, as items and attributes.

    Args:
        items: Values of earlier attempts.
        on_change: Called with the summary when the program sets a value.
    """

    def __init__(self, items: Mapping[str, Any], on_change: Callable[["Summary"], None]) -> None:
        super().__init__(items)
        self.__dict__["on_change"] = on_change

    def __getattr__(self, key: str) -> Any:
        try:
            return self[key]
        except KeyError:
            raise AttributeError(f"summary has no {key!r}{did_you_mean(key, self)}") from None

    def __setattr__(self, key: str, value: Any) -> None:
        self[key] = value

    def __setitem__(self, key: str, value: Any) -> None:
        self.update({key: value})

    def update(self, *values: Any, **more: Any) -> None:
        """Set values and call `on_change`."""
        super().update(*values, **more)
        self.__dict__["on_change"](self)
