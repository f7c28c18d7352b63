"""Complaints: pydantic's errors in the words of the command line."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, core_schema

from trieye.config.base import STRICT, did_you_mean, is_open, models_in, nearest, set_by, takes_text_only
from trieye.config.hydra.variants import by_tag, is_variant, meant, tag_of

_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
_TYPES = {"integer": "an integer", "number": "a number", "string": "text", "boolean": "true or false", "null": "null"}
_OF_PYDANTIC = frozenset(get_args(core_schema.ErrorType))
_PLURALS = {"integer": "integers", "number": "numbers", "string": "texts"}


def complaints(
    error: ValidationError, model: type[BaseModel], values: dict[str, Any], overrides: Sequence[str]
) -> list[str]:
    """Return one line for each mistake: the key as typed, the value, what is allowed, the nearest match.

    Args:
        error: What pydantic found.
        model: The model that was validated.
        values: What it was made from.
        overrides: What was typed on the command line; a value from there is shown as it was typed.
    """
    return list(dict.fromkeys(_Part(model, values, overrides).complaints(error)))


@dataclass(frozen=True)
class _Part:
    """A config, or a part of it that is a variant.

    Attributes:
        model: What it was meant to be.
        values: What it was made from.
        overrides: The command line.
        place: The keys that lead to it.
        others: The models that it could have been instead.
    """

    model: type[BaseModel]
    values: dict[str, Any]
    overrides: Sequence[str]
    place: tuple[str, ...] = ()
    others: Sequence[type[BaseModel]] = ()

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
        info, held = field_at(self.model, variant), _at(self.values, variant)
        models, here = models_in(info)[0] if info is not None else [], (*self.place, *variant)
        tag, candidates = tag_of(models), meant(models, held)
        if not isinstance(held, dict):
            found = _typed_text(".".join(here), held, self.overrides)
            yield f"{found}: {wanted(info)} is expected, found {show(held)}"
        elif not candidates:
            kind, known = str(held[str(tag)]), by_tag(models)
            found = _typed_text(".".join((*here, str(tag))), kind, self.overrides)
            yield f"{found}: one of {', '.join(known)} is expected, found {show(kind)}{did_you_mean(kind, known)}"
        elif refused := [(error, model) for model in candidates if (error := _refusal(model, held)) is not None]:
            error, model = min(refused, key=lambda each: each[0].error_count())
            others = [other for other in models if other is not model]
            yield from _Part(model, held, self.overrides, here, others).complaints(error)
        else:  # each model takes the values, and a validator of the field does not
            yield self._complaint(details)

    def _complaint(self, details: ErrorDetails) -> str:
        path = _as_typed(details, self.values)
        key = ".".join((*self.place, *path))
        if details["type"] in ("unknown_key", "extra_forbidden"):
            text = unknown_key(key, models_at(self.model, path[:-1]))
            return text + (_owner(path[0], self.model, self.others) if len(path) == 1 else "")
        info = field_at(self.model, path)
        if details["type"] == "missing":
            return f"{key} has no value; give it one with {key}=<value>, {wanted(info)}"
        found = _typed_text(key, details["input"], self.overrides)
        cause = details.get("ctx", {}).get("error")
        if cause is not None or details["type"] not in _OF_PYDANTIC:
            return _own_words(str(cause or details["msg"]), key, found, details["input"])
        if isinstance(details["input"], dict):
            return f"{key}: {wanted(info)} is expected, found keys with values"
        nearest = did_you_mean(str(details["input"]), _choices(info))
        return f"{found}: {wanted(info)} is expected, found {show(details['input'])}{nearest}"


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


def _at(values: Any, path: Sequence[str]) -> Any:
    for name in path:
        values = values.get(name) if isinstance(values, dict) else None
    return values


def _refusal(model: type[BaseModel], values: dict[str, Any]) -> ValidationError | None:
    try:
        model.model_validate(values, context=STRICT)
    except ValidationError as error:
        return error
    return None


def _owner(name: str, model: type[BaseModel], others: Sequence[type[BaseModel]]) -> str:
    """Return of which kind a key is that was given to a part of another kind, or an empty string."""
    kinds = by_tag([model, *others])
    tag, owners = tag_of([model, *others]), [kind for kind, other in kinds.items() if name in other.model_fields]
    own = next((kind for kind, other in kinds.items() if other is model), "")
    return f"; it belongs to {tag}={' or '.join(owners)}, and {tag} is {own}" if owners else ""


def unknown_key(key: str, holders: Sequence[type[BaseModel]]) -> str:
    """Return the complaint about a key that none of the models at its place has."""
    *parents, name = key.split(".")
    known = {field: set_by(info) for holder in holders for field, info in holder.model_fields.items()}
    if known.get(name):
        return f"{key} is set by {known[name]}; type {known[name]}=<value>"
    place = f" of {'.'.join(parents)}" if parents else ""
    allowed = sorted(field for field, other in known.items() if not other)
    near = did_you_mean(name, allowed) or _did_you_mean_below(name, parents, holders)
    return f"{key}: there is no key {name!r}{place}{near} (keys: {', '.join(allowed)})"


def _did_you_mean_below(name: str, parents: Sequence[str], holders: Sequence[type[BaseModel]]) -> str:
    """Return the nearest key further down, as `replay.prioritized.alpha` for `replay.alpah`, or an empty string."""
    below = list(_keys_below(holders))
    match = nearest(name, [path[-1] for path in below])
    meant = [".".join([*parents, *path]) for path in below if path[-1] == match]
    return f"; did you mean {' or '.join(map(repr, meant))}?" if meant else ""


def keys_named(name: str, model: type[BaseModel]) -> list[str]:
    """Return the keys of a model that have a name, at any depth, as `optimizer.lr` for `lr`."""
    return [".".join(path) for path in _keys_below([model]) if path[-1] == name]


def _keys_below(holders: Sequence[type[BaseModel]]) -> Iterator[list[str]]:
    for holder in holders:
        for name, info in holder.model_fields.items():
            models, many = models_in(info)
            if not many:
                yield from ([name, key] for model in models for key in model.model_fields)
                yield from ([name, *path] for path in _keys_below(models))


def show(value: Any) -> str:
    """Return a value for a message: quoted, and not longer than a line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 - about a line


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
    if schema.get("type") == "array":
        return f"a list of {_items(schema)}{_length(schema)}"
    text = _TYPES.get(schema.get("type", ""), "keys with values")
    text = "text that is not empty" if text == "text" and schema.get("minLength") else text
    return f"{text} {bounds}".rstrip()


