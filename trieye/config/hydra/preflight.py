"""Preflight: composes and checks a command line before Hydra creates a directory or runs a task."""

import copy
import functools
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

import yaml
from hydra.core.override_parser.types import ChoiceSweep, Override
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from trieye.config.base import did_you_mean, nearest, takes_many
from trieye.config.hydra.axes import words_of
from trieye.config.hydra.keys import field_at, holds_text, is_in_variant
from trieye.config.hydra.launch import plain
from trieye.config.hydra.loader import NOT_COMPOSED, Loader, parsed
from trieye.config.hydra.messages import Diagnosis, absent_key, without_parser_words
from trieye.config.hydra.override_text import bare
from trieye.config.hydra.sampled_jobs import SampledJobs
from trieye.config.hydra.typed import Config, Options, as_in_a_job, plugin_options, resolved, typed, without_hydra
from trieye.config.launcher import LauncherConfig
from trieye.config.locations import REFERENCE_FORMS, is_reference
from trieye.config.persistence import PersistenceConfig
from trieye.config.sweeper import SweeperConfig
from trieye.exceptions import ConfigurationError
from trieye.renames import CHOICES

_NEEDED_KEYS = {"loop", "persistence"}
_SPACE = "tune.space."


@dataclass(frozen=True)
class Checked(Generic[Config]):
    """A valid command line.

    Attributes:
        config: The typed config; in a sweep, the config of the first job.
        values: The values of the typed config, with the root directory that the job receives; empty in a sweep.
        composed: The composed config for Hydra, including the node `hydra`; in a sweep, without the varying overrides.
        is_multirun: Whether the command line starts a sweep.
    """

    config: Config
    values: dict[str, Any]
    composed: DictConfig
    is_multirun: bool


def check_keys(overrides: Sequence[str], config_type: type[Config]) -> list[Override]:
    """Return the parsed overrides of a command line whose keys exist.

    Unknown keys are reported without composing, which saves 0.2 s, if no other override needs composition.

    Raises:
        ConfigurationError: Keys are unknown; the message has a line for each.
    """
    if messages := [str(CHOICES[word]) for word in overrides if word in CHOICES]:  # files may use the old name
        raise ConfigurationError("\n".join(messages))
    items = parsed(overrides, config_type)
    complaints = [complaint for override in items if (complaint := absent_key(override, config_type)) is not None]
    keys = [override for override in items if field_at(config_type, str(override.key_or_group).split(".")) is not None]
    is_plain = not any(
        override.is_sweep_override() or override.key_or_group in config_type.model_fields for override in keys
    )
    if complaints and is_plain and len(complaints) + len(keys) == len(items):
        raise ConfigurationError("\n".join(complaints))
    return items


