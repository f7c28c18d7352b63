"""From a composed config to a typed one: variants completed, values resolved, model validated."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from hydra.core.hydra_config import HydraConfig
from omegaconf import MISSING, DictConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from trieye.config.base import StrictModel, models_in
from trieye.config.hydra.keys import by_tag, is_variant, tag_of
from trieye.config.hydra.messages import complaints
from trieye.config.hydra.schema import default_of, defaults_of
from trieye.config.loop import LoopConfig
from trieye.config.root import TrieyeConfig
from trieye.exceptions import ConfigurationError

Config = TypeVar("Config", bound=TrieyeConfig)
Options = TypeVar("Options", bound=StrictModel)
_Path = tuple[str, ...]


def without_hydra(config: DictConfig) -> DictConfig:
    """Return the config without the node `hydra`; interpolations into it still resolve."""
    copy = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    OmegaConf.set_struct(copy, value=True)
    return copy


@contextmanager
def as_in_a_job(config: DictConfig) -> Iterator[None]:
    """Let `${hydra:...}` resolve as in a job; keys that Hydra sets when the job starts get placeholders."""
    instance, placeholders = HydraConfig.instance(), {"output_dir": str(Path.cwd() / "outputs"), "id": "0", "num": 0}
    nodes = {"output_dir": config.hydra.runtime, "id": config.hydra.job, "num": config.hydra.job}
    missing_nodes = {name: node for name, node in nodes.items() if OmegaConf.is_missing(node, name)}
    old_config = instance.cfg
    with flag_override(config, ["struct", "readonly"], [False, False]):
        for name, node in missing_nodes.items():
            node[name] = placeholders[name]
    instance.cfg = config  # type: ignore[assignment]  # `set_config` would copy the node `hydra`, which takes 6 ms
    try:
        yield
    finally:
        instance.cfg = old_config
        with flag_override(config, ["struct", "readonly"], [False, False]):
            for name, node in missing_nodes.items():
                node[name] = MISSING


def resolved(config: DictConfig, config_type: type[TrieyeConfig]) -> dict[str, Any]:
    """Complete the variants of a composed config, and return it without the node `hydra` as plain values.

    Raises:
        ConfigurationError: A value is missing, or an interpolation does not resolve.
    """
    try:
        complete(config, config_type, HydraConfig.get().runtime.choices)
        keys = [str(key) for key in config if key != "hydra"]
        missing_keys = [key for key in keys if OmegaConf.is_missing(config, key)]
        parts = {key: config[key] for key in keys if key not in missing_keys}  # a copy without `hydra` would take 20 ms
        nested_parts = {key: part for key, part in parts.items() if OmegaConf.is_config(part)}
        parts |= {key: OmegaConf.to_container(part, resolve=True) for key, part in nested_parts.items()}
        if missing_keys or _has_missing(parts):  # only then, because finding the keys takes 15 ms
            missing_keys += [key for part in nested_parts.values() for key in OmegaConf.missing_keys(part)]
    except OmegaConfBaseException as error:
        raise ConfigurationError(f"{error.full_key or 'the config'}: {str(error).splitlines()[0]}") from error
    if missing_keys:
        raise ConfigurationError(
            "\n".join(
                f"{key} has no value; set it with {key}=<value> or in the config files" for key in sorted(missing_keys)
            )
        )
    return parts


def _has_missing(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_missing, value.values()))
    return any(map(_has_missing, value)) if isinstance(value, list) else bool(value == MISSING)


def typed(values: dict[str, Any], config_type: type[Config], *, overrides: Sequence[str], working_dir: Path) -> Config:
    """Return the typed config of plain values.

    Args:
        values: A resolved config.
        config_type: The model.
        overrides: Overrides as typed, for error messages.
        working_dir: Directory that anchors relative paths.

    Raises:
        ConfigurationError: A value is invalid; the message has a line for each error.
    """
    try:
        config = config_type.model_validate(values)
    except ValidationError as error:
        raise ConfigurationError("\n".join(complaints(error, config_type, values, overrides))) from error
    loop = config.loop.model_copy(update=dict.fromkeys(replaced_limits(config.loop, overrides)))
    return config.model_copy(update={"persistence": config.persistence.anchored(working_dir), "loop": loop})


def replaced_limits(loop: LoopConfig, overrides: Sequence[str]) -> list[str]:
    """Return the limit that an override replaces: `loop.steps` or `loop.env_steps`, if both count environment steps.

    Args:
        loop: The composed limits.
        overrides: Overrides as typed.
    """
    limits = {"steps": loop.steps, "env_steps": loop.env_steps}
    if loop.axis != "env_steps" or None in limits.values() or loop.steps == loop.env_steps:
        return []
    keys = {word.lstrip("+").partition("=")[0] for word in overrides}
    names = [name for name in limits if f"loop.{name}" not in keys]
    return names if len(names) == 1 else []


def plugin_options(
    node: str, model: type[Options], values: Mapping[str, Any], overrides: Sequence[str] = ()
) -> Options:
    """Return the typed options of trieye's launcher or sweeper.

    Args:
        node: Key of the node, such as `hydra.launcher`.
        model: The model of its options.
        values: Values of the node; keys of Hydra, such as `_target_`, are ignored.
        overrides: Overrides as typed, for error messages.

    Raises:
        ConfigurationError: A value is invalid; the message has a line for each error.
    """
    resolved_values: Any = OmegaConf.to_container(OmegaConf.create(dict(values)), resolve=True)
    options = {key: value for key, value in resolved_values.items() if not key.startswith("_")}
    try:
        return model.model_validate(options)
    except ValidationError as error:
        own_overrides = [word.removeprefix(f"{node}.") for word in overrides if word.startswith(f"{node}.")]
        lines = complaints(error, model, options, own_overrides)
        raise ConfigurationError("\n".join(f"{node}.{line}" for line in lines)) from error


def complete(config: DictConfig, config_type: type[BaseModel], choices: Mapping[str, Any]) -> None:
    """Set the kind of each variant, and add the defaults of the selected model.

    The kind is the value in the config; else the name of the selected option, `ppo` for `agent=ppo`; else, if no option
    or the option `default` is selected, the kind of the field's default.

    Args:
        config: A composed config; it is modified.
        config_type: Its model.
        choices: The selected option of each group, from Hydra.

    Raises:
        ConfigurationError: The kind of a variant is unknown.
    """
    options = {_path_of(str(group)): str(option) for group, option in choices.items() if option is not None}
    with flag_override(config, ["struct", "readonly"], [False, False]):
        unclear = list(_complete(config, config_type, (), options))
    if unclear:
        raise ConfigurationError("\n".join(unclear))


def _path_of(group: str) -> _Path:
    """Return the path of keys that a group sets: `model/net` and `net@model.net` both set `model.net`."""
    name, _, package = group.partition("@")
    return tuple(package.split(".") if package else name.split("/"))


def _complete(config: DictConfig, model: type[BaseModel], path: _Path, options: dict[_Path, str]) -> Iterator[str]:
    for name, info in model.model_fields.items():
        models, is_collection = models_in(info)
        if not models or not _is_part(config, name):
            continue
        if is_variant(info):
            yield from _complete_variant(config, name, info, path, options)
        elif is_collection:
            keys = [str(key) for key in config[name] if _is_part(config[name], str(key))]
            for key in keys:
                yield from _complete(config[name][key], models[0], (*path, name, key), options)
        else:
            yield from _complete(config[name], models[0], (*path, name), options)


def _is_part(config: DictConfig, name: str) -> bool:
    has_no_keys = OmegaConf.is_missing(config, name) or OmegaConf.is_interpolation(config, name)
    return not has_no_keys and isinstance(config.get(name), DictConfig)


def _complete_variant(
    config: DictConfig, name: str, info: FieldInfo, path: _Path, options: dict[_Path, str]
) -> Iterator[str]:
    models, _ = models_in(info)
    model_by_kind, tag, field_default = by_tag(models), tag_of(models), default_of(info)
    default: dict[str, Any] = field_default if isinstance(field_default, dict) else {}
    if tag is None:
        config[name] = config[name] or default
        return
    option = options.get((*path, name), "default")
    option_name = option.rpartition("/")[2]
    kind = config[name].get(tag) or (
        option_name if option_name in model_by_kind else default.get(tag) if option_name == "default" else None
    )
    if kind is None:
        key = ".".join((*path, name))
        file_hint = "" if option_name == "default" else f", or add `{tag}: <value>` to {option}.yaml"
        yield f"{key}.{tag} has no value; set it with {key}.{tag}=<value>, one of {', '.join(model_by_kind)}{file_hint}"
    elif model := model_by_kind.get(str(kind)):  # pydantic reports unknown kinds
        overriding_values = default if str(default.get(tag)) == str(kind) else {}
        config[name] = OmegaConf.merge(defaults_of(model, overriding_values), config[name], {tag: kind})
        yield from _complete(config[name], model, (*path, name), options)