def _items(schema: dict[str, Any]) -> str:
    # a tuple says `prefixItems`, one for each place
    each = [schema["items"]] if schema.get("items") else schema.get("prefixItems", [{}])
    described = [_described(item) for item in each] or ["values"]
    singular = described[0].removeprefix("one of ")
    for name, plural in _PLURALS.items():
        if singular == _TYPES[name] or singular.startswith(f"{_TYPES[name]} "):
            singular = singular.replace(_TYPES[name], plural, 1)
    return singular if len(set(described)) == 1 else ", ".join(described)


def _length(schema: dict[str, Any]) -> str:
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    if least == most:
        return f", exactly {_counted(least)}"
    bounds = [f"at least {_counted(least)}"] if least else []
    bounds += [f"at most {_counted(most)}"] if most is not None else []
    return "".join(f", {bound}" for bound in bounds)


def _counted(number: int) -> str:
    words = ("no", "one")
    return f"{words[number] if number < len(words) else number} item{'' if number == 1 else 's'}"


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


def field_at(model: type[BaseModel], path: Sequence[str]) -> FieldInfo | None:
    """Return the field at a path of keys, or None if the path leads nowhere."""
    holders = models_at(model, path[:-1]) if path else []
    return next((holder.model_fields[path[-1]] for holder in holders if path[-1] in holder.model_fields), None)


