"""Generated parts of the documentation: navigation, llms.txt, and references of config keys, names and commands.

A page contains `<!-- generated: KIND ARGUMENT -->` where a part belongs. This module needs no Sphinx.
"""

import contextlib
import inspect
import io
import json
import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import trieye
from trieye import cli
from trieye.config.base import did_you_mean, models_in, optional_items, set_by
from trieye.config.hydra.keys import by_tag, is_variant
from trieye.config.hydra.messages import allowed_values
from trieye.config.hydra.schema import defaults_of
from trieye.config.launcher import LauncherConfig
from trieye.config.persistence import default_run_name
from trieye.config.sweeper import SweeperConfig

HERE = Path(__file__).parent
ROOT = HERE.parent
INDEX = HERE / "index.md"
TEMPLATE = ROOT / "template/{{cookiecutter.slug}}"

_DATA = {
    "__version__": "Version of the installed trieye.",
    "DEFAULT_METRICS": "The 22 metrics of trieye 0.1.5, for programs that extend them: `DEFAULT_METRICS + [...]`.",
    "Scheduled": "Type of a config field that accepts a number or a `Schedule`, which the field then contains.",
    "TrieyeActor": "A Ray actor, `TrieyeActor.options(name=...).remote(config=...)`, with the methods of `ActorLogic`.",
    "plot": "The charts of `wandb.plot`; each stores the table behind it.",
}
"""Public names that are neither classes nor functions, and so have no docstring."""

GROUPS = {
    "experiment": "Presets that override all other groups.",
    "hparams_search": "Search spaces and search methods of `-m`.",
    "debug": "Presets for debugging, which override the experiment.",
    "metrics": "Sets of metrics; several can be combined, as in `metrics=[core,replay]`.",
    "metric": "Templates of another metric, as in `+metric@stats.metrics.NAME=max stats.metrics.NAME.name=NAME`.",
}
"""Config groups that correspond to no model."""

_MARKER = re.compile(r"^<!-- generated: (\w+) ?(.*?) -->$", re.MULTILINE)
_ENTRY = re.compile(r"^- \[(.+?)\]\((\S+?\.md)\): (.+)$")
_PLAIN = re.compile(r"[\w./:$-]*")


_OPTIONS = {f"trieye.{name}": ["   :members:", "   :inherited-members: object"] for name in ("Run", "RunClient")}
"""Options of autodoc for classes whose users need inherited methods, such as `log`."""


def filled(text: str) -> str:
    """Return the Markdown of a page with each marker replaced by the part that it names.

    Raises:
        ValueError: No part has this name.
    """
    return _MARKER.sub(lambda match: _part(match[1], *match[2].split()), text)


def _part(kind: str, *arguments: str) -> str:
    parts: dict[str, Callable[..., str]] = {
        "commands": commands,
        "config": config,
        "hyperparameters": hyperparameters,
        "names": names,
    }
    if kind not in parts:
        raise ValueError(
            f"generated: {kind}: unknown part{did_you_mean(kind, parts)} (choose from: {', '.join(parts)})"
        )
    return parts[kind](*arguments)


# ---------------------------------------------------------------------------------------------------- navigation


@dataclass(frozen=True)
class Page:
    """An entry of the navigation.

    Attributes:
        title: Title in the navigation.
        path: Path of the Markdown file.
        summary: One sentence about its content.
    """

    title: str
    path: Path
    summary: str

    @property
    def docname(self) -> str:
        """Name of the page in Sphinx: its path from the root of the repository, without suffix."""
        return self.path.relative_to(ROOT).with_suffix("").as_posix()


def navigation() -> dict[str, list[Page]]:
    """Return the pages that the index lists, by the heading above them."""
    sections: dict[str, list[Page]] = {}
    heading = ""
    for line in INDEX.read_text("utf-8").splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        elif entry := _ENTRY.match(line):
            page = Page(entry[1], (HERE / entry[2]).resolve(), entry[3])
            sections.setdefault(heading, []).append(page)
    return sections


def toctrees() -> str:
    """Return hidden toctrees with the pages of the navigation."""
    blocks = []
    for heading, pages in navigation().items():
        entries = "\n".join(f"{page.title} </{page.docname}>" for page in pages)
        blocks.append(f"\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{entries}\n```\n")
    return "".join(blocks)


