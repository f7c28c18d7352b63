"""Diagnosis: why Hydra could not compose, in the words of the command line.

Hydra's message texts are not read: the overrides are looked up in the groups and in the config that composes without
them.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel

from trieye.config._hydra_loader import NOT_COMPOSED, Loader, quoted
from trieye.config.base import did_you_mean
from trieye.config.complaints import collections, field_at, models_at, models_under, show, unknown_key
from trieye.exceptions import ConfigurationError


def parsed(overrides: Iterable[str]) -> list[Override]:
    """Parse overrides one by one; letters that Hydra's grammar lacks are quoted for it.

    Raises:
        ConfigurationError: Some cannot be parsed; the message has a line for each.
    """
    good, bad = [], []
    for override in overrides:
        try:
            good += OverridesParser.create().parse_overrides([quoted(override)])
        except (HydraException, ValueError) as error:
            reason = str(error).splitlines()[0].removeprefix(f"Error parsing override {override!r}")
            shown = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in override)
            bad.append(
                f"{shown}: this is not key=value; quote values with special characters, as in "
                f"'{shown.partition('=')[0]}=\"...\"' ({reason})"
            )
    if bad:
        raise ConfigurationError("\n".join(bad))
    return good


class Diagnosis:
    """Why overrides do not fit the configs of a loader."""

    def __init__(self, loader: Loader, config_type: type[BaseModel]) -> None:
        self._loader = loader
        self._config_type = config_type
        self._groups = loader.groups()

    def of_choices(self, choices: Sequence[Override], error: Exception) -> str:
        """Return a line for each choice that cannot be made, or Hydra's own words if all can.

        Args:
            choices: Overrides that choose options.
            error: What Hydra raised.
        """
        found = []
        for choice in choices:
            found += list(self._about_options(choice)) or list(self._about_choice(choice))
        return "\n".join(dict.fromkeys(found)) or self._in_hydras_words(error)

    def of_key(self, override: Override, config: DictConfig, error: Exception) -> str:
        """Return why a key cannot be set.

        Args:
            override: The override.
            config: The composed config that it does not fit.
            error: What Hydra raised.
        """
        if override.package is not None:
            return (
                f"{override.input_line}: there is no group {override.key_or_group!r}"
                f"{did_you_mean(override.key_or_group, self._groups)} (groups: {', '.join(self._groups)})"
            )
        found = [] if override.is_hydra_override() else list(self._about_key(override, config))
        return "\n".join(found) or f"{override.input_line}: {self._in_hydras_words(error)}"

    def _about_options(self, override: Override) -> Iterator[str]:
        group, value = override.key_or_group, override.value()
        if override.is_delete() and value is None:
            return
        for option in value if isinstance(value, list) else [value]:
            if option is None and not isinstance(value, list):
                continue
            parent, _, name = str(option).rpartition("/")
            options = self._loader.options(f"{group}/{parent}" if parent else group)
            if name.removesuffix(".yaml") not in options:
                yield (
                    f"{override.input_line}: {show(option)} is no option of {group}"
                    f"{did_you_mean(str(option), options)} (options: {', '.join(options)})"
                )

    def _about_choice(self, override: Override) -> Iterator[str]:
        name, line = override.get_key_element().lstrip("+~"), override.input_line
        entries = self._loader.entries()
        known = {*entries, *self._chosen()}
        value = override.get_value_string() if "=" in str(line) else "<option>"
        if override.is_add() and name in entries:
            yield f"{line}: {name} is in the defaults list already; type {name}={value}"
        elif override.is_delete() and name not in known:
            yield f"{line}: {name} is not chosen, so there is nothing to delete{did_you_mean(name, known)}"
        elif not override.is_add() and name not in known:
            place = next((place for place, item in collections(self._config_type) if _is_template(name, item)), None)
            new = f"{name}@{place}.<name>={value}" if place else f"{name}={value}"
            yield f"{line}: {name} is not in the defaults list; add it with '+{new}'"

    def _chosen(self) -> set[str]:
        """Return the groups that are chosen without any override, also those of nested defaults lists."""
        try:
            return set(map(str, self._loader.load([]).hydra.runtime.choices))
        except NOT_COMPOSED:
            return set()

    def _about_key(self, override: Override, config: DictConfig) -> Iterator[str]:
        path = str(override.key_or_group).split(".")
        node: Any = config
        for depth, name in enumerate(path):
            if not isinstance(node, DictConfig):
                yield f"{override.input_line}: {'.'.join(path[:depth])} is a value and has no keys"
                return
            if name not in node:
                yield from self._about_absent(override, path, depth, node)
                return
            node = node._get_node(name)  # noqa: SLF001 - a missing or interpolated value is found, too
        yield from self._about_present(override, node)

    def _about_absent(self, override: Override, path: list[str], depth: int, node: DictConfig) -> Iterator[str]:
        key, line = ".".join(path[: depth + 1]), override.input_line
        known = [str(name) for name in node if depth or name != "hydra"]
        item = models_under(self._config_type, path[:depth])
        is_new = override.is_add() or override.is_force_add()
        if is_new:
            if item is not None and isinstance(override.value(), dict) and depth == len(path) - 1:
                yield f"{line}: keys in braces cannot be added here; type {self._template(item, key)}"
        elif models_at(self._config_type, path[:depth]):
            yield self._about_unknown(override, key, known, depth)
        else:
            absent = f"{line}: there is no key {path[depth]!r} of {'.'.join(path[:depth])}"
            new = self._template(item, key) if item else f"'+{line}'"
            advice = "" if override.is_delete() else f"; add it with {new}"
            yield f"{absent}{did_you_mean(path[depth], known)} (keys: {', '.join(known) or 'none'}){advice}"

    def _about_unknown(self, override: Override, key: str, known: list[str], depth: int) -> str:
        if depth:
            complaint = unknown_key(key, models_at(self._config_type, key.split(".")[:-1]))
            return f"{override.input_line}: {complaint.removeprefix(f'{key}: ')}"
        names = sorted({*known, *self._groups})
        return (
            f"{override.input_line}: there is no key and no group {key!r}{did_you_mean(key, names)} "
            f"(keys and groups: {', '.join(names)})"
        )

    def _template(self, item: type[BaseModel], key: str) -> str:
        """Return what one types to add an item to a keyed collection."""
        required = [name for name, info in item.model_fields.items() if info.is_required()]
        first = f"{key}.{(required or list(item.model_fields))[0]}=<value>"
        group = next((group for group in self._groups if _is_template(group, item)), None)
        if group is None:
            return f"'+{first}'"
        options = self._loader.options(group)
        defaults = [info.default for info in item.model_fields.values()]
        option = next((option for option in options if option in defaults), options[0])
        return f"'+{group}@{key}={option}' '{first}'"

    def _about_present(self, override: Override, node: Any) -> Iterator[str]:
        if override.is_add() and not isinstance(override.value(), dict | list):
            yield f"{override.input_line}: this key exists already; type {str(override.input_line).lstrip('+')}"
        elif isinstance(node, DictConfig) and not override.is_delete() and not isinstance(override.value(), dict):
            keys = ", ".join(map(str, node))
            yield f"{override.input_line}: {override.key_or_group} holds keys and is no value itself (keys: {keys})"

    def _in_hydras_words(self, error: Exception) -> str:
        """Return the message of Hydra, with the nearest match where OmegaConf says which key it did not find."""
        cause = error.__cause__ or error.__context__
        lines = [str(error).strip() or type(error).__name__]
        if isinstance(cause, OmegaConfBaseException):
            if str(cause).splitlines()[0] not in lines[0]:
                lines.append(str(cause).splitlines()[0])
            path = (cause.full_key or "").split(".")
            if path[-1] and field_at(self._config_type, path) is None:
                lines.append(unknown_key(".".join(path), models_at(self._config_type, path[:-1])))
        return "\n".join(lines)


def _is_template(group: str, item: type[BaseModel]) -> bool:
    """Tell whether a group holds templates of a model, as `metric` does of `MetricConfig`."""
    return item.__name__.removesuffix("Config").lower() == group
