"""Comparison of configs: hash of the trained settings, differences between attempts, parameters for sinks."""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from trieye.config.hydra.launch import program_config
from trieye.config.loop import LoopConfig
from trieye.config.redaction import HIDDEN, redacted
from trieye.config.replay import ReplayConfig
from trieye.config.root import TrieyeConfig
from trieye.renames import current_config

_TRAINED_GROUPS = ("agent", "model", "env")


def config_hash(config_type: type[TrieyeConfig], recorded_config: Mapping[str, Any]) -> str | None:
    """Return a hash of the trained settings: the groups `agent`, `model` and `env`, else all groups of the project.

    The state of a run fits another run only if their hashes are equal. Secrets do not affect the hash. Return None for
    a config without groups of a project.

    Args:
        config_type: The type of the config.
        recorded_config: The config as stored in files, without secrets.
    """
    own_groups = {name for name in config_type.model_fields if name not in TrieyeConfig.model_fields}
    hashed_groups = own_groups & set(_TRAINED_GROUPS) or own_groups
    if not hashed_groups:
        return None
    text = json.dumps({name: recorded_config[name] for name in hashed_groups}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


PROGRAM = "hydra"
"""Section of a stored config: values of the program's Hydra config that differ from the keys of the same name."""


def with_program(config: TrieyeConfig) -> dict[str, Any]:
    """Return the values of a config, and those of the Hydra config of a program that creates its config in code."""
    own_values = _with_sorted_sets(config.model_dump(mode="json"), config)
    program = program_config(TrieyeConfig.model_fields)
    added_values = {key: value for key, value in program.items() if key not in own_values}
    other_values = {key: value for key, value in program.items() if key in own_values and own_values[key] != value}
    return {**own_values, **added_values, **({PROGRAM: other_values} if other_values else {})}


def _with_sorted_sets(dumped: Any, value: Any) -> Any:
    """Return a dumped value with its sets in one order, because their order differs between processes."""
    value = vars(value) if isinstance(value, BaseModel) else value
    if isinstance(dumped, dict) and isinstance(value, Mapping):
        return {**dumped, **{key: _with_sorted_sets(dumped[key], value[key]) for key in dumped.keys() & value.keys()}}
    if isinstance(dumped, list) and isinstance(value, Collection) and len(dumped) == len(value):
        items = [_with_sorted_sets(*pair) for pair in zip(dumped, value, strict=True)]
        return sorted(items, key=repr) if isinstance(value, set | frozenset) else items
    return dumped


MAX_DEPTH = 100
"""Maximum nesting depth of a config, below Python's recursion limit."""

_UNTRAINED = {
    "loop", "runtime", "sinks", "stats", "persistence", "print_config", "progress_bar", "tags", "description", "tune",
}  # fmt: skip
_NO_PARAMETERS = (_UNTRAINED - {"loop"}) | {"app_name", "run_name", "replay.storage_dir", HIDDEN}


_TRAINING_SECTIONS = {"agent", "env"}
"""A config with these sections is a `TrainingConfig`, which uses all other sections."""
_ALWAYS_SHOWN = {"loop.objective", "loop.mode"}
"""Parameters that `trieye results` reads from every run."""
_PLAIN = (str, int, float, list, type(None))
"""Types of most leaves, checked first: `isinstance(value, Mapping)` takes ten times as long."""


def parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters for sinks, by dotted name, without run names, paths and unused defaults."""
    return split_parameters(config)[0]


def split_parameters(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters for sinks, and the unused defaults that they omit; none for a `TrainingConfig`.

    Unused defaults are parameters of `replay` and `loop` that equal their defaults. Every config has these sections,
    but a custom loop may ignore them, and they would obscure its few parameters.
    """
    params = dict(_parameters(config))
    if config.keys() >= _TRAINING_SECTIONS:
        return params, {}
    defaults = _section_defaults()
    unused_defaults = {
        name: value
        for name, value in params.items()
        if name in defaults and value == defaults[name] and name not in _ALWAYS_SHOWN
    }
    return {name: value for name, value in params.items() if name not in unused_defaults}, unused_defaults


@cache
def _section_defaults() -> Mapping[str, Any]:
    sections = {"replay": ReplayConfig(), "loop": LoopConfig()}
    return dict(leaves({name: section.model_dump(mode="json") for name, section in sections.items()}))


def _parameters(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    sections = {name: value for name, value in config.items() if name not in _NO_PARAMETERS}
    return ((name, value) for name, value in leaves(sections) if name not in _NO_PARAMETERS)


def differences(
    stored_config: Mapping[str, Any], config: TrieyeConfig, ignored: Collection[str] = _UNTRAINED
) -> list[str]:
    """Return `key: stored -> current` for each value of a stored config that differs.

    Added and removed keys are included, except for added keys with their default value.

    Args:
        stored_config: The config as stored in files.
        config: The current config.
        ignored: Sections to leave out, by default those that affect only length and place of the run.
    """
    new_values = redacted({key: value for key, value in with_program(config).items() if key not in ignored})
    old_values = {key: value for key, value in redacted(stored_config).items() if key not in {*ignored, HIDDEN}}
    return list(_differences(old_values, new_values, config))


_NOT_SET = "not set"


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], model: Any, prefix: str = "") -> Iterator[str]:
    """Yield the differences of two sections; `model` is the config object of the current section, if it has one."""
    fields = type(model).model_fields if isinstance(model, BaseModel) else {}
    is_other_kind = before.get("kind") != now.get("kind")  # with other keys
    for key in dict.fromkeys((*now, *before)):
        old, new = before.get(key, _NOT_SET), now.get(key, _NOT_SET)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(old, new, getattr(model, key, None) if fields else None, f"{prefix}{key}.")
        elif key not in before or key not in now:
            is_default = key in fields and getattr(model, key) == fields[key].get_default(call_default_factory=True)
            if not is_other_kind and not is_default:
                yield f"{prefix}{key}: {old} -> {new}"
        elif old != new:
            yield f"{prefix}{key}: {old} -> {new}"


def json_of(path: Path) -> dict[str, Any]:
    """Return the config in a configs.json with the current names of its keys; empty if the file has no JSON object.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is not valid JSON, or is nested too deeply for a config.
    """
    try:
        values = json.loads(path.read_bytes())
    except RecursionError as error:
        raise ValueError(f"nested too deeply: {error}") from error
    if not isinstance(values, dict):
        values = {}
    level: list[Any] = [values]
    for _ in range(MAX_DEPTH):
        level = [item for value in level for item in _items(value)]
        if not level:
            return current_config(values)
    raise ValueError(f"nested deeper than {MAX_DEPTH} levels")


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) for the leaves of nested dicts."""
    for key, value in values.items():
        if not isinstance(value, _PLAIN) and isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
