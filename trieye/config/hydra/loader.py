"""Loader: composes configs with Hydra's config loader, from a directory and overrides."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import hydra
from hydra._internal import defaults_list as hydra_defaults
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.default_element import GroupDefault, InputDefault, ResultDefault
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobRuntime
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from hydra.version import VersionBase
from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel
from yaml import YAMLError

from trieye.config.base import did_you_mean
from trieye.config.hydra import axes, registration
from trieye.config.hydra.keys import holds_text
from trieye.config.hydra.prototype import Prototype
from trieye.config.hydra.registration import Registration
from trieye.config.hydra.schema import BEFORE_1_4, SCHEMA_FILE, SCHEMA_NAME
from trieye.config.root import TrieyeConfig
from trieye.exceptions import ConfigurationError

VERSION_BASE: dict[str, Any] = {"version_base": None} if BEFORE_1_4 else {}
"""Hydra 1.3 changes its behavior without `version_base`; 1.4 warns about it."""

_UNEXPECTED = (ValueError, TypeError, AttributeError, AssertionError, RecursionError)
NOT_COMPOSED = (HydraException, OmegaConfBaseException, YAMLError, *_UNEXPECTED)
"""Errors of composition; Hydra and OmegaConf raise builtin errors for unexpected lists and keys."""

_QUOTES = "'\""
_QUOTED = r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\""
_VALUE = re.compile(rf"~?[\w./+@%$-]+|{_QUOTED}")
_VALUES = re.compile(rf"\s*(?:{_VALUE.pattern})\s*(?:,\s*(?:{_VALUE.pattern})\s*)*")
_CHOICE = re.compile(r"choice\((.*)\)")
_RANGE = re.compile(r"range\(\s*(-?\d+(?:\s*,\s*-?\d+)?(?:\s*,\s*-?[1-9]\d*)?)\s*\)")
_SCALAR = re.compile(r"[+-]?(?:[\d_]+\.?[\d_]*|\.[\d_]+)(?:e[+-]?[\d_]+)?|[+-]?(?:inf|nan)|true|false", re.IGNORECASE)


@dataclass(frozen=True)
class ConfigSource:
    """The primary config of a program.

    Attributes:
        directory: Absolute config directory, or `pkg://` and a package.
        name: Name of the primary config, without `.yaml`.
        extra_directory: Directory that `--config-dir` adds.
        job_name: Hydra's name of the program.
    """

    directory: str
    name: str
    extra_directory: str | None = None
    job_name: str = "app"


def set_override_dirname(job: DictConfig, overrides: Sequence[Override]) -> None:
    """Set `hydra.job.override_dirname` as Hydra 1.3 does; Hydra 1.4 has a resolver for it."""
    if not OmegaConf.is_interpolation(job, "override_dirname"):
        options = job.config.override_dirname
        words = sorted(
            override.input_line or "" for override in overrides if override.key_or_group not in options.exclude_keys
        )
        job.override_dirname = options.item_sep.join(words).replace("=", options.kv_sep)


@dataclass
class Loader:
    """Hydra's config loader for one primary config."""

    source: ConfigSource
    config_loader: ConfigLoaderImpl
    config_type: type[TrieyeConfig]

    def load(self, choices: Sequence[Override]) -> DictConfig:
        """Compose the config of some choices, including the node `hydra`; axes are left to the jobs of a sweep.

        Raises:
            Exception: The config does not compose; one of `NOT_COMPOSED`.
        """
        mode = RunMode.MULTIRUN if any(choice.is_sweep_override() for choice in choices) else RunMode.RUN
        words = [str(choice.input_line) for choice in choices]
        config = self.config_loader.load_configuration(self.source.name, words, mode)
        assert isinstance(config, DictConfig)  # noqa: S101 - as documented
        return config

    def record(self, items: Sequence[Override], config: DictConfig) -> None:
        """Record overrides in the node `hydra` of a composed config, as Hydra does when it composes with them."""
        hydra_items = [override for override in items if override.is_hydra_override()]
        task_items = [override for override in items if not override.is_hydra_override()]
        with flag_override(config, ["struct", "readonly"], [False, False]):
            node = config.hydra
            node.overrides.hydra = [override.input_line for override in hydra_items]
            node.overrides.task = [override.input_line for override in task_items]
            set_override_dirname(node.job, task_items)
            node.job.env_set.update({name: os.environ[name] for name in node.job.env_copy})

    def is_choice(self, override: Override) -> bool:
        """Return True if an override selects configs: an option of a group, or the search path."""
        group = override.key_or_group
        if group == "hydra.searchpath" or isinstance(override.value(), dict):
            return group == "hydra.searchpath"
        # `self._repository`, which includes the search path of the primary config, takes 20 ms to create
        is_key = "." in group or group in self.config_type.model_fields
        return self.config_loader.repository.group_exists(group) or (
            not is_key and self._repository.group_exists(group)
        )

    def apply(self, override: Override, config: DictConfig) -> None:
        """Set a key of a composed config as Hydra does.

        Raises:
            Exception: The key does not exist; one of `NOT_COMPOSED`.
        """
        self.config_loader._apply_overrides_to_config([override], config)  # noqa: SLF001 - no public function

    def options(self, group: str) -> list[str]:
        """Return the options of a group in alphabetical order."""
        return self._repository.get_group_options(group, ObjectType.CONFIG)

    def options_below(self, group: str) -> list[str]:
        """Return the options of a group and of its subgroups, such as `atari/pong`."""
        inner_options = [f"{inner}/{option}" for inner in self.groups(group) for option in self.options(inner)]
        return [*self.options(group), *(option.removeprefix(f"{group}/") for option in inner_options)]

    def groups(self, parent: str = "") -> list[str]:
        """Return the full names of all groups below `parent` that have options, except Hydra's."""
        groups = []
        for name in self._repository.get_group_options(parent, ObjectType.GROUP):
            group = f"{parent}/{name}" if parent else name
            if group == "hydra" or name.startswith(("_", ".")):
                continue
            groups += [group] if self.options(group) else []
            groups += self.groups(group)
        return groups

    def _defaults(self, overrides: Sequence[str]) -> list[ResultDefault]:
        words = [quoted(override_text, self.config_type) for override_text in overrides]
        return self.config_loader.compute_defaults_list(self.source.name, words, RunMode.RUN).defaults

    @cached_property
    def _repository(self) -> CachingConfigRepository:
        """Repository of all configs on the search path, including directories that the primary config adds.

        The config loader would create a new one for each query and parse the primary config each time: 12 ms.
        """
        loader = self.config_loader
        _, repository = loader._parse_overrides_and_create_caching_repo(self.source.name, [])  # noqa: SLF001 - as above
        return repository

    def entries(self) -> dict[str, Any]:
        """Return the options in the defaults list of the primary config, by `group` or `group@package`."""
        primary = self._repository.load_config(self.source.name)
        defaults = (primary.defaults_list if primary is not None else None) or []
        groups = [default for default in defaults if isinstance(default, GroupDefault)]
        return {f"{item.group}@{item.package}" if item.package else str(item.group): item.value for item in groups}

    def chosen(self, overrides: Sequence[str]) -> list[str]:
        """Return the names of the composed configs, such as `runtime/local`.

        Raises:
            Exception: The config does not compose; one of `NOT_COMPOSED`.
        """
        return [str(default.config_path) for default in self._defaults(overrides)]

    def contents(self, overrides: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the name of each composed config, and its values as a dict of the whole config."""
        for default in self._defaults(overrides):
            name = str(default.config_path)
            result = self._repository.load_config(name)
            if result is None or not isinstance(result.config, DictConfig) or result.provider == "trieye":
                continue
            values: Any = OmegaConf.to_container(result.config, resolve=False)
            for key in reversed([key for key in (default.package or "").split(".") if key]):
                values = {key: values}
            yield name, values

    @property
    def directories(self) -> list[Path]:
        """The local directories on the search path, highest precedence first."""
        paths = (_directory(source.scheme(), source.path) for source in self._repository.get_sources())
        return [path for path in paths if path is not None]

    def files(self) -> Iterator[Path]:
        """Yield the local config files on the search path, even if the primary config is unreadable."""
        for source in self.config_loader.repository.get_sources():
            directory = _directory(source.scheme(), source.path)
            yield from directory.rglob("*.yaml") if directory else ()


def _directory(scheme: str, path: str) -> Path | None:
    if scheme == "file":
        return Path(path)
    if scheme != "pkg" or path.startswith("hydra"):
        return None
    from importlib.resources import files

    try:
        return Path(str(files(path.replace("/", "."))))
    except (ModuleNotFoundError, ValueError, TypeError):
        return None


def absolute(config_path: str, file: str | None) -> str:
    """Return a config path as absolute; it is relative to `file`, or to the working directory if `file` is None."""
    if config_path.startswith("pkg://"):
        return config_path
    base = Path(file).resolve().parent if file else Path.cwd()
    return os.path.normpath(base / Path(config_path).expanduser())


_map_of_choices: Any = getattr(hydra_defaults, "_create_interpolation_map", None)


def _needed_map_of_choices(overrides: Any, defaults_list: list[InputDefault], self_added: bool) -> DictConfig:
    """Return the config that `${group}` in a defaults list refers to; empty if no default does.

    Hydra creates it for each list, and for each config without one: 25 ms, a tenth to a fifth of a composition.
    """
    is_needed = any(default.is_interpolation() for default in defaults_list)
    return _map_of_choices(overrides, defaults_list, self_added) if is_needed else DictConfig({})


if _map_of_choices is not None:
    hydra_defaults._create_interpolation_map = _needed_map_of_choices  # noqa: SLF001 - no public function

_installed: dict[tuple[str, str, str], Prototype[ConfigResult]] = {}
"""Configs that Hydra and trieye install, by provider, package and name; reading them took a fifth of a composition."""


class _Repository(ConfigRepository):
    """A copy shares the sources until Hydra replaces its own; copying the config store would take 15 ms a start."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return copy(self)

    def load_config(self, config_path: str) -> ConfigResult | None:
        source = next((source for source in self.get_sources() if source.is_config(config_path)), None)
        if source is None or source.scheme() != "pkg" or source.path not in ("hydra.conf", "trieye.conf"):
            return super().load_config(config_path)
        key = source.provider, source.path, config_path
        if key not in _installed:
            result = super().load_config(config_path)
            assert result is not None  # noqa: S101 - its source exists
            _installed[key] = Prototype(result)
        return _installed[key].copy()  # Hydra changes what it loads


@contextmanager
def opened(source: ConfigSource, config_type: type[TrieyeConfig], *, run_name: str) -> Iterator[Loader]:
    """Open a primary config, and restore Hydra's global state afterwards, even during a sweep.

    Raises:
        ConfigurationError: The directory or the config does not exist.
    """
    # Hydra's global instance stays unchanged: a task, a sweep or a `with hydra.initialize()` may be using it
    with _restored():
        registration.current = Registration(config_type, run_name)
        if BEFORE_1_4:
            hydra.version.setbase(None)
        search_path = create_config_search_path(source.directory)
        if source.extra_directory is not None:
            if not Path(source.extra_directory).is_dir():
                raise ConfigurationError(f"--config-dir={source.extra_directory}: no such directory")
            extra_path, anchor = f"file://{source.extra_directory}", SearchPathQuery(provider="schema")
            search_path.prepend(provider="command-line", path=extra_path, anchor=anchor)
        config_loader = ConfigLoaderImpl(config_search_path=search_path)
        config_loader.repository = _Repository(search_path)
        _check(source, config_loader)
        Hydra(task_name=source.job_name, config_loader=config_loader)  # registers resolvers and sets the job name
        yield Loader(source, config_loader, config_type)


def _check(source: ConfigSource, config_loader: ConfigLoaderImpl) -> None:
    """Report a missing directory or config with the closest match, which Hydra's message lacks."""
    try:
        config_loader.ensure_main_config_source_available()
    except HydraException as error:
        if "://" not in source.directory and not Path(source.directory).is_dir():
            raise ConfigurationError(
                f"config_path={source.directory}: no such directory; create it with {source.name}.yaml, "
                f"or use the configs of trieye: config_path='{registration.OWN_CONFIGS}', config_name='trieye'"
            ) from error
        raise ConfigurationError(f"config_path={source.directory}: {error}") from error
    if not config_loader.repository.config_exists(source.name):
        configs = [name for name in config_loader.get_group_options("") if name != SCHEMA_NAME and name[0] != "_"]
        hint = f"{did_you_mean(source.name, configs)} (configs: {', '.join(configs) or 'none'})"
        raise ConfigurationError(f"config_name={source.name}: no such config in {source.directory}{hint}")


@contextmanager
def _restored() -> Iterator[None]:
    """Restore the global state that composition changes: registered type and schema, Hydra's version base, job name."""
    base, job_name = VersionBase.instance().version_base, JobRuntime.instance().get("name")
    old_registration, repo = registration.current, ConfigStore.instance().repo
    schema = repo.get(SCHEMA_FILE)
    try:
        yield
    finally:
        registration.current = old_registration
        repo.pop(SCHEMA_FILE, None)
        if schema is not None:
            repo[SCHEMA_FILE] = schema
        VersionBase.instance().version_base = base
        JobRuntime.instance().set("name", job_name)


def quoted(override_text: str, config_type: type[BaseModel]) -> str:
    """Quote values outside Hydra's grammar, such as non-ASCII letters and `~/x`, and numbers in text fields.

    Args:
        override_text: Override as typed; the values of a simple sweep, `a,b`, of `choice(a,b)`, and in text fields of
            `range(0,3)`, are quoted one by one.
        config_type: Determines the text fields: `run_name=1e3` is not 1000.0.
    """
    key, _, values_text = override_text.partition("=")
    is_text = holds_text(config_type, key.lstrip("+").split("."))
    if choice := _CHOICE.fullmatch(values_text):
        values_text = choice[1]
    elif is_text and (numbers := _RANGE.fullmatch(values_text)):
        values_text = ",".join(map(str, range(*map(int, numbers[1].split(",")))))
    values = _VALUE.findall(values_text) if _VALUES.fullmatch(values_text) else []
    quoted_values = [_quoted_value(value, is_text=is_text) for value in values]
    # Hydra's `choice('1',x)` yields the number 1, and `'1',x` the text
    is_unsafe_choice = choice is not None and any(value[0] in _QUOTES for value in values)
    return f"{key}={','.join(quoted_values)}" if quoted_values != values or is_unsafe_choice else override_text


def _quoted_value(value: str, *, is_text: bool) -> str:
    needs_quotes = not value.isascii() or value.startswith("~") or (is_text and _SCALAR.fullmatch(value))
    return f"'{value}'" if needs_quotes and value[0] not in _QUOTES else value


def parsed(overrides: Sequence[str], config_type: type[BaseModel]) -> list[Override]:
    """Parse overrides one by one, quoted for Hydra's grammar.

    Raises:
        ConfigurationError: Overrides cannot be parsed; the message has a line for each.
    """
    return axes.parsed([quoted(override_text, config_type) for override_text in overrides])
