"""The output of `--help`: groups and their options, keys with type, bounds and description, flags."""

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from omegaconf import MISSING, DictConfig, OmegaConf
from pydantic import BaseModel, Field, create_model
from pydantic.fields import FieldInfo

from trieye.config.base import models_in, optional_items, set_by
from trieye.config.hydra.keys import by_tag, field_at, is_variant, meant, models_at, tag_of
from trieye.config.hydra.loader import Loader
from trieye.config.hydra.messages import allowed_values, unknown_key
from trieye.config.hydra.preflight import Preflight
from trieye.config.hydra.schema import defaults_of
from trieye.config.hydra.typed import complete
from trieye.config.launcher import LauncherConfig
from trieye.config.sweeper import SweeperConfig
from trieye.exceptions import ConfigurationError

_FLAGS = {
    "-m, --multirun": "run a job for each combination of values: -m seed=0,1,2 loop.steps=100,1000",
    "--cfg job": "print the composed config and exit; --cfg job -p loop prints one part",
    "--info defaults": "print the defaults list: the files that compose the config, in order",
    "-cn, --config-name": "use another primary config",
    "-cd, --config-dir": "add a config directory to the search path",
    "--hydra-help": "all flags of Hydra",
}
_EXAMPLES = {
    "runtime": ("runtime=local loop.steps=1000", "select an option of a group, set a key"),
    "metrics": ("metrics=[core,replay] '~stats.metrics.step_ms'", "several options, without one of their metrics"),
    "": (
        "'+metric@stats.metrics.a=max' stats.metrics.a.name=episode/top stats.metrics.a.raw_event_name=episode/return",
        "an additional metric",
    ),
    "experiment": ("experiment=example", "a preset; overrides on the command line take precedence"),
}
"""Example overrides and their meaning, by the group that they need in the defaults list of the project."""
_GROUPS = {
    "metric": "templates for an additional metric: +metric@stats.metrics.<name>=<option>",
    "metrics": "sets of metrics; several can be combined",
    "experiment": "presets",
    "debug": "presets for debugging",
    "logger": "alias of sinks",
}
_NOTES = {"metrics": "metrics=[] declares no metric, so stats.undeclared applies to every event"}
_PLUGINS: dict[str, type[BaseModel]] = {"launcher": LauncherConfig, "sweeper": SweeperConfig}
_DEFAULTS_ENTRY = re.compile(r"\s*-\s*(?:(?:override|optional)\s+)*/?([\w/]+)(?:@[\w.:]+)?\s*:[^#]*#\s*(\S.*)")


def print_help(
    loader: Loader,
    preflight: Preflight[Any],
    arguments: Sequence[str],
    task: Callable[..., Any],
    config_type: type[BaseModel],
) -> None:
    """Print the help of a command line.

    Args:
        loader: Loader of the program's configs.
        preflight: Composes the overrides.
        arguments: Overrides, and names of groups and keys to explain; without names, the overview is printed.
        task: Task function; the overview starts with the first paragraph of its docstring.
        config_type: Type of the config.

    Raises:
        ConfigurationError: A group or key is unknown, or the overrides do not compose.
    """
    topics = [argument for argument in arguments if "=" not in argument and not argument.startswith("~")]
    overrides = [argument for argument in arguments if argument not in topics]
    composed = preflight.load(overrides)
    with suppress(ConfigurationError):  # a variant of unknown kind is explained with the defaults of each kind
        complete(composed, config_type, composed.hydra.runtime.choices)
    text = _Help(loader, composed, loader.chosen(overrides), config_type)
    lines = [line for topic in topics for line in text.topic(topic)] or text.overview(task)
    sys.stdout.write("\n".join(lines) + "\n")


