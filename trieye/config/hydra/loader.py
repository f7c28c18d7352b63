"""Loading: from a config directory and overrides to a composed config."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.default_element import GroupDefault
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobRuntime
from hydra.errors import HydraException
from hydra.types import RunMode
from hydra.version import VersionBase
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from trieye.config.base import did_you_mean
from trieye.config.hydra import registration
from trieye.config.hydra.overrides import quoted
from trieye.config.hydra.registration import Registration
from trieye.config.hydra.schema import BEFORE_1_4, SCHEMA_NAME
from trieye.config.root import TrieyeConfig
from trieye.exceptions import ConfigurationError

VERSION_BASE: dict[str, Any] = {"version_base": None} if BEFORE_1_4 else {}
"""Hydra 1.3 wants `version_base` and changes its behavior without; 1.4 warns about it."""

NOT_COMPOSED = (HydraException, OmegaConfBaseException, YAMLError, ValueError, AttributeError)
"""What composing raises; `ValueError` and `AttributeError` come from Hydra's reading of defaults lists."""


@dataclass(frozen=True)
class Source:
    """Where configs come from.

    Attributes:
        directory: An absolute directory, or `pkg://` and a package.
        name: The primary config, without `.yaml`.
        extra_directory: What `--config-dir` adds.
        job_name: What Hydra calls the program.
    """

    directory: str
    name: str
    extra_directory: str | None = None
    job_name: str = "app"


class Loader:
    """Hydra's config loader for one source."""

    def __init__(self, source: Source, config_loader: ConfigLoaderImpl, config_type: type[TrieyeConfig]) -> None:
        self.source = source
        self.config_loader = config_loader
        self._config_type = config_type

    def load(self, overrides: Sequence[str], *, run_mode: RunMode = RunMode.RUN) -> DictConfig:
        """Compose, with the node `hydra`.

        Raises:
            Exception: The config cannot be composed; one of `NOT_COMPOSED`.
        """
        config = self.config_loader.load_configuration(
            config_name=self.source.name, overrides=self._quoted(overrides), run_mode=run_mode
        )
        assert isinstance(config, DictConfig)  # noqa: S101 - Hydra's own promise
        return config

    def is_choice(self, override: Override) -> bool:
        """Tell, as Hydra does, whether an override chooses the option of a group and does not set a key."""
        return self._repository.group_exists(override.key_or_group) and not isinstance(override.value(), dict)

    def apply(self, override: Override, config: DictConfig) -> None:
        """Set a key of a composed config as Hydra does.

        Raises:
            Exception: There is no such key; one of `NOT_COMPOSED`.
        """
        *parents, _ = override.key_or_group.split(".")
        for depth in range(1, len(parents) + 1):
            parent = OmegaConf.select(config, ".".join(parents[:depth]))
            if parent is not None and not OmegaConf.is_config(parent):
                # OmegaConf would replace the value by a dict, and then say that the dict lacks the key
                raise ValueError(f"{'.'.join(parents[:depth])} is a value and has no keys")
        self.config_loader._apply_overrides_to_config([override], config)  # noqa: SLF001 - Hydra has no public way

    def options(self, group: str) -> list[str]:
        """Return the options of a group, in the order of the alphabet."""
        return self._listed(group, ObjectType.CONFIG)

    def options_below(self, group: str) -> list[str]:
        """Return the options of a group and those of the groups below it, such as `atari/pong`."""
        below = [
            f"{name.removeprefix(f'{group}/')}/{option}" for name in self.groups(group) for option in self.options(name)
        ]
        return [*self.options(group), *below]

    def groups(self, parent: str = "") -> list[str]:
        """Return all groups below `parent` that have options, with their full names; Hydra's own are left out."""
        found = []
        for name in self._listed(parent, ObjectType.GROUP):
            group = f"{parent}/{name}" if parent else name
            if group == "hydra" or name.startswith(("_", ".")):
                continue
            found += [group] if self.options(group) else []
            found += self.groups(group)
        return found

    def _quoted(self, overrides: Sequence[str]) -> list[str]:
        return [quoted(override, self._config_type) for override in overrides]

    def _listed(self, group: str, kind: ObjectType) -> list[str]:
        return self._repository.get_group_options(group, kind)

    @cached_property
    def _repository(self) -> CachingConfigRepository:
        """All places of configs, those that the primary config adds included.

        The config loader makes a new one for each question, and parses the primary config each time: 12 ms.
        """
        loader = self.config_loader
        _, repository = loader._parse_overrides_and_create_caching_repo(self.source.name, [])  # noqa: SLF001 - as above
        return repository

    def entries(self) -> dict[str, Any]:
        """Return the defaults list of the primary config: `group` or `group@package`, and its option or options."""
        primary = self._repository.load_config(self.source.name)
        defaults = (primary.defaults_list if primary is not None else None) or []
        groups = [default for default in defaults if isinstance(default, GroupDefault)]
        return {f"{item.group}@{item.package}" if item.package else str(item.group): item.value for item in groups}

    def chosen(self, overrides: Sequence[str]) -> list[str]:
        """Return the configs that overrides lead to, such as `runtime/local`.

        Raises:
            Exception: The config cannot be composed; one of `NOT_COMPOSED`.
        """
        defaults = self.config_loader.compute_defaults_list(
            self.source.name, self._quoted(overrides), RunMode.RUN
        ).defaults
        return [str(default.config_path) for default in defaults]

    @property
    def directories(self) -> list[Path]:
        """The directories on the search path that lie on this machine, the winning one first."""
        found = (_directory(source.scheme(), source.path) for source in self._repository.get_sources())
        return [path for path in found if path is not None]


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
    """Make a config path absolute; it is relative to `file`, or to the working directory if there is none."""
    if config_path.startswith("pkg://"):
        return config_path
    base = Path(file).resolve().parent if file else Path.cwd()
    return os.path.normpath(base / Path(config_path).expanduser())


