"""Typing: from a composed config to plain values with each variant complete, and from those to the model."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from hydra.core.hydra_config import HydraConfig
from omegaconf import MISSING, DictConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from trieye.config.base import models_in
from trieye.config.hydra.keys import by_tag, is_variant, tag_of
from trieye.config.hydra.messages import complaints
from trieye.config.hydra.schema import default_of, defaults_of
from trieye.config.loop import LoopConfig
from trieye.config.root import TrieyeConfig
from trieye.exceptions import ConfigurationError

Config = TypeVar("Config", bound=TrieyeConfig)
Options = TypeVar("Options", bound=BaseModel)
_Place = tuple[str, ...]


def plain(node: Any, key: str) -> Any:
    """Return what a node holds at a key, resolved, as plain Python values."""
    found = OmegaConf.select(node, key)
    return OmegaConf.to_container(found, resolve=True) if OmegaConf.is_config(found) else found


def without_hydra(config: DictConfig) -> DictConfig:
    """Return the config without the node `hydra`, which can still be interpolated from."""
    copy = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    OmegaConf.set_struct(copy, value=True)
    return copy


@contextmanager
def as_in_a_job(config: DictConfig) -> Iterator[None]:
    """Let `${hydra:...}` resolve as it will in the job; keys that are set by the job get stand-ins."""
    instance, stand_ins = HydraConfig.instance(), {"output_dir": str(Path.cwd() / "outputs"), "id": "0", "num": 0}
    nodes = {"output_dir": config.hydra.runtime, "id": config.hydra.job, "num": config.hydra.job}
    missing = {name: node for name, node in nodes.items() if OmegaConf.is_missing(node, name)}
    before = instance.cfg
    with flag_override(config, ["struct", "readonly"], [False, False]):
        for name, node in missing.items():
            node[name] = stand_ins[name]
    instance.set_config(config)
    try:
        yield
    finally:
        instance.cfg = before
        OmegaConf.set_readonly(config.hydra, value=False)  # `set_config` has closed it
        with flag_override(config, ["struct", "readonly"], [False, False]):
            for name, node in missing.items():
                node[name] = MISSING


def resolved(config: DictConfig, config_type: type[TrieyeConfig]) -> dict[str, Any]:
    """Complete the variants of a composed config, and return it without the node `hydra` as plain values.

    Raises:
        ConfigurationError: A value is missing, or an interpolation leads nowhere.
    """
    try:
        complete(config, config_type, plain(HydraConfig.get(), "runtime.choices"))
        own = without_hydra(config)
        missing = sorted(OmegaConf.missing_keys(own))
        values: Any = OmegaConf.to_container(own, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigurationError(f"{error.full_key or 'the config'}: {str(error).splitlines()[0]}") from error
    if missing:
        raise ConfigurationError(
            "\n".join(f"{key} has no value; give it one with {key}=<value>, or in the config files" for key in missing)
        )
    return {str(key): value for key, value in values.items()}


def typed(values: dict[str, Any], config_type: type[Config], *, overrides: Sequence[str], working_dir: Path) -> Config:
    """Return the typed config of plain values.

    Args:
        values: A resolved config.
        config_type: The model.
        overrides: What was typed, for the messages.
        working_dir: What relative paths are relative to.

    Raises:
        ConfigurationError: A value is not allowed; the message has a line for each mistake.
    """
    try:
        made = config_type.model_validate(values)
    except ValidationError as error:
        raise ConfigurationError("\n".join(complaints(error, config_type, values, overrides))) from error
    loop = made.loop.model_copy(update=dict.fromkeys(replaced_limits(made.loop, overrides)))
    return made.model_copy(update={"persistence": made.persistence.anchored(working_dir), "loop": loop})


def replaced_limits(loop: LoopConfig, overrides: Sequence[str]) -> list[str]:
    """Return the limit that a typed one replaces: of `loop.steps` and `loop.env_steps`, if both count the same.

    Args:
        loop: The composed limits.
        overrides: As typed.
    """
    limits = {"steps": loop.steps, "env_steps": loop.env_steps}
    if loop.axis != "env_steps" or None in limits.values() or loop.steps == loop.env_steps:
        return []
    keys = {word.lstrip("+").partition("=")[0] for word in overrides}
    others = [name for name in limits if f"loop.{name}" not in keys]
    return others if len(others) == 1 else []


def plugin_options(
    place: str, model: type[Options], values: Mapping[str, Any], overrides: Sequence[str] = ()
) -> Options:
    """Return the options of a launcher or a sweeper of trieye.

    Args:
        place: The node, such as `hydra.launcher`.
        model: The model of its options.
        values: What the node holds, resolved; what Hydra itself reads there is left out.
        overrides: What was typed, for the messages.

    Raises:
        ConfigurationError: A value is not allowed; the message has a line for each mistake.
    """
    held: Any = OmegaConf.to_container(OmegaConf.create(dict(values)), resolve=True)
    options = {key: value for key, value in held.items() if not key.startswith("_")}
    try:
        return model.model_validate(options)
    except ValidationError as error:
        own = [word.removeprefix(f"{place}.") for word in overrides if word.startswith(f"{place}.")]
        lines = complaints(error, model, options, own)
        raise ConfigurationError("\n".join(f"{place}.{line}" for line in lines)) from error


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
