"""The text of `--help`: groups with their options, keys with their bounds, flags."""

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trieye.config.base import did_you_mean, models_in, set_by
from trieye.config.hydra.keys import by_tag, field_at, is_variant, meant, tag_of
from trieye.config.hydra.loader import Loader
from trieye.config.hydra.messages import wanted
from trieye.config.hydra.preflight import Preflight
from trieye.config.hydra.schema import defaults_of
from trieye.config.hydra.typed import complete
from trieye.exceptions import ConfigurationError

_FLAGS = {
    "-m, --multirun": "run one job for each combination of values: -m seed=0,1,2 loop.steps=100,1000",
    "--cfg job": "print the composed config and stop; --cfg job -p loop prints one part of it",
    "--info defaults": "print from which files the config is composed, in order",
    "-cn, --config-name": "another primary config",
    "-cd, --config-dir": "one more directory with configs",
    "--hydra-help": "all flags of Hydra",
}
_EXAMPLES = {
    "runtime": ("runtime=local loop.steps=1000", "choose an option of a group, set a key"),
    "metrics": ("metrics=[core,replay] '~stats.metrics.step_ms'", "several options, then one metric less"),
    "": (
        "'+metric@stats.metrics.a=max' stats.metrics.a.name=episode/top stats.metrics.a.raw_event_name=episode/return",
        "one metric more",
    ),
    "experiment": ("experiment=example", "a preset; whatever you type wins over it"),
}
"""What to type and what it means, by the group that the defaults list of the project has to name."""
_GROUPS = {
    "metric": "templates for one metric more: +metric@stats.metrics.<slug>=<option>",
    "metrics": "sets of metrics, as many as you like",
    "experiment": "presets",
    "debug": "presets for finding mistakes",
    "logger": "the same as sinks",
}
_NOTES = {"metrics": "metrics=[] logs every undeclared event as it comes, see stats.undeclared"}
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
        loader: The loader of its configs.
        preflight: Its checks.
        arguments: Overrides, and names of groups and keys to explain instead of giving the overview.
        task: The task function, whose docstring comes first.
        config_type: The type of its config.

    Raises:
        ConfigurationError: There is no such group or key, or the overrides are wrong.
    """
    topics = [argument for argument in arguments if "=" not in argument and not argument.startswith("~")]
    overrides = [argument for argument in arguments if argument not in topics]
    composed = preflight.load(overrides)
    with suppress(ConfigurationError):  # a part whose kind is not clear is explained all the same
        complete(composed, config_type, composed.hydra.runtime.choices)
    text = _Help(loader, composed, loader.chosen(overrides), config_type)
    lines = [line for topic in topics for line in text.topic(topic)] or text.overview(task)
    sys.stdout.write("\n".join(lines) + "\n")


class _Help:
    """The parts of the help of one composed config."""

    def __init__(self, loader: Loader, composed: DictConfig, chosen: list[str], config_type: type[BaseModel]) -> None:
        self._loader = loader
        self._composed = composed
        self._config_type = config_type
        self._chosen = chosen
        self._values: Any = OmegaConf.to_container(composed, resolve=False)  # interpolations are shown as they stand
        self._directories = loader.directories
        # the defaults list is in an order that its author chose
        self._groups = [
            group
            for group in dict.fromkeys([*loader.entries(), *loader.groups()])
            if loader.options(group) and self._has_use(group)
        ]

    def _has_use(self, group: str) -> bool:
        """Tell whether a group is for this program: those of trainings are for no other one."""
        if group in {*self._loader.entries(), *self._config_type.model_fields, *_GROUPS}:
            return True
        return any((directory / group).is_dir() for directory in self._directories if directory.parent.name != "trieye")

    def overview(self, task: Callable[..., Any]) -> Iterator[str]:
        """Yield the lines of the help as a whole."""
        command = _command()
        if task.__doc__:
            yield from (task.__doc__.strip().split("\n\n")[0], "")
        yield from ("Usage", f"  {command} [group=option | key=value ...] [flags]", "")
        listed = {"", *self._loader.entries(), *self._composed.hydra.runtime.choices}
        examples = [example for group, example in _EXAMPLES.items() if group in listed] + [
            ("-m seed=0,1,2", "three runs")
        ]
        yield from (f"  {command} {typed}\n      {meaning}" for typed, meaning in examples)
        yield from ("", "Groups: type group=option; * is the choice now")
        for group in self._groups:
            yield from self._group(group)
        yield from ("", "Keys: type key=value; --help <key or group> explains all keys below it")
        yield from self._top_level()
        yield from ("", "Flags")
        yield from _columns(_FLAGS)

    def topic(self, topic: str) -> Iterator[str]:
        """Yield the lines about one group, or about the keys at or below one key."""
        info = field_at(self._config_type, topic.split("."))
        if topic not in self._groups and info is None:
            known = [*self._groups, *self._config_type.model_fields]
            raise ConfigurationError(
                f"--help {topic}: there is no such group or key{did_you_mean(topic, known)} "
                f"(known: {', '.join(sorted(set(known)))})"
            )
        if topic in self._groups:
            yield from self._group(topic)
        if info is not None:
            yield from _explained(self._config_type, topic.split("."), self._values)

    def _group(self, group: str) -> Iterator[str]:
        yield f"  {group}: {self._about_group(group)}"
        options = {
            ("* " if f"{group}/{name}" in self._chosen else "  ") + name: self._about_option(group, name)
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


def _explained(model: type[BaseModel], path: list[str], values: Any, before: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the lines about the keys at or below a path of keys."""
    names = path[:1] or [name for name, info in model.model_fields.items() if not set_by(info)]
    for name, info in ((name, model.model_fields[name]) for name in names if name in model.model_fields):
        models, many = models_in(info)
        here, value = (*before, name), values.get(name) if isinstance(values, dict) else None
        if is_variant(info):
            yield from _explained_variant(info, path[1:], value, here)
        elif many:
            yield from _explained(models[0], path[2:], None, (*here, "<name>"))
        elif models:
            yield from _explained(models[0], path[1:], value, here)
        else:
            yield f"  {'.'.join(here)}" if "<name>" in here else f"  {'.'.join(here)} = {_as_yaml(value)}"
            yield f"      {wanted(info)}. {info.description or ''}".rstrip()


def _explained_variant(info: FieldInfo, path: list[str], value: Any, here: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines about each of the models that a key may hold, under a heading; * is the one that it holds."""
    models, key = models_in(info)[0], ".".join(here)
    kinds = {model: f"with {tag_of(models)}={kind}" for kind, model in by_tag(models).items()}
    if not isinstance(value, dict) and not path:
        yield f"  {key} = {_as_yaml(value)}"
        yield f"      {wanted(info)}. {info.description or ''}".rstrip()
    for model in models:
        is_chosen = isinstance(value, dict) and list(meant(models, value)) == [model]
        text = list(_explained(model, path, value if is_chosen else defaults_of(model, {}), here))
        if text and not path:
            about = (model.__doc__ or "").strip().split("\n")[0]
            yield f"{'*' if is_chosen else ' '} {key} {kinds.get(model, f'as {model.__name__}')}: {about}".rstrip(": ")
        yield from text


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