class _Help:
    """Renders the help of one composed config."""

    def __init__(self, loader: Loader, composed: DictConfig, options: list[str], config_type: type[BaseModel]) -> None:
        self._loader = loader
        self._composed = composed
        self._config_type = _with_plugins(config_type, options)
        self._selected_options = options
        self._values: Any = OmegaConf.to_container(composed, resolve=False)  # interpolations are shown unresolved
        self._directories = loader.directories
        # groups in the defaults list come first, in its order
        self._groups = [
            group
            for group in dict.fromkeys([*loader.entries(), *loader.groups()])
            if loader.options(group) and self._is_relevant(group)
        ]

    def _is_relevant(self, group: str) -> bool:
        """Return False for groups of trieye without a field in the config type, such as `sync` outside trainings."""
        if group in {*self._loader.entries(), *self._config_type.model_fields, *_GROUPS}:
            return True
        return any((directory / group).is_dir() for directory in self._directories if directory.parent.name != "trieye")

    def overview(self, task: Callable[..., Any]) -> Iterator[str]:
        """Yield the lines of the overview."""
        command = _command()
        if task.__doc__:
            yield from (task.__doc__.strip().split("\n\n")[0], "")
        yield from ("Usage", f"  {command} [group=option | key=value ...] [flags]", "")
        groups = {"", *self._loader.entries(), *self._composed.hydra.runtime.choices}
        examples = [example for group, example in _EXAMPLES.items() if group in groups] + [
            ("-m seed=0,1,2", "three runs")
        ]
        yield from (f"  {command} {typed}\n      {meaning}" for typed, meaning in examples)
        yield from ("", "Groups: select with group=option; * marks the current selection")
        for group in self._groups:
            yield from self._group(group)
        yield from ("", "Keys: set with key=value; --help <key or group> explains all keys below it")
        yield from self._top_level()
        yield from ("", "Flags")
        yield from _columns(_FLAGS)

    def topic(self, topic: str) -> Iterator[str]:
        """Yield the lines about a group, and about the keys at or below a key."""
        group = topic.replace(".", "/")
        path = self._known(group.split("/"))
        if group not in self._groups and path is None:
            self._refuse(topic)
        if group in self._groups:
            yield from self._group(group)
        if path is not None:
            yield from _KeyHelp(self._loader).lines(self._config_type, path, self._values)

    def _known(self, path: list[str]) -> list[str] | None:
        """Return the path to explain, which ends at a wrapper if its key is unknown; None: there is no such field."""
        for depth, _ in enumerate(path, 1):
            holder, subpath = field_at(self._config_type, path[:depth]), path[depth + 1 :]
            for item in optional_items(holder) if holder is not None else ():
                return path if subpath and subpath[0] in item.model_fields else path[:depth]
        return path if field_at(self._config_type, path) is not None else None

    def _refuse(self, topic: str) -> NoReturn:
        """Raise an error that lists the keys beside the first unknown part of a topic."""
        model, path = self._config_type, topic.split(".")
        known_depth = next(depth for depth in range(len(path) - 1, -1, -1) if models_at(model, path[:depth]))
        key, groups = ".".join(path[: known_depth + 1]), [] if known_depth else self._groups
        raise ConfigurationError(
            f"--help {topic}: {unknown_key(key, models_at(model, path[:known_depth]), model, groups)}"
        )

    def _group(self, group: str) -> Iterator[str]:
        yield f"  {group}: {self._about_group(group)}"
        options = {
            ("* " if f"{group}/{name}" in self._selected_options else "  ") + name: self._about_option(group, name)
            for name in self._loader.options(group)
        }
        yield from _columns(options, indent="    ")
        if group in _NOTES:
            yield f"    {_NOTES[group]}"

    def _about_group(self, group: str) -> str:
        primary = self._text(self._loader.source.name)
        matches = (_DEFAULTS_ENTRY.match(line) for line in primary.splitlines())
        comments = {match[1]: match[2] for match in matches if match}
        field = self._config_type.model_fields.get(group)
        return comments.get(group) or (field.description if field else None) or _GROUPS.get(group) or "options"

    def _about_option(self, group: str, option: str) -> str:
        lines = (line.strip() for line in self._text(f"{group}/{option}").splitlines())
        comments = (
            line.lstrip("# ") for line in lines if line.startswith("#") and not line.lstrip("# ").startswith("@")
        )
        return next(comments, "")

    def _text(self, config: str) -> str:
        files = (directory / f"{config}.yaml" for directory in self._directories)
        return next((file.read_text(encoding="utf-8") for file in files if file.is_file()), "")

    def _top_level(self) -> Iterator[str]:
        rows, values = {}, self._values
        for name, info in self._config_type.model_fields.items():
            models, _ = models_in(info)
            value = f"{name} = {_as_yaml(values.get(name))}"
            rows[f"{name}.*" if models else value] = info.description or ""
        yield from _columns(rows)


