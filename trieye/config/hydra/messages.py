"""Messages: what Hydra or pydantic found, with the key as typed, the value, what is allowed and the nearest match.

Their own sentences stand where these say as much. Hydra's are not read: a message looks an override up in the groups
and in the config that composes without it.
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

from trieye.config.base import did_you_mean, models_in, nearest, set_by
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
_OF_PYDANTIC = frozenset(get_args(core_schema.ErrorType))
_MOST = 4  # alternatives that one message names


def unknown_key(key: str, holders: Models, root: type[BaseModel], groups: Sequence[str] = ()) -> str:
    """Return the complaint about a key that none of the models at its place has.

    Args:
        key: The key, with those that lead to it.
        holders: The models at its place.
        root: The model of the whole config.
        groups: The groups that could have been meant as well.
    """
    *parents, name = key.split(".")
    known = {field: set_by(info) for holder in holders for field, info in holder.model_fields.items()}
    if new := renamed_field(name, known):
        return f"{key} was renamed to {'.'.join([*parents, new])}"
    if known.get(name):
        return f"{key} is set by {known[name]}; type {known[name]}=<value>"
    allowed = sorted({*groups, *(field for field, other in known.items() if not other)})
    below = paths_below(holders)
    meant = [path for path in below if path[-1] == name]
    if not meant and not parents:  # a word of a key, as `resume` of `auto_resume_latest`
        meant = [path for path in below if name in path[-1].split("_")]
    if not meant and nearest(name, allowed) is None:
        near = nearest(name, [path[-1] for path in below])
        meant = [path for path in below if path[-1] == near]
    keys = keys_meant(name, root, parents, holders) or [".".join([*parents, *path]) for path in meant[:_MOST]]
    hint = f"; did you mean {' or '.join(map(repr, keys))}?" if keys else did_you_mean(name, allowed)
    kind, kinds = ("key or group", "keys and groups") if groups else ("key", "keys")
    place = f" of {'.'.join(parents)}" if parents else ""
    return f"there is no {kind} {name!r}{place}{hint} ({kinds}: {', '.join(allowed)})"


def is_renamed(complaint: str) -> bool:
    """Return whether a complaint of `unknown_key` states the new name of a key."""
    return " was renamed to " in complaint


def absent_key(override: Override, root: type[BaseModel]) -> str | None:
    """Return the complaint about a key that the models of a config lack; None if there may be one once it is composed.

    Args:
        override: The override.
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


def wanted(info: FieldInfo | None) -> str:
    """Return what a field takes, such as `an integer >= 1 or null`."""
    return " or ".join(dict.fromkeys(_described(schema) for schema in _json_schemas(info))) or "another value"


