"""ModelOf015: base class of config models that also accept the upper-case spellings of trieye 0.1.5.

Only the fields of 0.1.5 have such spellings. The rest of its API is in `trieye.compat`.
"""

import warnings
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import model_validator

from trieye.config.base import StrictModel

_uses = count()


class ModelOf015(StrictModel, coerce_numbers_to_str=True):
    """A strict model that accepts the spellings of trieye 0.1.5 for its fields.

    Upper-case spellings work as keyword arguments and as attributes, and the fields of 0.1.5 can be assigned, with
    validation. The first such use in a process warns. Subclasses of these models are frozen.
    """

    # numbers are converted to text, so that `run_name=7` and `+tags.fold=3` need no quotes on a command line

    spellings: ClassVar[tuple[str, ...]] = ()
    """The fields of trieye 0.1.5, in its spelling."""

    @model_validator(mode="before")
    @classmethod
    def _accept_spellings(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not any(name.isupper() and name in data for name in cls.spellings):
            return data
        _warn_once(stacklevel=4)
        return {key.lower() if key in cls.spellings else key: value for key, value in data.items()}

    if not TYPE_CHECKING:  # or type checkers would accept any attribute

        def __getattr__(self, name: str) -> Any:
            if name not in self.spellings:
                return super().__getattr__(name)
            _warn_once(stacklevel=3)
            return getattr(self, name.lower())

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in vars(type(self)).get("spellings", ()):
            super().__setattr__(name, value)
            return
        _warn_once(stacklevel=3)
        field = name.lower()
        set_values = {key: getattr(self, key) for key in self.model_fields_set}
        self.__dict__[field] = getattr(type(self).model_validate({**set_values, field: value}), field)
        self.model_fields_set.add(field)


def _warn_once(*, stacklevel: int) -> None:
    if next(_uses) == 0:
        warnings.warn(
            "upper-case config keys and assignment to config fields are deprecated spellings of trieye 0.1.5; "
            "use lower-case keys, and model_copy(update=...) to change a config",
            DeprecationWarning,
            stacklevel=stacklevel,
        )