@contextmanager
def opened(source: Source, config_type: type[TrieyeConfig], *, run_name: str) -> Iterator[Loader]:
    """Open a source; afterwards Hydra's global state is what it was, also in the midst of a sweep.

    Raises:
        ConfigurationError: There is no such directory, or it has no such config.
    """
    _check(source)
    # Hydra's global instance is not touched: a task, a sweep or a `with hydra.initialize()` may be using it
    with _restored(), registered(config_type, run_name=run_name):
        if BEFORE_1_4:
            hydra.version.setbase(None)
        search_path = create_config_search_path(source.directory)
        if source.extra_directory is not None:
            extra, anchor = f"file://{source.extra_directory}", SearchPathQuery(provider="schema")
            search_path.prepend(provider="command-line", path=extra, anchor=anchor)
        config_loader = ConfigLoaderImpl(config_search_path=search_path)
        Hydra(task_name=source.job_name, config_loader=config_loader)  # sets resolvers, and the name of the job
        yield Loader(source, config_loader, config_type)


@contextmanager
def registered(config_type: type[TrieyeConfig], *, run_name: str) -> Iterator[None]:
    """Register a config type for as long as the context lasts; then the one before and its schema are back."""
    stored, file = ConfigStore.instance().repo, f"{SCHEMA_NAME}.yaml"
    before, schema = registration.current, stored.get(file)
    registration.current = Registration(config_type, run_name)
    try:
        yield
    finally:
        registration.current = before
        stored.pop(file, None)
        if schema is not None:
            stored[file] = schema


@contextmanager
def _restored() -> Iterator[None]:
    """Put back what composing changes besides: the version that Hydra behaves like, and the name of the job."""
    base, job_name = VersionBase.instance().version_base, JobRuntime.instance().get("name")
    try:
        yield
    finally:
        VersionBase.instance().version_base = base
        JobRuntime.instance().set("name", job_name)


def _check(source: Source) -> None:
    """Find a missing config before Hydra does, which has no nearest match to offer."""
    if source.extra_directory is not None and not Path(source.extra_directory).is_dir():
        raise ConfigurationError(f"--config-dir={source.extra_directory}: there is no such directory")
    scheme, _, path = source.directory.rpartition("://")
    directory = _directory(scheme or "file", path)
    if directory is None or not directory.is_dir():
        raise ConfigurationError(f"config_path={source.directory}: there is no such directory")
    places = [directory, *([Path(source.extra_directory)] if source.extra_directory is not None else [])]
    if any((place / f"{source.name}.yaml").is_file() for place in places):
        return
    known = sorted(path.stem for place in places for path in place.glob("*.yaml"))
    raise ConfigurationError(
        f"config_name={source.name}: {directory} has no {source.name}.yaml{did_you_mean(source.name, known)}"
        f" (there: {', '.join(known) or 'no config at all'})"
    )