def _described(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    bounds = " and ".join(
        f"{sign} {schema[name]:,}".replace(",", "_") for name, sign in _BOUNDS.items() if name in schema
    )
    if schema.get("type") == "array":  # a tuple says `prefixItems`, one for each place
        items = [schema["items"]] if schema.get("items") else schema.get("prefixItems", [])
        each = ", ".join(dict.fromkeys(map(_described, items)))
        return f"a list{' with ' if bounds else ''}{bounds}{' of values that are each ' if each else ''}{each}"
    if "examples" in schema:
        return f"text such as {schema['examples'][0]}"
    text = _TYPES.get(schema.get("type", ""), "keys with values")
    return f"{text}{' that is not empty' if schema.get('minLength') else ''} {bounds}".rstrip()


def _json_schemas(info: FieldInfo | None) -> list[dict[str, Any]]:
    if info is None:
        return []
    try:
        schema = TypeAdapter(info.rebuild_annotation()).json_schema()
    except PydanticInvalidForJsonSchema:
        return []
    return list(schema.get("anyOf", [schema]))


def _choices(info: FieldInfo | None) -> list[str]:
    schemas = [inner for schema in _json_schemas(info) for inner in (schema, schema.get("items", {}))]
    return [str(choice) for schema in schemas for choice in schema.get("enum", [])]


def complaints(
    error: ValidationError, model: type[BaseModel], values: dict[str, Any], overrides: Sequence[str]
) -> list[str]:
    """Return a line for each mistake that pydantic found.

    Args:
        error: What pydantic found.
        model: The model that was validated.
        values: The values that the model refused.
        overrides: What was typed on the command line; a value from there is shown as it was typed.
    """
    return list(dict.fromkeys(_Part(model, values, overrides, model).complaints(error)))


@dataclass(frozen=True)
class _Part:
    """A config, or a part of a config that is a variant.

    Attributes:
        model: The model of the part.
        values: The values that the model refused.
        overrides: The command line.
        root: The model of the whole config.
        place: The keys that lead to the part.
    """

    model: type[BaseModel]
    values: dict[str, Any]
    overrides: Sequence[str]
    root: type[BaseModel]
    place: tuple[str, ...] = ()

    def complaints(self, error: ValidationError) -> Iterator[str]:
        """Yield a line for each mistake; those in a variant are the mistakes of the model that was meant."""
        seen = set()
        for details in error.errors():
            variant = _variant_on(details["loc"], self.model)
            if variant is None:
                yield self._complaint(details)
            elif variant not in seen:
                seen.add(variant)
                yield from self._about_variant(variant, details)

    def _about_variant(self, variant: tuple[str, ...], details: ErrorDetails) -> Iterator[str]:
        info, held = field_at(self.model, variant), self.values
        for name in variant:
            held = held.get(name, {})
        models, here = models_in(info)[0] if info is not None else [], (*self.place, *variant)
        tag, candidates = tag_of(models), meant(models, held)
        if not isinstance(held, dict) and "error" in details.get("ctx", {}):  # a validator's own words
            yield self._complaint(details)
        elif not isinstance(held, dict):
            yield f"{self._found(here, held)}: {wanted(info)} is expected, found {_shown(held)}"
        elif not candidates:
            kind, known = str(held[str(tag)]), by_tag(models)
            found = self._found((*here, str(tag)), kind)
            yield f"{found}: one of {', '.join(known)} is expected, found {_shown(kind)}{did_you_mean(kind, known)}"
        elif refused := [(error, model) for model in candidates if (error := _refusal(model, held)) is not None]:
            error, model = min(refused, key=lambda each: each[0].error_count())
            yield from _Part(model, held, self.overrides, self.root, here).complaints(error)
        else:  # each model takes the values, and a validator of the field does not
            yield self._complaint(details)

    def _complaint(self, details: ErrorDetails) -> str:
        path, value = _as_typed(details, self.values), details["input"]
        here = (*self.place, *path)
        key, info = ".".join(here), field_at(self.model, path)
        if details["type"] in ("unknown_key", "extra_forbidden"):
            text = unknown_key(key, models_at(self.model, path[:-1]), self.root)
            return f"{self._found(here, value) if is_renamed(text) else key}: {text}"
        if details["type"] == "missing" and isinstance(value, dict):  # else a tuple is too short
            return f"{key} has no value; give it one with {key}=<value>, {wanted(info)}"
        found, cause = self._found(here, value), details.get("ctx", {}).get("error")
        if cause is not None or details["type"] not in _OF_PYDANTIC:
            text = str(cause or details["msg"])  # a validator's own words, which may begin with the name of the field
            is_named = bool(path) and text.startswith(f"{path[-1]} ")
            return f"{key}{text.removeprefix(path[-1])}" if is_named else f"{found}: {text}".removeprefix(": ")
        shown = "keys with values" if isinstance(value, dict) else _shown(value)
        return f"{found}: {wanted(info)} is expected, found {shown}{did_you_mean(str(value), _choices(info))}"

    def _found(self, path: Sequence[str], value: Any) -> str:
        """Return a key and its value, as typed if it was typed."""
        key = ".".join(path)
        typed = [override for override in self.overrides if override.lstrip("+").partition("=")[0] == key]
        return typed[-1] if typed else f"{key}={value}" if isinstance(value, str | int | float | None) else key


def _variant_on(loc: Sequence[str | int], model: type[BaseModel]) -> tuple[str, ...] | None:
    """Return the keys of the first variant on pydantic's way to an error."""
    for depth, part in enumerate(loc, start=1):
        info = model.model_fields.get(str(part))
        models, many = models_in(info) if info is not None else ([], False)
        if info is not None and is_variant(info):
            return tuple(map(str, loc[:depth]))
        if many or not models:
            return None
        model = models[0]
    return None


def _refusal(model: type[BaseModel], values: dict[str, Any]) -> ValidationError | None:
    try:
        model.model_validate(values)
    except ValidationError as error:
        return error
    return None


def _as_typed(details: ErrorDetails, values: dict[str, Any]) -> list[str]:
    """Return pydantic's location as keys: numbers of metrics become their slugs, names of union members vanish."""
    path: list[str] = []
    node: Any = values
    for part in details["loc"]:
        if isinstance(node, dict) and isinstance(part, int):
            part = [key for key, value in node.items() if value is not None][part]  # noqa: PLW2901 - its name in YAML
        if isinstance(node, dict) and part not in node:
            continue
        if isinstance(node, list) or (path and not isinstance(node, dict)):
            return path  # what follows a value tells which type of a union refused it
        path.append(str(part))
        node = node[part] if isinstance(node, dict) else node
    if details["type"] in ("missing", "extra_forbidden") and (not path or path[-1] != details["loc"][-1]):
        path.append(str(details["loc"][-1]))
    return path


def _shown(value: Any) -> str:
    """Return a value for a message: quoted, and not longer than a line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 - about a line


class Diagnosis:
    """Why overrides do not fit the configs of a loader."""

    def __init__(self, loader: Loader, config_type: type[BaseModel]) -> None:
        self._loader = loader
        self._config_type = config_type

    @cached_property
    def _groups(self) -> list[str]:
        return self._loader.groups()

    def of_choices(self, choices: Sequence[Override], error: Exception) -> str:
        """Return a line for each choice that cannot be made, or Hydra's own words if all can.

        Args:
            choices: Overrides that choose options.
            error: What Hydra raised.
        """
        found = [complaint for choice in choices for complaint in self._about_choice(choice)]
        found = found or list(self._about_lists([str(choice.input_line) for choice in choices]))
        return "\n".join(found) or self._in_hydras_words(error)

    def of_key(self, override: Override, config: DictConfig, error: Exception) -> str:
        """Return why a key cannot be set.

        Args:
            override: The override.
            config: The composed config that it does not fit.
            error: What Hydra raised.
        """
        if override.package is not None:
            group = override.key_or_group
            known = f"{did_you_mean(group, self._groups)} (groups: {', '.join(self._groups)})"
            return f"{override.input_line}: there is no group {group!r}{known}"
        return "\n".join(self._about_key(override, config)) or f"{override.input_line}: {self._in_hydras_words(error)}"

    def _about_lists(self, overrides: Sequence[str]) -> Iterator[str]:
        """Yield a line for each list in a config where keys with values belong."""
        with contextlib.suppress(*NOT_COMPOSED):  # what failed has its own message
            for name, values in self._loader.contents(overrides):
                yield from (
                    f"{name}.yaml: {_needs_keys(key, [])}" for key in _lists_for_keys(self._config_type, values)
                )

    def _about_choice(self, override: Override) -> Iterator[str]:
        group, value, line = override.key_or_group, override.value(), override.input_line
        listed, options = self._loader.entries(), self._loader.options_below(group)
        if override.is_delete() or not options:
            return
        name, known = override.get_key_element().lstrip("+"), f"(options: {', '.join(options)})"
        if value is None and isinstance(listed.get(name), list):
            yield f"{line}: {group} takes a list; type {group}=[] for none {known}"
        for option in value if isinstance(value, list) else [] if value is None else [value]:
            if str(option).removesuffix(".yaml") not in options:
                near = did_you_mean(str(option), options)
                yield f"{line}: {_shown(option)} is no option of {group}{near} {known}"
        if override.is_add() and name in listed:
            yield f"{line}: {name} is in the defaults list already; type {str(line).lstrip('+')}"

    def _about_key(self, override: Override, config: DictConfig) -> Iterator[str]:
        path = str(override.key_or_group).split(".")
        node: Any = OmegaConf.to_container(config, resolve=False)
        for depth, name in enumerate(path):
            if not isinstance(node, dict) or name not in node:
                yield from self._about_absent(override, path, depth, node)
                return
            node = node[name]
        info = field_at(self._config_type, path)
        if info is not None and models_in(info)[1] and not isinstance(override.value(), dict):
            yield f"{override.input_line}: {_needs_keys('.'.join(path), override.value())}"

    def _about_absent(self, override: Override, path: list[str], depth: int, node: Any) -> Iterator[str]:
        """Yield the complaint about a key that its place lacks, if Hydra does not say how to add it."""
        key, line, model = ".".join(path[: depth + 1]), override.input_line, self._config_type
        item, holders = item_at(model, path[:depth]), models_at(model, path[:depth])
        info = field_at(model, path[: depth + 1])
        if (info is not None and not set_by(info)) or (item is None and (override.is_add() or override.is_force_add())):
            return
        if holders:
            groups = self._loader.groups("hydra") if key.startswith("hydra/") else self._groups
            yield f"{line}: {unknown_key(key, holders, model, () if depth else groups)}"
            return
        known = list(map(str, node)) if isinstance(node, dict) else []
        if new := renamed_field(path[depth], known):
            yield f"{line}: {key} was renamed to {'.'.join([*path[:depth], new])}"
            return
        near, advice = did_you_mean(path[depth], known), ""
        template = item.__name__.removesuffix("Config").lower() if item is not None else ""
        if template in self._groups and not override.is_delete():
            options = ", ".join(self._loader.options(template))
            advice = f"; add it with '+{template}@{key}=<option>' (options: {options})"
        elif item is None and isinstance(node, dict) and not near and not override.is_delete():
            advice = f"; add it with '+{line}'"
        near = f"{near} (keys: {', '.join(known) or 'none'}){advice}"
        yield f"{line}: there is no key {path[depth]!r} of {'.'.join(path[:depth])}{near}"

    def _in_hydras_words(self, error: Exception) -> str:
        """Return the message of Hydra, with the nearest match where OmegaConf says which key it did not find."""
        cause = error.__cause__ or error.__context__
        lines = [without_parser_words(str(error)) or "this does not compose"]
        if isinstance(cause, OmegaConfBaseException):
            if "\n" not in lines[0] and str(cause).splitlines()[0] not in lines[0]:
                lines.append(str(cause).splitlines()[0])
            key = cause.full_key or ""
            holders = models_at(self._config_type, key.split(".")[:-1])
            if key in self._groups and key not in self._config_type.model_fields:
                lines.append(f"say where an option of {key} goes: '+{key}@<key>=<option>' (--help {key} says more)")
            elif holders and key and field_at(self._config_type, key.split(".")) is None:
                text, file = unknown_key(key, holders, self._config_type), re.match(r"In '(.+?)': ", lines[0])
                lines = [f"{file[1]}.yaml: {text}"] if file and is_renamed(text) else [*lines, f"{key}: {text}"]
        return "\n".join(lines)


def _needs_keys(key: str, value: Any) -> str:
    found = "a list" if isinstance(value, list) else _shown(value)
    return (
        f"{key} takes keys with values, found {found}; give each item a short name of your choice, as in "
        f"{key}={{loss: {{name: loss}}}}"
    )


def _lists_for_keys(model: type[BaseModel], values: Mapping[str, Any], place: str = "") -> Iterator[str]:
    """Yield the keys whose items need names of their own, and that have a list."""
    for name, info in model.model_fields.items():
        (models, many), value, key = models_in(info), values.get(name), f"{place}{name}"
        if many and isinstance(value, list):
            yield key
        elif not many and isinstance(value, Mapping):
            yield from (found for inner in models for found in _lists_for_keys(inner, value, f"{key}."))


def without_parser_words(text: str) -> str:
    """Return a message of Hydra without the names of exceptions and of OmegaConf's own types."""
    lines = (line for line in text.splitlines() if not re.match(r"\s*(?:full_key|object_type|reference_type)\b", line))
    return re.sub(r"\b\w+(?:Error|Exception)\b(?: raised while composing config)?:\s*", "", "\n".join(lines)).strip()
