"""Messages of composition and validation errors: key as typed, value, allowed values, closest match.

Hydra's messages are not parsed: an override is looked up in the groups and in the config that composes without it. The
sentences of Hydra and pydantic are used where they contain the same information.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, core_schema

from trieye.config.base import did_you_mean, is_open, models_in, nearest, set_by, takes_values
from trieye.config.hydra.keys import (
    Models,
    by_tag,
    field_at,
    is_in_variant,
    is_variant,
    item_at,
    keys_meant,
    meant,
    models_at,
    paths_below,
    tag_of,
)
from trieye.config.hydra.loader import NOT_COMPOSED, Loader
from trieye.renames import renamed_field

_BOUNDS = {
    "minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<",
    "minItems": "length >=", "maxItems": "length <=",
}  # fmt: skip
_TYPES = {"integer": "an integer", "number": "a number", "string": "text", "boolean": "true or false", "null": "null"}
_PYDANTIC_ERRORS = frozenset(get_args(core_schema.ErrorType))
_MAX_LISTED = 4  # alternatives in a message


def unknown_key(key: str, holders: Models, root: type[BaseModel], groups: Sequence[str] = ()) -> str:
    """Return the message for a key that none of the possible models defines.

    Args:
        key: The dotted key.
        holders: The models that could define its last part.
        root: The model of the whole config.
        groups: Config groups to suggest as well.
    """
    *parents, name = key.split(".")
    setters = {field: set_by(info) for holder in holders for field, info in holder.model_fields.items()}
    if new_name := renamed_field(name, setters):
        return f"{key} was renamed to {'.'.join([*parents, new_name])}"
    if setters.get(name):
        return f"{key} is set by {setters[name]}; type {setters[name]}=<value>"
    allowed_keys = sorted({*groups, *(field for field, setter in setters.items() if not setter)})
    paths = paths_below(holders)
    names = {path[-1] for path in paths}
    matches = {name} & names or {other for other in names if not parents and name in other.split("_")}  # word of a key
    if not matches and nearest(name, allowed_keys) is None and (match := nearest(name, names)):
        matches = {match}
    nested_keys = [".".join([*parents, *path]) for path in paths if path[-1] in matches]
    keys = keys_meant(name, root, parents, holders) or nested_keys[:_MAX_LISTED]
    hint = f"; did you mean {' or '.join(map(repr, keys))}?" if keys else did_you_mean(name, allowed_keys)
    variants = by_tag(models_at(root, parents))
    if options := [f"{'.'.join(parents)}={tag}" for tag, model in variants.items() if name in model.model_fields]:
        hint = f"; it is a key of {' and '.join(options)}"
    noun, nouns = ("key or group", "keys and groups") if groups else ("key", "keys")
    location = f" in {'.'.join(parents)}" if parents else ""
    return f"unknown {noun} {name!r}{location}{hint} ({nouns}: {', '.join(allowed_keys)})"


def absent_key(override: Override, root: type[BaseModel]) -> str | None:
    """Return the message for a key that no model defines; None if only the composed config can tell.

    Args:
        override: The override that sets the key.
        root: The model of the whole config.
    """
    path = str(override.key_or_group).split(".")
    if override.is_add() or override.is_force_add() or is_in_variant(root, path[:-1]):
        return None
    for depth in range(1, len(path)):
        holders, info = models_at(root, path[:depth]), field_at(root, path[: depth + 1])
        if not holders:
            return None
        if info is None or set_by(info):
            return f"{override.input_line}: {unknown_key('.'.join(path[: depth + 1]), holders, root)}"
    return None


def allowed_values(info: FieldInfo | None) -> str:
    """Return the type and bounds of a field in words, such as `an integer >= 1 or null`."""
    return " or ".join(dict.fromkeys(_described(schema) for schema in _json_schemas(info))) or "another value"


def _described(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    bounds = " and ".join(
        f"{sign} {schema[name]:,}".replace(",", "_") for name, sign in _BOUNDS.items() if name in schema
    )
    if schema.get("type") == "array":  # a tuple has `prefixItems`, one for each element
        item_schemas = [schema["items"]] if schema.get("items") else schema.get("prefixItems", [])
        item_text = ", ".join(dict.fromkeys(map(_described, item_schemas)))
        return (
            f"a list{' with ' if bounds else ''}{bounds}{' of values that are each ' if item_text else ''}{item_text}"
        )
    if "examples" in schema:
        return f"text such as {', '.join(schema['examples'])}"
    if 0 < len(properties := schema.get("properties", ())) <= _MAX_LISTED:
        return f"{{{', '.join(properties)}}}"
    text = _TYPES.get(schema.get("type", ""), "keys with values")
    return f"{text}{' that is not empty' if schema.get('minLength') else ''} {bounds}".rstrip()


def _json_schemas(info: FieldInfo | None) -> list[dict[str, Any]]:
    if info is None:
        return []
    try:
        schema = TypeAdapter(info.rebuild_annotation()).json_schema()
    except PydanticInvalidForJsonSchema:
        return []
    if info.examples:  # pydantic leaves them out of the schema of the annotation
        schema.setdefault("examples", info.examples)
    definitions = {f"#/$defs/{name}": definition for name, definition in schema.get("$defs", {}).items()}
    return [definitions.get(option.get("$ref"), option) for option in schema.get("anyOf", [schema])]


def _choices(info: FieldInfo | None) -> list[str]:
    schemas = [inner for schema in _json_schemas(info) for inner in (schema, schema.get("items", {}))]
    return [str(choice) for schema in schemas for choice in schema.get("enum", [])]


def complaints(
    error: ValidationError, model: type[BaseModel], values: dict[str, Any], overrides: Sequence[str]
) -> list[str]:
    """Return a line for each error that pydantic reports.

    Args:
        error: The validation error.
        model: The validated model.
        values: The rejected values.
        overrides: Overrides of the command line; the values that they set are shown as typed.
    """
    return list(dict.fromkeys(_Part(model, values, overrides, model).complaints(error)))


@dataclass(frozen=True)
class _Part:
    """A config, or a variant within a config.

    Attributes:
        model: The model of this part.
        values: The rejected values of this part.
        overrides: Overrides of the command line.
        root: The model of the whole config.
        parents: The keys that lead to this part.
    """

    model: type[BaseModel]
    values: dict[str, Any]
    overrides: Sequence[str]
    root: type[BaseModel]
    parents: tuple[str, ...] = ()

    def complaints(self, error: ValidationError) -> Iterator[str]:
        """Yield a line for each error; in a variant, the errors of the model that its kind selects."""
        seen_variants = set()
        for details in error.errors():
            variant = _variant_on(details["loc"], self.model)
            if variant is None:
                yield self._complaint(details)
            elif variant not in seen_variants:
                seen_variants.add(variant)
                yield from self._about_variant(variant, details)

    def _about_variant(self, variant: tuple[str, ...], details: ErrorDetails) -> Iterator[str]:
        info, value = field_at(self.model, variant), self.values
        for name in variant:
            value = value.get(name, {})
        models, path = models_in(info)[0] if info is not None else [], (*self.parents, *variant)
        tag, candidates = tag_of(models), meant(models, value)
        if not isinstance(value, dict) and "error" in details.get("ctx", {}):  # the message of a validator
            yield self._complaint(details)
        elif not isinstance(value, dict):
            yield f"{self._as_typed(path, value)}: expected {allowed_values(info)}, found {_shown(value)}"
        elif not candidates:
            kind, model_by_kind = str(value[str(tag)]), by_tag(models)
            typed = self._as_typed((*path, str(tag)), kind)
            hint = did_you_mean(kind, model_by_kind)
            yield f"{typed}: expected one of {', '.join(model_by_kind)}, found {_shown(kind)}{hint}"
        elif pairs := [(error, model) for model in candidates if (error := _refusal(model, value)) is not None]:
            error, model = min(pairs, key=lambda each: each[0].error_count())
            yield from _Part(model, value, self.overrides, self.root, path).complaints(error)
        else:  # each model accepts the values, a validator of the field does not
            yield self._complaint(details)

    def _complaint(self, details: ErrorDetails) -> str:
        path, value = _path_of(details, self.values), details["input"]
        full_path = (*self.parents, *path)
        key, info = ".".join(full_path), field_at(self.model, path)
        override_text, cause = self._as_typed(full_path, value), details.get("ctx", {}).get("error")
        if list(details["loc"][-1:]) != path[-1:] and any(isinstance(part, int) for part in details["loc"]):
            override_text = self._as_typed(full_path, [])  # the value is that of an item of a list
            if details["type"] == "missing" and isinstance(value, dict):
                index, *keys = details["loc"][len(path) :]
                return f"{override_text}: item {index}, {_shown(value)}, has no value for {'.'.join(map(str, keys))}"
        elif details["type"] in ("unknown_key", "extra_forbidden"):
            return f"{override_text}: {unknown_key(key, models_at(self.model, path[:-1]), self.root)}"
        if details["type"] == "missing" and isinstance(value, dict):  # else a tuple is too short
            return f"{key} has no value; set it with {key}=<value>, {allowed_values(info)}"
        if cause is not None or details["type"] not in _PYDANTIC_ERRORS:
            text = str(cause or details["msg"])  # the message of a validator may start with the name of the field
            is_named = bool(path) and text.startswith(f"{path[-1]} ")
            return f"{key}{text.removeprefix(path[-1])}" if is_named else f"{override_text}: {text}".removeprefix(": ")
        if details["loc"][-1:] == ("[key]",):
            return f"{key}: expected text as a key, found {_shown(value)}"
        value_text = "keys with values" if isinstance(value, dict) else _shown(value)
        types = {"string_type": "text", "dict_type": "keys with values"} if info is None else {}  # of an item in a dict
        allowed = types.get(details["type"]) or allowed_values(info)
        return f"{override_text}: expected {allowed}, found {value_text}{did_you_mean(str(value), _choices(info))}"

    def _as_typed(self, path: Sequence[str], value: Any) -> str:
        """Return the override that sets a key, else `key=value`."""
        key = ".".join(path)
        matches = [text for text in self.overrides if text.lstrip("+").partition("=")[0] == key]
        return matches[-1] if matches else f"{key}={value}" if isinstance(value, str | int | float | None) else key


def _variant_on(loc: Sequence[str | int], model: type[BaseModel]) -> tuple[str, ...] | None:
    """Return the path to the first variant on the path to an error."""
    for depth, part in enumerate(loc, start=1):
        info = model.model_fields.get(str(part))
        models, is_collection = models_in(info) if info is not None else ([], False)
        if info is not None and is_variant(info):
            return tuple(map(str, loc[:depth]))
        if is_collection or not models:
            return None
        model = models[0]
    return None


def _refusal(model: type[BaseModel], values: dict[str, Any]) -> ValidationError | None:
    try:
        model.model_validate(values)
    except ValidationError as error:
        return error
    return None


def _path_of(details: ErrorDetails, values: dict[str, Any]) -> list[str]:
    """Return pydantic's location as keys: indices of metrics become their names, union members are removed.

    The path of an invalid key is that of its dict, because pydantic's location does not distinguish 1 from True.
    """
    path: list[str] = []
    node: Any = values
    for part in details["loc"][: -2 if details["loc"][-1:] == ("[key]",) else None]:
        if isinstance(node, dict) and isinstance(part, int) and part not in node:
            part = [key for key, value in node.items() if value is not None][part]  # noqa: PLW2901 - the name in YAML
        if isinstance(node, dict) and part not in node:
            continue
        if isinstance(node, list) or (path and not isinstance(node, dict)):
            return path  # the rest names the member of a union that rejected the value
        path.append(str(part))
        node = node[part] if isinstance(node, dict) else node
    if details["type"] in ("missing", "extra_forbidden") and (not path or path[-1] != details["loc"][-1]):
        path.append(str(details["loc"][-1]))
    return path


def _shown(value: Any) -> str:
    """Return the repr of a value, shortened to about a line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 - a line