def llms(base: str = "") -> str:
    """Return llms.txt: the navigation with links to the Markdown sources, or to HTML where Markdown lacks content.

    Args:
        base: URL of the site, with a slash at the end; empty for relative links.
    """
    title, summary = INDEX.read_text("utf-8").split("\n\n")[:2]
    lines = [title, "", f"> {' '.join(summary.split())}"]
    for heading, pages in navigation().items():
        lines += ["", f"## {heading}", ""]
        for page in pages:
            is_generated = _MARKER.search(page.path.read_text("utf-8")) is not None
            target = f"{page.docname}.html" if is_generated else f"_sources/{page.docname}.md.txt"
            lines.append(f"- [{page.title}]({base}{target}): {page.summary}")
    return "\n".join(lines) + "\n"


# ------------------------------------------------------------------------------------------ configuration reference


@dataclass(frozen=True)
class Key:
    """A config key.

    Attributes:
        name: The key, with dots; users choose the part `NAME`.
        info: The field of its model.
        default: Its default as a YAML value; `???` if it is required.
    """

    name: str
    info: FieldInfo
    default: Any

    @property
    def override(self) -> str:
        """The key and its default as typed on the command line."""
        return f"{self.name}={_as_override(self.default)}"

    def definition(self) -> str:
        """Return an entry of a Markdown definition list."""
        values = allowed_values(self.info)
        is_constant = values == str(self.default)  # `kind`, which the selected option of a group sets
        text = f"{self.info.description}" if is_constant else f"{values}. {self.info.description or ''}".rstrip()
        return f"`{self.override}`\n: {_escaped(text[0].upper() + text[1:])}\n"


@cache
def project() -> types.ModuleType:
    """Return the module `config.py` of a new project, which defines the config of each algorithm."""
    module = types.ModuleType("my_agent.config")
    path = TEMPLATE / "{{cookiecutter.slug}}/config.py"
    source = path.read_text("utf-8").replace("{{ cookiecutter.slug }}", "my_agent")
    exec(compile(source, str(path), "exec"), vars(module))  # noqa: S102 - a file of this repository
    return module


def roots() -> dict[str, type[BaseModel]]:
    """Return the models whose keys programs accept, by the prefix of their keys."""
    return {"": project().TrainConfig, "hydra.launcher": LauncherConfig, "hydra.sweeper": SweeperConfig}


def keys(model: type[BaseModel], prefix: str = "", values: Mapping[str, Any] | None = None) -> Iterator[Key]:
    """Yield each key of a model, except the keys of variants, which have a section for each kind.

    Args:
        model: The config model.
        prefix: Key of the model; empty for a whole config.
        values: Defaults as YAML values; None = the defaults of the model.
    """
    values = defaults_of(model, {}) if values is None else values
    for field, info in model.model_fields.items():
        if set_by(info):
            continue
        models, is_collection = models_in(info)
        name = f"{prefix}.{field}".lstrip(".")
        if is_collection:
            yield from keys(models[0], f"{name}.NAME")
        elif models and not is_variant(info):
            yield from keys(models[0], name, values[field])
        else:
            # the default name of a run contains the time
            yield Key(name, info, "run_YYYYMMDD_HHMMSS" if info.default_factory is default_run_name else values[field])
            for item in optional_items(info):
                yield from keys(item, f"{name}.NAME")


def config() -> str:
    """Return the reference of all config keys, with a heading for each group."""
    lines = ["## Top level", "", *(_definition(key) for key in _top_level())]
    for field, info in roots()[""].model_fields.items():
        models, _ = models_in(info)
        if models and not is_variant(info):
            values = defaults_of(roots()[""], {})[field]
            lines += ["", f"## {field}", "", info.description or "", "", *_options(field)]
            lines += [_definition(key) for key in keys(models[0], field, values)]
        elif models:
            lines += ["", f"## {field}", "", info.description or "", "", *_options(field)]
            for kind, model in by_tag(models).items():
                lines += ["", f"### {field}={kind}", "", _summary(model), "", hyperparameters(kind)]
    for group, about in GROUPS.items():
        lines += ["", f"## {group}", "", about, "", *_options(group)]
    schedule = next(model for model in models_in(project().DQNConfig.model_fields["lr"])[0])
    lines += ["", "## Schedules", "", "Keys below a key that accepts a schedule, such as `agent.lr`.", ""]
    lines += [_definition(key) for key in keys(schedule, "agent.lr")]
    for prefix, model in list(roots().items())[1:]:
        lines += ["", f"## {prefix}", "", _summary(model), "", *(_definition(key) for key in keys(model, prefix))]
    return "\n".join(lines)