class Preflight(Generic[Config]):
    """Composes and checks command lines of one program."""

    def __init__(self, loader: Loader, config_type: type[Config]) -> None:
        self._loader = loader
        self._config_type = config_type

    def compose(
        self,
        overrides: Sequence[str],
        check: Callable[[Config], None] = lambda _: None,
        *,
        multirun: bool = False,
        items: Sequence[Override] | None = None,
    ) -> Checked[Config]:
        """Compose and validate; in a sweep, validate every value of every axis once.

        Args:
            overrides: Overrides as typed.
            check: Raises for valid configs that cannot run here.
            multirun: Whether a flag starts a sweep.
            items: The parsed overrides, if the caller has them.

        Raises:
            ConfigurationError: The command line is invalid; the message has a line for each error.
        """
        items = parsed(overrides, self._config_type) if items is None else items
        axes = [override for override in items if override.is_sweep_override()]
        composed = self._load(items, takes_axes=multirun or bool(axes))
        is_multirun = multirun or OmegaConf.select(composed, "hydra.mode") == RunMode.MULTIRUN
        if not is_multirun:
            self._check_single(axes)
            values = self._resolved(composed)
            config = self._typed(values, overrides)
            check(config)
            values["persistence"]["root_data_dir"] = config.persistence.root_data_dir
            return Checked(config, values, composed, is_multirun)
        params: dict[str, Any] = plain(composed, "hydra.sweeper.params") or {}
        self._check_texts(((tuple(bare(key).split(".")), value) for key, value in params.items()), composed)
        jobs = self._jobs(words_of(params), overrides, composed)
        _, config = next(jobs)
        check(_as_a_job(config))
        for choice, job_config in jobs:
            try:
                check(_as_a_job(job_config))
            except ConfigurationError as error:
                if not str(error).startswith(choice):
                    error.args = (f"{choice}: {error}",)
                raise
        return Checked(config, {}, composed, is_multirun)

    def load(self, overrides: Sequence[str]) -> DictConfig:
        """Compose the config, including the node `hydra`.

        Args:
            overrides: Overrides as typed.

        Raises:
            ConfigurationError: The config does not compose; the message has a line for each error.
        """
        return self._load(parsed(overrides, self._config_type), takes_axes=False)

    def _load(self, items: Sequence[Override], *, takes_axes: bool) -> DictConfig:
        """Compose the config; overrides with several values are left to the jobs of a sweep if it takes axes."""
        axes = [override for override in items if override.is_sweep_override()]
        if not takes_axes:
            self._check_single(axes)
        elif lines := [str(axis.input_line) for axis in axes if axis.is_hydra_override()]:
            raise ConfigurationError("\n".join(f"{line}: Hydra's own keys cannot vary in a sweep" for line in lines))
        try:
            choices = [override for override in items if self._loader.is_choice(override)]
            composed = self._loader.load(choices)
        except NOT_COMPOSED as error:
            raise ConfigurationError(self._not_composed(items, error)) from error
        if not composed.keys() >= _NEEDED_KEYS:
            raise ConfigurationError(
                f"{self._loader.source.name}.yaml: its defaults list contains neither `trieye` nor `schema`, so the "
                "keys of trieye are missing; add `defaults: [trieye, _self_]`"
            )
        # one by one into the composed config, so that each error is reported with the keys of that config
        fixed_overrides = [override for override in items if override not in choices and override not in axes]
        if takes_axes:  # a conditional key may be absent from this config
            self._set([override for override in fixed_overrides if override.is_hydra_override()], composed)
            conditions = (
                OmegaConf.select(composed, "hydra.sweeper.when") if _is_ours(composed, "hydra.sweeper") else None
            )
            conditional_keys = {str(key) for key in conditions} if isinstance(conditions, DictConfig) else set()
            fixed_overrides = [
                override
                for override in fixed_overrides
                if not override.is_hydra_override() and bare(override.get_key_element()) not in conditional_keys
            ]
        self._set(fixed_overrides, composed)
        self._loader.record(items, composed)
        return composed

    def _not_composed(self, items: Sequence[Override], error: Exception) -> str:
        if isinstance(error, UnicodeDecodeError):  # which does not name the file
            files = [str(file) for file in self._loader.files() if file.is_file() and error.object in file.read_bytes()]
            return f"{', '.join(files) or 'a config file'}: not saved as UTF-8: {error}"
        if isinstance(error, RecursionError):
            start = " ".join((f"{self._loader.source.name}.yaml", *(str(override.input_line) for override in items)))
            return f"{start}: a config includes itself through its defaults list, or is nested too deeply"
        try:
            choices = [override for override in items if self._loader.is_choice(override)]
            return Diagnosis(self._loader, self._config_type).of_choices(choices, error)
        except NOT_COMPOSED as unreadable:  # the primary config itself
            return without_parser_words(str(unreadable))

    def validated(self, composed: DictConfig, overrides: Sequence[str]) -> Config:
        """Return the typed config of a composed one, whose variants are completed in place.

        Raises:
            ConfigurationError: A value is missing or invalid; the message has a line for each error.
        """
        return self._typed(self._resolved(composed), overrides)

    def _check_single(self, axes: Iterable[Override]) -> None:
        """Raise for keys with several values outside a sweep; the message suggests a list where the key takes one."""
        complaints = []
        for axis in axes:
            key, values = axis.get_key_element(), axis.value()
            info = field_at(self._config_type, key.lstrip("+").split("."))
            takes_list = takes_many(info.annotation) if info is not None else False
            takes_list = takes_list or isinstance(self._loader.entries().get(key), list)
            is_list = takes_list and isinstance(values, ChoiceSweep) and values.simple_form
            advice = f"type '{key}=[{axis.get_value_string()}]' for a list" if is_list else "choose one"
            if key.lstrip("+").startswith(_SPACE):
                text = axis.get_value_string().replace('"', "'")
                complaints.append(f"{axis.input_line}: search spaces of tune are quoted; type '{key}=\"{text}\"'")
                continue
            complaints.append(f"{axis.input_line}: more than one value; add -m to run a job for each, or {advice}")
        if complaints:
            raise ConfigurationError("\n".join(complaints))

    def _set(self, keys: Sequence[Override], composed: DictConfig) -> None:
        complaints = []
        for key in keys:
            try:
                self._loader.apply(key, composed)
            except NOT_COMPOSED as error:
                complaints.append(Diagnosis(self._loader, self._config_type).of_key(key, composed, error))
        if complaints:
            raise ConfigurationError("\n".join(complaints))

    def _jobs(self, params: Sequence[str], overrides: Sequence[str], sweep: DictConfig) -> Iterator[tuple[str, Config]]:
        """Yield the config of the first job of a sweep, and one for each other value of each axis, with its override.

        Args:
            params: The overrides of `hydra.sweeper.params`.
            overrides: Overrides as typed; they take precedence over `params`.
            sweep: The composed config of the sweep.
        """
        options = _plugin_options(sweep, "hydra.sweeper", SweeperConfig, overrides) or SweeperConfig()
        params = [f"seed=range(0,{options.seeds})", *params] if options.seeds else params  # conditions may read it
        items = parsed([*params, *overrides], self._config_type)
        words = [
            self._values(override) if override.is_sweep_override() else [str(override.input_line)] for override in items
        ]
        samples = SampledJobs([override.get_key_element() for override in items], words, options)
        first_words = samples.first()
        typed_keys = {
            override.get_key_element() for override in items[len(params) :] if not override.is_sweep_override()
        }
        kept_indices = [index for index, override in enumerate(items) if override.get_key_element() not in typed_keys]
        if samples.is_restricted or any(self._loader.is_choice(items[index]) for index in kept_indices):
            composed = self.load(first_words)
        else:
            composed = copy.deepcopy(sweep)
            self._set(parsed([words[index][0] for index in kept_indices], self._config_type), composed)
        _plugin_options(composed, "hydra.launcher", LauncherConfig, overrides)
        values = self._resolved(composed)
        yield "", self._typed(values, first_words)
        has_references = "${" in OmegaConf.to_yaml(without_hydra(composed))
        checked = {tuple(first_words)}
        for index, choices in enumerate(words):
            for position, word in enumerate(choices):
                job = samples.with_value(index, position)
                if job is not None and tuple(job) not in checked:
                    checked.add(tuple(job))
                    yield word, self._job(job, first_words, {} if has_references else values)

    def _resolved(self, composed: DictConfig) -> dict[str, Any]:
        with as_in_a_job(composed):
            values = resolved(composed, self._config_type)
        self._check_texts(_numbers_in(values, ()), composed)
        return values

    def _check_texts(self, items: Iterable[tuple[tuple[str, ...], Any]], composed: DictConfig) -> None:
        """Raise for texts that YAML has read as numbers in config files; `items`: paths of keys, and their values."""
        numbers = [item for item in items if _is_number(item[1]) and holds_text(self._config_type, item[0])]
        files = self._composed_files(composed) if numbers else []
        if complaints := [line for item in numbers if (line := _misread(*item, files)) is not None]:
            raise ConfigurationError("\n".join(complaints))

    def _composed_files(self, composed: DictConfig) -> list[Path]:
        """Return the files of the primary config and of the selected options."""
        choices = composed.hydra.runtime.choices
        names = [self._loader.source.name, *(f"{str(group).partition('@')[0]}/{choices[group]}" for group in choices)]
        paths = [directory / f"{name}.yaml" for directory in self._loader.directories for name in names]
        return [path for path in paths if path.is_file()]

    def _typed(self, values: dict[str, Any], overrides: Sequence[str]) -> Config:
        return typed(values, self._config_type, overrides=overrides, working_dir=Path.cwd())

    def _job(self, job: Sequence[str], first_words: Sequence[str], values: Mapping[str, Any]) -> Config:
        """Return the config of a job.

        Args:
            job: Its overrides.
            first_words: Those of the first job.
            values: The values of the first job if none refers to another one, else empty.
        """
        if [word.partition("=")[0] for word in job] == [word.partition("=")[0] for word in first_words]:
            words = [word for word, first in zip(job, first_words, strict=True) if word != first]
            items = parsed(words, self._config_type)
            # nothing depends on a plain value: validating is a hundred times faster than composing
            if all(self._is_plain(override, values) for override in items):
                job_values = dict(values)
                for override in items:
                    job_values = _with_value(job_values, override.key_or_group.split("."), override.value())
                return self._typed(job_values, job)
        return self._typed(self._resolved(self.load(job)), job)

    def _is_plain(self, override: Override, values: Mapping[str, Any]) -> bool:
        """Return whether an override sets a plain value that is no variant, and not another one or a missing one."""
        *parent_keys, leaf_key = override.key_or_group.split(".")
        parent_value, value = functools.reduce(_item, parent_keys, values), override.value()
        is_leaf = isinstance(parent_value, dict) and not isinstance(parent_value.get(leaf_key, {}), dict)
        is_reference = isinstance(value, str) and ("${" in value or value == "???")
        return (
            is_leaf
            and not is_reference
            and not (override.package or is_in_variant(self._config_type, [*parent_keys, leaf_key]))
        )

    def _values(self, axis: Override) -> list[str]:
        """Return an override for each value of an axis."""
        if axis.is_interval_sweep():
            interval: Any = axis.value()
            values = [str(interval.start), str(interval.end)]
        else:
            axis.config_loader = self._loader.config_loader
            values = list(axis.sweep_string_iterator())
        if not values:
            raise ConfigurationError(f"{axis.input_line}: no values to sweep over")
        return [f"{axis.get_key_element()}={value}" for value in values]


