"""Preflight: everything on a command line is checked before Hydra makes a directory or runs a task."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

from hydra.core.override_parser.types import ChoiceSweep, Override
from omegaconf import DictConfig, OmegaConf

from trieye.config.base import takes_many
from trieye.config.hydra.complaints import field_at, is_in_variant
from trieye.config.hydra.diagnosis import Diagnosis
from trieye.config.hydra.loader import NOT_COMPOSED, Loader
from trieye.config.hydra.overrides import parsed, without_parser_words
from trieye.config.hydra.paths import check_paths
from trieye.config.hydra.typed import Config, as_in_a_job, resolved, typed, without_hydra
from trieye.exceptions import ConfigurationError


@dataclass(frozen=True)
class Checked(Generic[Config]):
    """A command line that was found to be sound.

    Attributes:
        config: The typed config; that of the first job in a sweep.
        composed: The composed config that it was made from, with the node `hydra`.
        is_multirun: Whether there will be a sweep.
    """

    config: Config
    composed: DictConfig
    is_multirun: bool


class Preflight(Generic[Config]):
    """The checks of one command line."""

    def __init__(self, loader: Loader, config_type: type[Config]) -> None:
        self._loader = loader
        self._config_type = config_type

    def check(
        self, overrides: Sequence[str], check: Callable[[Config], None] = lambda _: None, *, multirun: bool = False
    ) -> Checked[Config]:
        """Compose and validate; in a sweep every value of every axis is looked at once.

        Args:
            overrides: As typed.
            check: Refuses configs that are valid and cannot be run.
            multirun: Whether a sweep was asked for by a flag.

        Raises:
            ConfigurationError: Something is wrong; the message has a line for each mistake.
        """
        checked = self.compose(overrides, check, multirun=multirun)
        check_paths(checked.config.persistence)
        return checked

    def compose(
        self, overrides: Sequence[str], check: Callable[[Config], None] = lambda _: None, *, multirun: bool = False
    ) -> Checked[Config]:
        """Compose and validate, without a look at the file system but for what `check` does with each config.

        Raises:
            ConfigurationError: Something is wrong; the message has a line for each mistake.
        """
        items, first, composed = self._first_job(overrides)
        is_multirun = multirun or str(OmegaConf.select(composed, "hydra.mode")).endswith("MULTIRUN")
        if is_multirun and (params := OmegaConf.select(composed, "hydra.sweeper.params")):
            # what the sweeper does with them
            items, first, composed = self._first_job([*(f"{key}={value}" for key, value in params.items()), *overrides])
        axes = {number: item for number, item in enumerate(items) if item.is_sweep_override()}
        if not is_multirun:
            self._check_single(list(axes.values()))
        values = self._resolved(composed)
        config = self._typed(values, first)
        others = (self._others(axis, first, number, composed, values) for number, axis in axes.items())
        for made in itertools.chain([config], *others):
            check(_as_a_job(made) if is_multirun else made)
        return Checked(config, composed, is_multirun)

    def _first_job(self, overrides: Sequence[str]) -> tuple[list[Override], list[str], DictConfig]:
        """Return the parsed overrides, those of the first job of a sweep, and what these give."""
        items = parsed(overrides, self._config_type)
        first = [self._first(item) if item.is_sweep_override() else str(item.input_line) for item in items]
        return items, first, self.load(first)

    def load(self, overrides: Sequence[str]) -> DictConfig:
        """Compose, with the node `hydra`.

        Raises:
            ConfigurationError: The config cannot be composed; the message has a line for each mistake.
        """
        items = parsed(overrides, self._config_type)
        self._check_single([item for item in items if item.is_sweep_override()])
        try:
            self._loader.entries()
            choices = [item for item in items if item.is_hydra_override() or self._loader.is_choice(item)]
        except NOT_COMPOSED as error:  # the primary config itself cannot be read
            raise ConfigurationError(without_parser_words(str(error))) from error
        try:
            composed = self._loader.load([str(choice.input_line) for choice in choices])
        except NOT_COMPOSED as error:
            text = Diagnosis(self._loader, self._config_type).of_choices(choices, error)
            raise ConfigurationError(text) from error
        # one by one and after the rest, so that each mistake is found, and with a config to look it up in
        self._set([item for item in items if item not in choices], composed)
        return composed

    def _check_single(self, axes: Sequence[Override]) -> None:
        if axes:
            raise ConfigurationError("\n".join(self._needs_multirun(axis) for axis in axes))

    def _needs_multirun(self, axis: Override) -> str:
        key, value = axis.get_key_element(), axis.get_value_string()
        info = field_at(self._config_type, key.lstrip("+").split("."))
        takes_list = isinstance(self._loader.entries().get(key), list) or (
            info is not None and takes_many(info.annotation)
        )
        values = axis.value()
        is_list = isinstance(values, ChoiceSweep) and values.simple_form
        instead = f"type '{key}=[{value}]' for a list" if takes_list and is_list else "choose one"
        return f"{axis.input_line}: this is more than one value; add -m to run a job for each, or {instead}"

    def _set(self, keys: Sequence[Override], composed: DictConfig) -> None:
        mistakes = []
        for key in keys:
            try:
                self._loader.apply(key, composed)
            except NOT_COMPOSED as error:
                mistakes.append(Diagnosis(self._loader, self._config_type).of_key(key, composed, error))
        if mistakes:
            raise ConfigurationError("\n".join(mistakes))

    def _resolved(self, composed: DictConfig) -> dict[str, Any]:
        with as_in_a_job(composed):
            return resolved(without_hydra(composed), self._config_type)

    def _typed(self, values: dict[str, Any], overrides: Sequence[str]) -> Config:
        return typed(values, self._config_type, overrides=overrides, working_dir=Path.cwd())

    def _others(
        self, axis: Override, first: list[str], number: int, composed: DictConfig, values: dict[str, Any]
    ) -> Iterator[Config]:
        """Yield the config of each value of an axis but the first one."""
        depends = _has_interpolations(composed) or is_in_variant(self._config_type, axis.key_or_group.split("."))
        holder = None if depends else _holder(values, axis)
        name = axis.key_or_group.rpartition(".")[2]
        for typed_value, value in itertools.islice(self._values(axis), 1, None):
            overrides = [*first[:number], typed_value, *first[number + 1 :]]
            if holder is None or (isinstance(value, str) and ("${" in value or value == "???")):
                yield self._typed(self._resolved(self.load(overrides)), overrides)
                continue
            # nothing else depends on this key, and composing takes a hundred times longer than validating
            before, holder[name] = holder[name], value
            made = self._typed(values, overrides)
            holder[name] = before
            yield made

    def _first(self, axis: Override) -> str:
        first = next(self._values(axis), None)
        if first is None:
            raise ConfigurationError(f"{axis.input_line}: there is no value to sweep over")
        return first[0]

    def _values(self, axis: Override) -> Iterator[tuple[str, Any]]:
        """Yield the values of an axis, each as it would be typed and as it is."""
        key = axis.get_key_element()
        if axis.is_interval_sweep():
            interval: Any = axis.value()
            values = [str(interval.start), str(interval.end)]
        else:
            axis.config_loader = self._loader.config_loader
            values = list(axis.sweep_string_iterator())
        for value in values:
            override = parsed([f"{key}={value}"], self._config_type)[0]
            yield f"{key}={value}", override.value()


def _as_a_job(config: Config) -> Config:
    """Return the config of a sweep with the name that its first job has."""
    name = {"run_name": f"{config.run_name}_0"}
    return config.model_copy(update={**name, "persistence": config.persistence.model_copy(update=name)})


def _has_interpolations(composed: DictConfig) -> bool:
    return "${" in OmegaConf.to_yaml(without_hydra(composed))


def _holder(values: dict[str, Any], axis: Override) -> dict[str, Any] | None:
    """Return the keys among which an axis sets a plain value, or None if it does something else."""
    *parents, name = axis.key_or_group.split(".")
    holder: Any = values
    for parent in parents:
        holder = holder.get(parent) if isinstance(holder, dict) else None
    is_plain = isinstance(holder, dict) and not isinstance(holder.get(name, {}), dict)
    return holder if is_plain and axis.package is None else None
