"""Diagnosis: why Hydra could not compose, in the words of the command line.

Hydra's message texts are not read: the overrides are looked up in the groups and in the config that composes without
them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel

from trieye.config.base import did_you_mean, set_by
from trieye.config.hydra.complaints import collections, field_at, models_at, models_under, show, unknown_key
from trieye.config.hydra.loader import NOT_COMPOSED, Loader
from trieye.config.hydra.overrides import without_parser_words

_MOST = 4  # alternatives that one message names


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
            if self._loader.is_choice(choice):
                found += list(self._about_options(choice)) or list(self._about_choice(choice))
            else:  # a key of Hydra itself
                found += self._about_key(choice, self._without_overrides())
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
        return "\n".join(self._about_key(override, config)) or f"{override.input_line}: {self._in_hydras_words(error)}"

    def _about_options(self, override: Override) -> Iterator[str]:
        group, value = override.key_or_group, override.value()
        if override.is_delete() and value is None:
            return
        options = self._loader.options_below(group)
        if value is None and isinstance(self._loader.entries().get(override.get_key_element()), list):
            known = f"(options: {', '.join(options)})"
            yield f"{override.input_line}: {group} takes a list; type {group}=[] for none {known}"
        for option in value if isinstance(value, list) else [value]:
            if option is None and not isinstance(value, list):
                continue
            parent, _, name = str(option).rpartition("/")
            if name.removesuffix(".yaml") not in self._loader.options(f"{group}/{parent}" if parent else group):
                yield (
                    f"{override.input_line}: {show(option)} is no option of {group}"
                    f"{did_you_mean(str(option), options)} (options: {', '.join(options)})"
                )

    def _about_choice(self, override: Override) -> Iterator[str]:
        name, line = override.get_key_element().lstrip("+~"), override.input_line
        entries = self._loader.entries()
        known = {*entries, *self._chosen()}
        value = override.get_value_string() if "=" in str(line) else "<option>"
        place = next((place for place, item in collections(self._config_type) if _is_template(name, item)), None)
        if override.is_add() and name in entries:
            yield f"{line}: {name} is in the defaults list already; type {name}={value}"
        elif override.is_add() and place and override.package is None:
            yield f"{line}: {name} holds templates; say which item to make: '+{name}@{place}.<name>={value}'"
        elif override.package is not None and (complaint := self._misplaced(override.package.split("."))):
            yield f"{line}: {complaint}"
        elif override.is_delete() and name not in known:
            yield f"{line}: {name} is not chosen, so there is nothing to delete{did_you_mean(name, known)}"
        elif not override.is_add() and name not in known:
            new = f"{name}@{place}.<name>={value}" if place else f"{name}={value}"
            yield f"{line}: {name} is not in the defaults list; add it with '+{new}'"

    def _misplaced(self, package: list[str]) -> str | None:
        """Return where a package leaves the keys of the config, if it does."""
        for depth in range(0 if package[0].startswith("_") else len(package)):
            holders, key = models_at(self._config_type, package[:depth]), ".".join(package[: depth + 1])
            if holders and field_at(self._config_type, package[: depth + 1]) is None:
                return unknown_key(key, holders).removeprefix(f"{key}: ")
        return None

    def _chosen(self) -> set[str]:
        """Return the groups that are chosen without any override, also those of nested defaults lists."""
        return set(map(str, OmegaConf.select(self._without_overrides(), "hydra.runtime.choices") or ()))

    def _without_overrides(self) -> DictConfig:
        """Return what the config files alone give; nothing if they do not compose."""
        try:
            return self._loader.load([])
        except NOT_COMPOSED:
            return DictConfig({})

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
        item, info = models_under(self._config_type, path[:depth]), field_at(self._config_type, path[: depth + 1])
        is_new = override.is_add() or override.is_force_add()
        if is_new:
            if item is not None and isinstance(override.value(), dict) and depth == len(path) - 1:
                yield f"{line}: keys in braces cannot be added here; type {self._template(item, key)}"
        elif depth and info is not None and not set_by(info):
            # the keys of a model that is null by default are those that a file names
            advice = "there is nothing to delete" if override.is_delete() else f"type '+{line}'"
            yield f"{line}: {key} is not in the config yet; {advice}"
        elif models_at(self._config_type, path[:depth]):
            yield self._about_unknown(override, key, known, node if not depth else None)
        else:
            absent = f"{line}: there is no key {path[depth]!r} of {'.'.join(path[:depth])}"
            new = self._template(item, key) if item else f"'+{line}'"
            advice = "" if override.is_delete() else f"; add it with {new}"
            yield f"{absent}{did_you_mean(path[depth], known)} (keys: {', '.join(known) or 'none'}){advice}"

    def _about_unknown(self, override: Override, key: str, known: list[str], top: DictConfig | None) -> str:
        if top is None:
            complaint = unknown_key(key, models_at(self._config_type, key.split(".")[:-1]))
            return f"{override.input_line}: {complaint.removeprefix(f'{key}: ')}"
        names = sorted({*known, *self._groups})
        leaves = list(_leaves(top)) if key == override.key_or_group else []
        below = [leaf for leaf in leaves if leaf.rpartition(".")[2] == key]
        below = below or [leaf for leaf in leaves if key in leaf.rpartition(".")[2].split("_")]
        hydras = self._loader.groups("hydra") if key.startswith("hydra/") else []
        near = (
            f"; did you mean {' or '.join(map(repr, below[:_MOST]))}?" if below else did_you_mean(key, hydras or names)
        )
        return (
            f"{override.input_line}: there is no key and no group {key!r}{near} (keys and groups: {', '.join(names)})"
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
        lines = [without_parser_words(str(error)) or "this does not compose"]
        if isinstance(cause, OmegaConfBaseException):
            if str(cause).splitlines()[0] not in lines[0]:
                lines.append(str(cause).splitlines()[0])
            path = (cause.full_key or "").split(".")
            if path[-1] and field_at(self._config_type, path) is None:
                lines.append(unknown_key(".".join(path), models_at(self._config_type, path[:-1])))
        return "\n".join(lines)


def _leaves(node: DictConfig, before: str = "") -> Iterator[str]:
    """Yield the keys of values anywhere below a node, those of Hydra left out."""
    for name in map(str, node):
        child: Any = node._get_node(name)  # noqa: SLF001 - a missing or interpolated value is found, too
        if isinstance(child, DictConfig) and not (child._is_none() or child._is_missing() or child._is_interpolation()):  # noqa: SLF001 - as above
            yield from () if not before and name == "hydra" else _leaves(child, f"{before}{name}.")
        else:
            yield f"{before}{name}"


def _is_template(group: str, item: type[BaseModel]) -> bool:
    """Tell whether a group holds templates of a model, as `metric` does of `MetricConfig`."""
    return item.__name__.removesuffix("Config").lower() == group