class Diagnosis:
    """Explains why overrides do not compose with the configs of a loader."""

    def __init__(self, loader: Loader, config_type: type[BaseModel]) -> None:
        self._loader = loader
        self._config_type = config_type

    @cached_property
    def _groups(self) -> list[str]:
        return self._loader.groups()

    def of_choices(self, choices: Sequence[Override], error: Exception) -> str:
        """Return a line for each invalid option, or Hydra's message if all are valid.

        Args:
            choices: Overrides that select options of groups.
            error: The error of Hydra.
        """
        complaints = [complaint for choice in choices for complaint in self._about_choice(choice)]
        complaints = complaints or list(self._about_values([str(choice.input_line) for choice in choices]))
        return "\n".join(complaints) or self._hydra_message(error)

    def of_key(self, override: Override, config: DictConfig, error: Exception) -> str:
        """Return why a key cannot be set.

        Args:
            override: The override.
            config: The composed config without the override.
            error: The error of Hydra.
        """
        if override.package is not None:
            group = override.key_or_group
            hint = f"{did_you_mean(group, self._groups)} (groups: {', '.join(self._groups)})"
            return f"{override.input_line}: unknown group {group!r}{hint}"
        return "\n".join(self._about_key(override, config)) or f"{override.input_line}: {self._hydra_message(error)}"

    def _about_values(self, overrides: Sequence[str]) -> Iterator[str]:
        """Yield a line for each value in a config where keys with values are required."""
        with contextlib.suppress(*NOT_COMPOSED):  # reported by the caller
            for name, values in self._loader.contents(overrides):
                yield from (f"{name}.yaml: {text}" for text in _values_for_keys(self._config_type, values))

    def _about_choice(self, override: Override) -> Iterator[str]:
        group, value, line = override.key_or_group, override.value(), override.input_line
        options = self._loader.options_below(group)
        if override.is_delete() or not options:
            return
        for option in value if isinstance(value, list) else [value]:
            if str(option).removesuffix(".yaml") not in options:
                hint = f"{did_you_mean(str(option), options)} (options: {', '.join(options)})"
                yield f"{line}: unknown option {_shown(option)} of {group}{hint}"
        if override.is_add() and (name := override.get_key_element().lstrip("+")) in self._loader.entries():
            yield f"{line}: {name} is already in the defaults list; type {str(line).lstrip('+')}"

    def _about_key(self, override: Override, config: DictConfig) -> Iterator[str]:
        path = str(override.key_or_group).split(".")
        node: Any = OmegaConf.to_container(config, resolve=False)
        for depth, name in enumerate(path):
            if not isinstance(node, dict) or name not in node:
                yield from self._about_absent(override, path, depth, node)
                return
            node = node[name]
        info, value = field_at(self._config_type, path), override.value()
        if info is not None and _needs_keys(info) and not (isinstance(value, dict) or override.is_delete()):
            yield f"{override.input_line}: expected keys with values, found {_shown(value)}"

    def _about_absent(self, override: Override, path: list[str], depth: int, parent_value: Any) -> Iterator[str]:
        """Yield the message for a key that the config lacks, unless Hydra's message already explains how to add it."""
        key, line, model = ".".join(path[: depth + 1]), override.input_line, self._config_type
        item, parent_models = item_at(model, path[:depth]), models_at(model, path[:depth])
        info = field_at(model, path[: depth + 1])
        if (info is not None and not set_by(info)) or (item is None and (override.is_add() or override.is_force_add())):
            return
        if parent_models:
            groups = self._loader.groups("hydra") if key.startswith("hydra/") else self._groups
            yield f"{line}: {unknown_key(key, parent_models, model, () if depth else groups)}"
            return
        keys = list(map(str, parent_value)) if isinstance(parent_value, dict) else []
        hint, advice = did_you_mean(path[depth], keys), ""
        template = item.__name__.removesuffix("Config").lower() if item is not None else ""
        if template in self._groups and not override.is_delete():
            options = ", ".join(self._loader.options(template))
            advice = f"; add it with '+{template}@{key}=<option>' (options: {options})"
        elif item is not None and not override.is_delete():  # Hydra adds whole entries only
            names, value = path[depth:], str(line).partition("=")[2]
            entry = "{" + ":{".join(names) + f":{value}" + "}" * len(names)
            advice = f"; add it with '+{'.'.join(path[:depth])}={entry}'"
        elif item is None and isinstance(parent_value, dict) and not hint and not override.is_delete():
            advice = f"; add it with '+{line}'"
        hint = f"{hint} (keys: {', '.join(keys) or 'none'}){advice}"
        yield f"{line}: unknown key {path[depth]!r} in {'.'.join(path[:depth])}{hint}"

    def _hydra_message(self, error: Exception) -> str:
        """Return the message of Hydra, with the closest match if OmegaConf names an unknown key."""
        cause = error.__cause__ or error.__context__
        lines = [without_parser_words(str(error)) or "the config does not compose"]
        if isinstance(cause, OmegaConfBaseException):
            if "\n" not in lines[0] and str(cause).splitlines()[0] not in lines[0]:
                lines.append(str(cause).splitlines()[0])
            key = cause.full_key or ""
            parent_models = models_at(self._config_type, key.split(".")[:-1])
            file, fields = re.match(r"In '(.+?)': ", lines[0]), self._config_type.model_fields
            if file and key not in fields and key in (file[1].split("/")[0], *self._groups):
                preset = f"a preset needs `# @package _global_` as the first line of {file[1]}.yaml"
                option = f"an option a target key: '+{key}@<key>=<option>' (see --help {key})"
                lines.append(f"{preset}, without a byte order mark, and {option}")
            elif parent_models and key and field_at(self._config_type, key.split(".")) is None:
                text = unknown_key(key, parent_models, self._config_type)
                lines = [f"{file[1]}.yaml: {text}"] if file else [*lines, text]
        return "\n".join(lines)


def _needs_keys(info: FieldInfo) -> bool:
    return models_in(info)[1] or is_open(info) or not takes_values(info)


def _values_for_keys(model: type[BaseModel], values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield a complaint for each key that needs keys with values, but has a list or a number."""
    for name, info in model.model_fields.items():
        (models, is_collection), value, key = models_in(info), values.get(name), f"{prefix}{name}"
        if isinstance(value, list | int | float) and _needs_keys(info):
            yield f"{key}: expected keys with values, found {_shown(value)}"
        elif not is_collection and isinstance(value, Mapping):
            yield from (text for inner in models for text in _values_for_keys(inner, value, f"{key}."))


def without_parser_words(text: str) -> str:
    """Return a message of Hydra without names of exceptions and of OmegaConf's types."""
    lines = (line for line in text.splitlines() if not re.match(r"\s*(?:full_key|object_type|reference_type)\b", line))
    return re.sub(r"\b\w+(?:Error|Exception)\b(?: raised while composing config)?:\s*", "", "\n".join(lines)).strip()