def hyperparameters(kind: str) -> str:
    """Return the keys of an algorithm of a new project, such as `dqn`."""
    model = by_tag(models_in(project().TrainConfig.model_fields["agent"])[0])[kind]
    return "\n".join(_definition(key) for key in keys(model, "agent"))


def _top_level() -> Iterator[Key]:
    return (key for key in keys(roots()[""]) if "." not in key.name and not models_in(key.info)[0])


def _definition(key: Key) -> str:
    return key.definition()


def _options(group: str) -> list[str]:
    """Return a list of the options of a config group: the first comment of each file, and the values it sets."""
    files = [*sorted((ROOT / "conf" / group).glob("*.yaml")), *sorted((TEMPLATE / "conf" / group).glob("*.yaml"))]
    rows = {file.stem: f"- `{group}={file.stem}`: {_comment(file)}{_settings(file)}" for file in files}
    return ["Options:", "", *rows.values(), ""] if rows else []


def _settings(file: Path) -> str:
    """Return the values that a file of `conf/` sets, if it applies to its own group."""
    text = file.read_text("utf-8")
    values = {} if "{{" in text or "@package" in text else yaml.safe_load(text) or {}
    words = [f"`{key}={_as_override(value)}`" for key, value in values.items() if key != "defaults"]
    return f" Sets {', '.join(words)}." if words else ""


def _comment(file: Path) -> str:
    """Return the first sentences of the comment at the start of a file of `conf/`, up to the end of a line."""
    text = file.read_text("utf-8").replace("{{ cookiecutter.slug }}", "my_agent")
    lines = [line.strip("# ") for line in text.splitlines() if line.startswith("#") and "@package" not in line]
    last = next(number for number, line in enumerate(lines) if line.endswith("."))
    return _escaped(" ".join(lines[: last + 1]))


def _summary(model: type[BaseModel]) -> str:
    return inspect.cleandoc(model.__doc__ or "").split("\n\n")[0]


def _as_override(value: Any) -> str:
    """Return a YAML value in the grammar of Hydra's overrides."""
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{_as_override(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_as_override, value))}]"
    return value if isinstance(value, str) and _PLAIN.fullmatch(value) else json.dumps(value)


def _escaped(text: str) -> str:
    """Escape what Markdown would interpret outside of code: emphasis, HTML and links."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*_<>\[\]{}])", r"\\\1", part) for part in parts)


# ---------------------------------------------------------------------------------------------------- API reference


def names(package: str, *only: str) -> str:
    """Return the autodoc directives of the public names of a package; names that `trieye` also has are linked.

    Args:
        package: The package, whose `__all__` lists its names.
        only: Names to document; none = all.
    """
    module = import_module(package)
    lines, shared = [f".. currentmodule:: {package}", ""], []
    for name in only or sorted(vars(module)["__all__"], key=str.lower):
        value = getattr(module, name)
        kind = _directive(value)
        if package != "trieye" and getattr(trieye, name, None) is value:
            shared.append(f":py:obj:`{name} <trieye.{name}>`")
        elif kind == "data":
            lines += [f".. py:data:: {name}", "", f"   {_about_data(name, value)}", ""]
        else:
            lines += [
                f".. auto{kind}:: {name}",
                *_OPTIONS.get(f"{package}.{name}", ["   :members:"] * (kind != "function")),
                "",
            ]
    lines += [f"Also in :doc:`trieye </docs/reference/api>`: {', '.join(shared)}.", ""] if shared else []
    return "\n".join(["```{eval-rst}", *lines, "```"])


def _directive(value: Any) -> str:
    if inspect.isclass(value):
        return "exception" if issubclass(value, BaseException) else "class"
    return "function" if inspect.isroutine(value) else "data"


def _about_data(name: str, value: Any) -> str:
    if get_origin(value) is Literal:
        return f"One of {', '.join(f'`{choice}`' for choice in get_args(value))}."
    return _DATA[name]


# ------------------------------------------------------------------------------------------------ command reference


def commands() -> str:
    """Return the help of each command of `trieye` and of its actions."""
    lines = []
    for name in cli.COMMANDS:
        text = _help(name)
        lines += ["", f"## trieye {name}", "", "```text", text, "```"]
        actions = text.partition("\nactions:\n")[2].partition("\n\n")[0]
        for action in re.findall(r"^    (\w+)", actions, re.MULTILINE):
            lines += ["", f"### trieye {name} {action}", "", "```text", _help(name, action), "```"]
    return "\n".join(lines)


def _help(*words: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        cli.main([*words, "--help"])
    return printed.getvalue().rstrip()