def _plugin_options(composed: DictConfig, node: str, model: type[Options], overrides: Sequence[str]) -> Options | None:
    """Return the options of trieye's launcher or sweeper; None for another plugin.

    Raises:
        ConfigurationError: An option is invalid.
    """
    if not _is_ours(composed, node):
        return None
    try:
        with as_in_a_job(composed):
            values = plain(composed, node)
    except OmegaConfBaseException as error:
        raise ConfigurationError(f"{error.full_key or node}: {str(error).splitlines()[0]}") from error
    return plugin_options(node, model, values, overrides)


def _is_ours(composed: DictConfig, node: str) -> bool:
    return str(OmegaConf.select(composed, f"{node}._target_")).startswith("hydra_plugins.trieye.")


def _numbers_in(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield the path of keys and the value of each number in nested dicts."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers_in(item, (*path, str(key)))
    elif _is_number(value):
        yield path, value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _misread(path: tuple[str, ...], number: float, files: Iterable[Path]) -> str | None:
    """Return a complaint if YAML has read a text in a config file as this number, such as `1.10` as 1.1, `010` as 8."""
    number_text, names = str(number), (path[-1], ".".join(path))  # the latter in `hydra.sweeper.params`
    nodes = [(name, node, file) for file in files for name, node in _unquoted_at(names, file)]
    if any(node.value == number_text or "${" in node.value for _, node, _ in nodes):
        return None  # written as shown, or the value of another key
    for name, node, file in nodes:
        if str(OmegaConf.create(f"key: {node.value}").key) == number_text:
            return (
                f"{'.'.join(path)} is a text, but YAML reads {node.value} as the number {number_text}; "
                f"write {name}: '{node.value}' in {file}, line {node.start_mark.line + 1}"
            )
    return None


def _unquoted_at(keys: Collection[str], file: Path) -> Iterator[tuple[str, yaml.ScalarNode]]:
    """Yield the values of keys in a config file that are not quoted, each after its key as written."""
    try:
        nodes = [yaml.compose(file.read_text("utf-8"), Loader=yaml.SafeLoader)]
    except (OSError, ValueError, yaml.YAMLError):
        return  # not part of the config, which was composed
    while nodes:
        node = nodes.pop()
        for name, value in node.value if isinstance(node, yaml.MappingNode) else ():
            nodes.append(value)
            if name.value.lstrip("+") in keys and isinstance(value, yaml.ScalarNode) and value.style is None:
                yield name.value, value


def _as_a_job(config: Config) -> Config:
    """Return the config of a sweep, with the run name of its first job."""
    name = {"run_name": f"{config.run_name}_0"}
    return config.model_copy(update={**name, "persistence": config.persistence.model_copy(update=name)})


def _with_value(values: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """Return nested dicts with another value at a path."""
    name, *inner_path = path
    return {**values, name: _with_value(values[name], inner_path, value) if inner_path else value}


def _item(values: Any, name: str) -> Any:
    return values.get(name) if isinstance(values, dict) else None


def check_paths(persistence: PersistenceConfig) -> None:
    """Check that the run directory is writable and that files to start from exist, without leaving files behind.

    Raises:
        ConfigurationError: The run directory is not writable, or a file to start from does not exist.
    """
    _check_writable(persistence)
    for name in ("load_checkpoint_path", "load_buffer_path"):
        path = getattr(persistence, name)
        if path is not None and not is_reference(name, path):
            _check_exists(f"persistence.{name}", Path(path))
    for path in persistence.get_resume_roots().values():
        _check_exists("persistence.resume_dirs", path)


def _check_writable(persistence: PersistenceConfig) -> None:
    run = persistence.get_run_base_dir()
    try:
        if "\0" in str(run):
            raise ValueError("the path contains a NUL byte")  # noqa: TRY301 - one message for all reasons
        # permission bits are not enough: root may write everywhere, yet cannot create files in /proc
        Path(tempfile.mkdtemp(prefix=".trieye_", dir=_nearest_existing(run))).rmdir()
    except (OSError, ValueError) as error:
        reason = f"{error.strerror}: {_nearest_existing(run)}" if isinstance(error, OSError) else str(error)
        raise ConfigurationError(
            f"persistence.root_data_dir={persistence.root_data_dir} is not writable ({reason}); choose another one"
        ) from error


def _nearest_existing(path: Path) -> Path:
    return next(candidate for candidate in (path, *path.parents) if os.path.lexists(candidate))


def _check_exists(key: str, path: Path) -> None:
    path = path.expanduser().absolute()
    try:
        if path.exists():
            return
        parent = _nearest_existing(path.parent)
        names = sorted(entry.name for entry in parent.iterdir()) if parent.is_dir() else []
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{key}={path} cannot be read ({error})") from error
    is_word = key == "persistence.load_checkpoint_path" and path.parent == Path.cwd()
    run, colon, word = path.name.rpartition(":")
    if is_word and (match := nearest(word, ("best", "latest"))) is not None:
        hint = f"; did you mean {run + colon + match!r}? ({REFERENCE_FORMS}, or a path)"
        raise ConfigurationError(f"{key}={path.name}: no such checkpoint{hint}")
    hint = did_you_mean(path.relative_to(parent).parts[0], names)
    raise ConfigurationError(f"{key}={path}: no such file or directory in {parent}{hint}")
