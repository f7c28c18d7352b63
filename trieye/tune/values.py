"""Values: a config with some of its keys set anew, checked like a whole one."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from trieye.config import TrieyeConfig
from trieye.config.base import did_you_mean
from trieye.config.fingerprint import leaves
from trieye.exceptions import ConfigurationError

Config = TypeVar("Config", bound=TrieyeConfig)
Model = TypeVar("Model", bound=BaseModel)


def flat(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Return what stands in nested dicts under dotted keys; a key may be dotted already."""
    return dict(leaves(nested))


def with_values(config: Config, values: Mapping[str, Any]) -> Config:
    """Return a config with other values; all that they leave alone is the very same.

    Args:
        config: A whole config, which is not changed.
        values: Values by dotted key, `{"agent.lr": 1e-3}`.

    Raises:
        ConfigurationError: There is no such key, or a value is not allowed; the message names it.
    """
    for key, value in values.items():
        config = _with(config, key.split("."), value, key)
    return config


def named(config: Config, run_name: str, **changes: Any) -> Config:
    """Return a config with another name of its run, and other parts, which are checked already."""
    persistence = config.persistence.model_copy(update={"run_name": run_name})
    return config.model_copy(update={"run_name": run_name, "persistence": persistence, **changes})


def _with(model: Model, path: Sequence[str], value: Any, key: str) -> Model:
    name, *rest = path
    known = type(model).model_fields
    if name not in known:
        place = key.split(".")[: -len(path)]
        where = ".".join(place) or "the config"
        raise ConfigurationError(
            f"tune.space.{key}: there is no key {name!r} in {where}{did_you_mean(name, known)} "
            f"(keys: {', '.join(sorted(known))})"
        )
    held = getattr(model, name)
    if rest and isinstance(held, BaseModel):
        value = _with(held, rest, value, key)
    elif rest:
        raise ConfigurationError(f"tune.space.{key}: {key.removesuffix('.' + '.'.join(rest))} has no keys of its own")
    elif isinstance(held, BaseModel) and isinstance(value, Mapping):
        raise ConfigurationError(f"tune.space.{key}: it is a group; name a key of it, as tune.space.{key}.<key>")
    # a default that is made anew, such as a name with the time, must not be
    kept = {*model.model_fields_set, *({"run_name", "app_name"} & known.keys())}
    fields = {other: getattr(model, other) for other in kept} | {name: value}
    try:
        return type(model).model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigurationError(f"{key}={value}: {first['msg'].removeprefix('Value error, ')}") from error
