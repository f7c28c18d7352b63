"""Variants: a field that holds one of several models, told apart by a key such as `kind`."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trieye.config.base import models_in, takes_values

Models = Sequence[type[BaseModel]]


def tag_of(models: Models) -> str | None:
    """Return the key that tells models apart: each has a `Literal` there, and no two share a value."""
    names = models[0].model_fields if len(models) > 1 else ()
    return next((name for name in names if _tells_apart([_literals(model, name) for model in models])), None)


def by_tag(models: Models) -> dict[str, type[BaseModel]]:
    """Return each model under the values of the key that tells them apart, such as `dqn`; empty if no key does."""
    tag = tag_of(models)
    return {} if tag is None else {value: model for model in models for value in _literals(model, tag)}


def meant(models: Models, values: Any) -> Models:
    """Return the model that values say they are of; all models if the values do not say, none if there is no such."""
    tag = tag_of(models)
    if tag is None or not isinstance(values, Mapping) or values.get(tag) is None:
        return models
    model = by_tag(models).get(str(values[tag]))
    return [model] if model is not None else []


def is_variant(info: FieldInfo) -> bool:
    """Tell whether a field holds one of several models, or a model or a plain value."""
    models, many = models_in(info)
    return not many and (len(models) > 1 or (len(models) == 1 and takes_values(info)))


def _literals(model: type[BaseModel], name: str) -> list[str]:
    info = model.model_fields.get(name)
    is_literal = info is not None and get_origin(info.annotation) is Literal
    return [str(value) for value in get_args(info.annotation)] if info is not None and is_literal else []


def _tells_apart(values: Sequence[Sequence[str]]) -> bool:
    listed = [value for each in values for value in each]
    return all(values) and len(listed) == len(set(listed))