def is_in_variant(model: type[BaseModel], path: Sequence[str]) -> bool:
    """Tell whether a path of keys leads to a variant or into one."""
    infos = (field_at(model, path[:depth]) for depth in range(1, len(path) + 1))
    return any(info is not None and is_variant(info) for info in infos)


def models_at(model: type[BaseModel], path: Sequence[str]) -> list[type[BaseModel]]:
    """Return the config model at a path of keys; several if it may be one of several, none if there is no model."""
    holders = [model]
    steps = iter(path)
    for name in steps:
        info = next((holder.model_fields[name] for holder in holders if name in holder.model_fields), None)
        holders, many = models_in(info) if info is not None else ([], False)
        if many and next(steps, None) is None:
            return []
    return holders


def holds_text(model: type[BaseModel], path: Sequence[str]) -> bool:
    """Tell whether the value at a path of keys is text and nothing else, also among the texts of an open dict."""
    info, holder = field_at(model, path), field_at(model, path[:-1]) if len(path) > 1 else None
    if info is None and holder is not None and is_open(holder):
        # the annotation may be `dict[str, str] | None`
        dicts = [holder.annotation, *get_args(holder.annotation)]
        return any(get_origin(option) is dict and takes_text_only(get_args(option)[1]) for option in dicts)
    return info is not None and takes_text_only(info.annotation)


def models_under(model: type[BaseModel], path: Sequence[str]) -> type[BaseModel] | None:
    """Return the model of the items of a keyed collection at a path of keys, or None if there is no collection."""
    info = field_at(model, path) if path else None
    models, many = models_in(info) if info is not None else ([], False)
    return models[0] if many and len(models) == 1 else None


def collections(model: type[BaseModel], place: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield the keyed collections of a model: where they are, and the model of their items."""
    for name, info in model.model_fields.items():
        models, many = models_in(info)
        if len(models) == 1 and many:
            yield f"{place}{name}", models[0]
        elif len(models) == 1:
            yield from collections(models[0], f"{place}{name}.")


def _as_typed(details: ErrorDetails, values: dict[str, Any]) -> list[str]:
    """Return pydantic's location as keys: numbers of metrics become their slugs, names of union members vanish."""
    path: list[str] = []
    node: Any = values
    for part in details["loc"]:
        if isinstance(node, dict) and isinstance(part, int):
            part = [key for key, value in node.items() if value is not None][part]  # noqa: PLW2901 - its name in YAML
        if isinstance(node, dict) and part not in node:
            continue
        if isinstance(node, list):
            break
        path.append(str(part))
        node = node[part] if isinstance(node, dict) else node
    if details["type"] == "unknown_key":
        path.append(str(details.get("ctx", {})["key"]))
    elif details["type"] in ("missing", "extra_forbidden") and (not path or path[-1] != details["loc"][-1]):
        path.append(str(details["loc"][-1]))
    return path


def _typed_text(key: str, value: Any, overrides: Sequence[str]) -> str:
    for override in reversed(overrides):
        if override.lstrip("+").partition("=")[0] == key:
            return override
    return f"{key}={value}" if isinstance(value, str | int | float | None) else key


def _own_words(text: str, key: str, found: str, value: Any) -> str:
    """Return the words of a validator, with the key where the validator says only its name or nothing."""
    name = key.rpartition(".")[2]
    if text.startswith(f"{name} "):
        return f"{key}{text.removeprefix(name)}"
    if isinstance(value, dict) and text.startswith("Duplicate metric names"):
        return f"{text} ({', '.join(_slugs(key, text, value))})"
    return f"{found}: {text}" if key else text


def _slugs(key: str, text: str, metrics: dict[str, Any]) -> Iterator[str]:
    twice = text.partition(": ")[2].split(", ")
    return (f"{key}.{slug}" for slug, metric in metrics.items() if metric and metric.get("name") in twice)
