"""Variants in a composed config: which of several models each part is, and the defaults of that model."""

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf, flag_override
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trieye.config.base import models_in
from trieye.config.hydra.schema import default_of, defaults_of
from trieye.config.hydra.variants import by_tag, is_variant, tag_of
from trieye.exceptions import ConfigurationError

_Place = tuple[str, ...]


def complete(config: DictConfig, config_type: type[BaseModel], choices: Mapping[str, Any]) -> None:
    """Give each part that may be one of several models its kind, and the defaults of that model.

    The kind stands in the config; else it is the name of the chosen option, `ppo` of `agent=ppo`; else, where no option
    was chosen or the one that is called `default`, the kind of the field's default.

    Args:
        config: A composed config; it is changed.
        config_type: Its model.
        choices: Hydra's: the chosen option of each group.

    Raises:
        ConfigurationError: It does not show of which kind a part is.
    """
    options = {_place_of(str(group)): str(option) for group, option in choices.items() if option is not None}
    with flag_override(config, ["struct", "readonly"], [False, False]):
        unclear = list(_complete(config, config_type, (), options))
    if unclear:
        raise ConfigurationError("\n".join(unclear))


def _place_of(group: str) -> _Place:
    """Return the keys where the option of a group goes: `model/net` and `net@model.net` are both for `model.net`."""
    name, _, package = group.partition("@")
    return tuple(package.split(".") if package else name.split("/"))


def _complete(config: DictConfig, model: type[BaseModel], place: _Place, options: dict[_Place, str]) -> Iterator[str]:
    for name, info in model.model_fields.items():
        models, many = models_in(info)
        if not models or not _is_part(config, name):
            continue
        if is_variant(info):
            yield from _complete_variant(config, name, info, place, options)
        elif many:
            keys = [str(key) for key in config[name] if _is_part(config[name], str(key))]
            for key in keys:
                yield from _complete(config[name][key], models[0], (*place, name, key), options)
        else:
            yield from _complete(config[name], models[0], (*place, name), options)


def _is_part(config: DictConfig, name: str) -> bool:
    is_elsewhere = OmegaConf.is_missing(config, name) or OmegaConf.is_interpolation(config, name)
    return not is_elsewhere and isinstance(config.get(name), DictConfig)


def _complete_variant(
    config: DictConfig, name: str, info: FieldInfo, place: _Place, options: dict[_Place, str]
) -> Iterator[str]:
    models, _ = models_in(info)
    known, tag, made = by_tag(models), tag_of(models), default_of(info)
    default: dict[str, Any] = made if isinstance(made, dict) else {}
    if tag is None:
        config[name] = config[name] or default
        return
    option = options.get((*place, name), "default")
    named = option.rpartition("/")[2]
    kind = config[name].get(tag) or (named if named in known else default.get(tag) if named == "default" else None)
    if kind is None:
        key = ".".join((*place, name))
        where = "" if named == "default" else f", or write `{tag}: <value>` into {option}.yaml"
        yield f"{key}.{tag} has no value; give it one with {key}.{tag}=<value>, one of {', '.join(known)}{where}"
    elif model := known.get(str(kind)):  # pydantic complains of another kind
        given = default if str(default.get(tag)) == str(kind) else {}
        config[name] = OmegaConf.merge(defaults_of(model, given), config[name], {tag: kind})
        yield from _complete(config[name], model, (*place, name), options)
