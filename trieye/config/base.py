"""StrictModel, the base of all config models, and the keys that follow from the type of a field."""

import difflib
import types
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError

from trieye.renames import renamed_field


@dataclass(frozen=True)
class Marker:
    """Differences of a field between YAML and Python; put it into the field's `Annotated`.

    Attributes:
        set_by: The key that sets this field, which is therefore no key of its own.
        yaml_default: Values that win over the defaults of the field's model.
        takes_values: Whether it takes a plain value in place of its model.
    """

    set_by: str | None = None
    yaml_default: Mapping[str, Any] | None = None
    takes_values: bool = False


def set_by(info: FieldInfo) -> str | None:
    """Return the key that sets a field, or None if the field is a key of its own."""
    return next((item.set_by for item in info.metadata if isinstance(item, Marker)), None)


def _values_of_a_dict(items: Any) -> Any:
    if isinstance(items, dict):
        return [item for item in items.values() if item is not None]
    return items


_KEYED = BeforeValidator(_values_of_a_dict)
_Item = TypeVar("_Item")
Keyed = Annotated[list[_Item], _KEYED]
"""A list that is a dict in YAML, so that sets of items merge; the keys are short names of the user's choice."""


def models_in(info: FieldInfo) -> tuple[list[type[BaseModel]], bool]:
    """Return the config models that a field holds, and whether it holds many of them under keys."""
    options = [option for option in _options(info.annotation) if option is not type(None)]
    models = [option for option in options if isinstance(option, type) and issubclass(option, BaseModel)]
    if models or len(options) != 1:
        return models, False
    origin, arguments = get_origin(options[0]), get_args(options[0])
    if not ((origin is list and _KEYED in info.metadata) or (origin is dict and arguments[0] is str)):
        return [], False
    element = arguments[-1]
    return ([element], True) if isinstance(element, type) and issubclass(element, BaseModel) else ([], False)


def takes_values(info: FieldInfo) -> bool:
    """Return whether a field accepts values other than models and None."""
    if any(isinstance(item, Marker) and item.takes_values for item in info.metadata):
        return True
    options = [option for option in _options(info.annotation) if option is not type(None)]
    return any(not (isinstance(option, type) and issubclass(option, BaseModel)) for option in options)


def is_open(info: FieldInfo) -> bool:
    """Return whether a field is a dict of plain values, whose keys the user chooses."""
    options = [option for option in _options(info.annotation) if option is not type(None)]
    is_dict = len(options) == 1 and get_origin(options[0]) is dict and get_args(options[0])[0] is str
    return is_dict and not models_in(info)[0]


def takes_text_only(annotation: Any) -> bool:
    """Return whether a type is `str` or `str | None`."""
    return {option for option in _options(annotation) if option is not type(None)} == {str}


def takes_many(annotation: Any) -> bool:
    """Return whether a type is a list or a tuple, or a union with one."""
    return any((get_origin(option) or option) in (list, tuple) for option in _options(annotation))


def _options(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is Annotated:
        return _options(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(option for argument in get_args(annotation) for option in _options(argument))
    if isinstance(annotation, type) and issubclass(annotation, Variants) and (kinds := annotation.kinds()):
        return kinds
    return (annotation,)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that `word` most likely meant, or None."""
    candidates = sorted(known)
    folded = {candidate.lower(): candidate for candidate in candidates}
    matches = difflib.get_close_matches(word.lower(), folded, n=1, cutoff=0.6)
    # a part of a long name is no close match
    parts = [candidate for candidate in folded if word and candidate.startswith(word.lower())]
    return folded[(matches or parts)[0]] if matches or parts else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the nearest known word, or an empty string."""
    match = nearest(word, known)
    return f"; did you mean {match!r}?" if match else ""


def _is_number(info: FieldInfo) -> bool:
    options = set(_options(info.annotation))
    return bool(options & {int, float}) and not options & {bool, str, Any}


class StrictModel(BaseModel):
    """A frozen config model that refuses unknown keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=(), defer_build=True
    )

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, data: Any) -> Any:
        """Refuse unknown keys with the closest match; those on a command line are worded by `hydra/messages.py`.

        Booleans become text where a number belongs, so that pydantic does not read them as 1 and 0.
        """
        known = cls.model_fields
        if isinstance(data, str) and "kind" in known:
            raise PydanticCustomError("kind_as_text", "expected keys; write {kind}", {"kind": {"kind": data}})
        if not isinstance(data, dict):
            return data
        if unknown := [_unknown_key(str(key), known, value) for key, value in data.items() if key not in known]:
            raise ValidationError.from_exception_data(cls.__name__, unknown)
        # a validator of single fields is forbidden for those that tell the members of a union apart
        return {
            key: str(value).lower() if isinstance(value, bool) and _is_number(known[key]) else value
            for key, value in data.items()
        }

    if not TYPE_CHECKING:  # or type checkers would accept any attribute

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                if new := renamed_field(name, type(self).model_fields):
                    raise AttributeError(f"{type(self).__name__}.{name} was renamed to {new}") from None
                raise


def _unknown_key(key: str, known: Collection[str], value: Any) -> InitErrorDetails:
    words = {"key": key, "hint": did_you_mean(key, known), "keys": ", ".join(sorted(known))}
    error = PydanticCustomError("unknown_key", "unknown key '{key}'{hint} (keys: {keys})", words)
    if new := renamed_field(key, known):
        words = {"key": key, "new": new, "value": value}
        error = PydanticCustomError("unknown_key", "'{key}' was renamed to '{new}' (value {value})", words)
    return InitErrorDetails(type=error, loc=(key,), input=value)


class Variants(StrictModel):
    """A strict model; where it is the type of a field, the field holds any of its subclasses, told apart by `kind`.

    Those are the ones that were there when the model with the field was defined; the newest of each kind.
    """

    @classmethod
    def kinds(cls) -> tuple[type[StrictModel], ...]:
        """Return the subclasses with a `kind` of their own; none if this class has one."""
        if get_origin(cls.__annotations__.get("kind")) is Literal:
            return ()
        below = [(kind, *kind.kinds()) for kind in cls.__subclasses__()]
        found = {kind.__annotations__.get("kind"): kind for each in below for kind in each}
        return tuple(kind for annotation, kind in found.items() if get_origin(annotation) is Literal)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        kinds = cls.kinds()
        if not kinds:
            return handler(source)
        chosen: Any = Union[kinds]  # noqa: UP007 - of a tuple
        return handler.generate_schema(Annotated[chosen, Field(discriminator="kind")] if len(kinds) > 1 else chosen)
