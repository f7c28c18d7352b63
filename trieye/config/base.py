"""StrictModel, the base class of config models; which keys a field accepts; close matches of misspelled names."""

import difflib
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
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
    """Metadata for a field's `Annotated`: how the field differs between YAML and Python.

    Attributes:
        set_by: Another key that sets this field; the field itself cannot be set.
        yaml_default: Values that override the defaults of the field's model.
        takes_values: Whether the field also accepts a plain value.
    """

    set_by: str | None = None
    yaml_default: Mapping[str, Any] | None = None
    takes_values: bool = False


def set_by(info: FieldInfo) -> str | None:
    """Return the other key that sets a field; None if the field can be set itself."""
    return next((item.set_by for item in info.metadata if isinstance(item, Marker)), None)


def _values_of_dict(items: Any) -> Any:
    if isinstance(items, dict):
        return [item for item in items.values() if item is not None]
    return items


_KEYED = BeforeValidator(_values_of_dict)
_Item = TypeVar("_Item")
Keyed = Annotated[list[_Item], _KEYED]
"""A list that is a dict in YAML, so that config files can merge it; users choose the keys."""


def models_in(info: FieldInfo) -> tuple[list[type[BaseModel]], bool]:
    """Return the config models in the type of a field, and whether the field is a keyed collection of them."""
    options = [option for option in _options(info.annotation) if option is not type(None)]
    models = [option for option in options if isinstance(option, type) and issubclass(option, BaseModel)]
    if models or len(options) != 1:
        return models, False
    origin, arguments = get_origin(options[0]), get_args(options[0])
    if not ((origin is list and _KEYED in info.metadata) or (origin is dict and arguments[0] is str)):
        return [], False
    element = arguments[-1]
    return ([element], True) if isinstance(element, type) and issubclass(element, BaseModel) else ([], False)


def optional_items(info: FieldInfo) -> list[type[BaseModel]]:
    """Return the models of a dict whose values are models or null, such as the wrappers of an environment."""
    options = get_args(get_args(info.annotation)[1]) if get_origin(info.annotation) is dict else ()
    return [option for option in options if isinstance(option, type) and issubclass(option, BaseModel)]


def takes_values(info: FieldInfo) -> bool:
    """Return whether a field accepts values other than models and None."""
    if any(isinstance(item, Marker) and item.takes_values for item in info.metadata):
        return True
    options = [option for option in _options(info.annotation) if option is not type(None)]
    return any(not (isinstance(option, type) and issubclass(option, BaseModel)) for option in options)


def is_open(info: FieldInfo) -> bool:
    """Return whether a field is a dict of plain values with arbitrary keys."""
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


def nearest(word: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate closest to a misspelled or abbreviated word; None if none is close."""
    candidates = sorted(candidates)
    folded = {candidate.lower(): candidate for candidate in candidates}
    matches = difflib.get_close_matches(word.lower(), folded, n=1, cutoff=0.6)
    # difflib misses the beginning of a long name
    parts = [candidate for candidate in folded if word and candidate.startswith(word.lower())]
    return folded[(matches or parts)[0]] if matches or parts else None


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the closest candidate; an empty string if none is close."""
    match = nearest(word, candidates)
    return f"; did you mean {match!r}?" if match else ""


def _is_number(info: FieldInfo) -> bool:
    options = set(_options(info.annotation))
    return bool(options & {int, float}) and not options & {bool, str, Any}


class StrictModel(BaseModel):
    """A frozen config model that rejects unknown keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=(), defer_build=True
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Build validators of classes that are pickled by value: pydantic before 2.14.3 cannot load deferred ones."""
        super().__pydantic_init_subclass__(**kwargs)
        if cls.__module__ == "__main__" or "<locals>" in cls.__qualname__:
            cls.model_rebuild(raise_errors=False)

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, data: Any) -> Any:
        """Reject unknown keys and name the closest match; for command lines, `hydra/messages.py` words the message.

        Booleans for numeric fields become text, so that pydantic does not read them as 1 and 0.
        """
        fields = cls.model_fields
        if isinstance(data, str) and "kind" in fields:
            raise PydanticCustomError("kind_as_text", "expected keys, as in {kind}", {"kind": {"kind": data}})
        if not isinstance(data, dict):
            return data
        if unknown_keys := [_unknown_key(str(key), fields, value) for key, value in data.items() if key not in fields]:
            raise ValidationError.from_exception_data(cls.__name__, unknown_keys)
        # here, because pydantic forbids a before-validator of a discriminator field
        return {
            key: str(value).lower() if isinstance(value, bool) and _is_number(fields[key]) else value
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


def _unknown_key(key: str, fields: Collection[str], value: Any) -> InitErrorDetails:
    context = {"key": key, "hint": did_you_mean(key, fields), "keys": ", ".join(sorted(fields))}
    error = PydanticCustomError("unknown_key", "unknown key '{key}'{hint} (keys: {keys})", context)
    if new_name := renamed_field(key, fields):
        context = {"key": key, "new": new_name, "value": value}
        error = PydanticCustomError("unknown_key", "'{key}' was renamed to '{new}' (value {value})", context)
    return InitErrorDetails(type=error, loc=(key,), input=value)


class Variants(StrictModel):
    """A strict model that stands, as the type of a field, for the union of its subclasses, discriminated by `kind`.

    The union contains the subclasses defined before the first use of the model with the field (or its
    `model_rebuild()`), and the latest one of each kind.
    """

    @classmethod
    def kinds(cls) -> tuple[type[StrictModel], ...]:
        """Return the subclasses that define a `kind`; none if this class defines one itself."""
        if _defines_kind(cls):
            return ()
        by_kind = {model.__annotations__["kind"]: model for model in _descendants(cls) if _defines_kind(model)}
        return tuple(by_kind.values())

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        kinds = cls.kinds()
        if not kinds:
            return handler(source)
        union: Any = Union[kinds]  # noqa: UP007 - of a tuple
        return handler.generate_schema(Annotated[union, Field(discriminator="kind")] if len(kinds) > 1 else union)


def _defines_kind(model: type[StrictModel]) -> bool:
    return get_origin(model.__annotations__.get("kind")) is Literal


def _descendants(model: type[StrictModel]) -> Iterator[type[StrictModel]]:
    for subclass in model.__subclasses__():
        yield subclass
        yield from _descendants(subclass)