def _with_plugins(config_type: type[BaseModel], selected_options: list[str]) -> type[BaseModel]:
    """Return a config type with the keys of trieye's launcher and sweeper, as far as they are selected."""
    fields: dict[str, Any] = {
        name: (model, Field(description=f"Keys of the {name} of `-m`."))
        for name, model in _PLUGINS.items()
        if f"hydra/{name}/trieye" in selected_options
    }
    if not fields:
        return config_type
    keys = create_model("HydraKeys", **fields)
    hydra_field = Field(description=f"Keys of the {' and the '.join(fields)} of `-m`.")
    return create_model(config_type.__name__, __base__=config_type, hydra=(keys, hydra_field))


class _KeyHelp:
    """Renders keys with value, type, bounds and description; the keys of a schedule and the like only once."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._explained: set[type[BaseModel]] = set()

    def lines(
        self, model: type[BaseModel], path: list[str], values: Any, parents: tuple[str, ...] = ()
    ) -> Iterator[str]:
        """Yield the lines about the keys of a model at or below a path.

        Args:
            model: The model.
            path: Keys below the model; empty for all of its keys.
            values: Values of the model in the composed config, shown next to the keys.
            parents: Keys that lead to the model.
        """
        names = path[:1] or [name for name, info in model.model_fields.items() if not set_by(info)]
        for name, info in ((name, model.model_fields[name]) for name in names if name in model.model_fields):
            models, is_collection = models_in(info)
            key, value = (*parents, name), values.get(name) if isinstance(values, dict) else None
            if is_variant(info):
                yield from self._variant(info, path[1:], value, key)
            elif is_collection:
                yield from self.lines(models[0], path[2:], None, (*key, "<name>"))
            elif models:
                yield from self.lines(models[0], path[1:], value, key)
            else:
                yield from _described(info, ".".join(key), None if "<name>" in key else _as_yaml(value))
                for item in optional_items(info):
                    yield from self.lines(item, path[2:], None, (*key, "<name>"))

    def _variant(self, info: FieldInfo, path: list[str], value: Any, key: tuple[str, ...]) -> Iterator[str]:
        """Yield the lines about each model that a key may hold, below a heading with the option that selects it."""
        models, dotted_key = models_in(info)[0], ".".join(key)
        kind_of_model = {model: kind for kind, model in by_tag(models).items()}
        if not path and not (kind_of_model and isinstance(value, dict)):
            default = info.get_default(call_default_factory=True) if value == {} else None
            shown_value = default.model_dump(mode="json") if isinstance(default, BaseModel) else value
            yield from _described(info, dotted_key, _as_yaml(shown_value))
        current_models = list(meant(models, value)) if isinstance(value, dict) else []
        for model in sorted(models, key=lambda model: [model] != current_models):  # the current one first
            is_current = [model] == current_models
            if not (kind_of_model or path) and model in self._explained:
                continue
            self._explained.add(model)
            lines = list(self.lines(model, path, value if is_current else defaults_of(model, {}), key))
            title = f"  {dotted_key} as {model.__name__}"
            if model in kind_of_model:
                title = self._selector(key, str(tag_of(models)), kind_of_model[model]) + " (current)" * is_current
            if lines and (kind_of_model or not path):
                summary = (model.__doc__ or "").strip().split("\n")[0]
                yield f"{title}: {summary}".rstrip(": ")
            yield from lines

    def _selector(self, key: tuple[str, ...], tag: str, kind: str) -> str:
        """Return the override that selects a kind: `agent=ppo` if the group has this option, else `agent.kind=ppo`."""
        group = "/".join(key)
        return f"{group}={kind}" if kind in self._loader.options(group) else f"{'.'.join(key)}.{tag}={kind}"


def _described(info: FieldInfo, key: str, value: str | None) -> Iterator[str]:
    yield f"  {key}" if value is None else f"  {key} (required)" if value == MISSING else f"  {key} = {value}"
    yield f"      {allowed_values(info)}. {info.description or ''}".rstrip()


def _columns(rows: dict[str, str], indent: str = "  ") -> Iterator[str]:
    width = max((len(row) for row in rows), default=0)
    return (f"{indent}{row:<{width}}  {text}".rstrip() for row, text in rows.items())


def _as_yaml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str) if not isinstance(value, str) else value


def _command() -> str:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name:
        return f"python -m {spec.name.removesuffix('.__main__')}"
    program = Path(sys.argv[0]).name
    return f"python {program}" if program.endswith(".py") else program
