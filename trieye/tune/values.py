"""with_values: validated copies of a config with other values."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from trieye.config import TrieyeConfig
from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError

Config = TypeVar("Config", bound=TrieyeConfig)
Model = TypeVar("Model", bound=BaseModel)


def with_values(config: Config, values: Mapping[str, Any]) -> Config:
    """Return a config with other values; unaffected parts are shared with the original.

    Args:
        config: A complete config, which is not modified.
        values: Values by dotted key, `{"agent.lr": 1e-3}`.

    Raises:
        ConfigurationError: A key is unknown or a value is invalid; the message names both.
    """
    for key, value in values.items():
        config = _with(config, key.split("."), value, key)
    return config


def named(config: Config, run_name: str, **changes: Any) -> Config:
    """Return a config with another run name and other parts, which must be validated already."""
    persistence = config.persistence.model_copy(update={"run_name": run_name})
    return config.model_copy(update={"run_name": run_name, "persistence": persistence, **changes})


def _with(model: Model, path: Sequence[str], value: Any, key: str) -> Model:
    name, *subpath = path
    known_fields = type(model).model_fields
    if name not in known_fields:
        parent = ".".join(key.split(".")[: -len(path)]) or "the config"
        raise ConfigurationError(
            f"tune.space.{key}: there is no key {name!r} in {parent}{did_you_mean(name, known_fields)} "
            f"(choose from: {', '.join(sorted(known_fields))})"
        )
    old_value = getattr(model, name)
    if subpath and isinstance(old_value, BaseModel):
        value = _with(old_value, subpath, value, key)
    elif subpath:
        raise ConfigurationError(f"tune.space.{key}: {key.removesuffix('.' + '.'.join(subpath))} has no subkeys")
    elif isinstance(old_value, BaseModel) and isinstance(value, Mapping):
        raise ConfigurationError(f"tune.space.{key} is a group; set a key of it, as tune.space.{key}.<key>")
    # Generated defaults, such as a name with the current time, must not be generated again.
    set_names = {*model.model_fields_set, *({"run_name", "app_name"} & known_fields.keys())}
    fields = {other: getattr(model, other) for other in set_names} | {name: value}
    try:
        return type(model).model_validate(fields)
    except ValidationError as error:
        first_error = error.errors(include_url=False)[0]
        raise ConfigurationError(f"{key}={value}: {first_error['msg'].removeprefix('Value error, ')}") from error
