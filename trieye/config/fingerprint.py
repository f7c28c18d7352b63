"""Whether two configs train the same thing, and where they differ."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from trieye.config.loop import LoopConfig
from trieye.config.redaction import HIDDEN, redacted
from trieye.config.replay import ReplayConfig
from trieye.config.root import TrieyeConfig
from trieye.renames import current_config

_WHAT_IS_TRAINED = ("agent", "model", "env")


def config_hash(config: TrieyeConfig) -> str | None:
    """Return a hash of what is trained: the groups `agent`, `model` and `env`, else all that the project added.

    A state of one run fits another only if they have the same hash, for which secrets do not count; None for a config
    without groups of its own.
    """
    own = {name for name in type(config).model_fields if name not in TrieyeConfig.model_fields}
    chosen = own & set(_WHAT_IS_TRAINED) or own
    if not chosen:
        return None
    text = json.dumps(redacted(config.model_dump(mode="json", include=chosen)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


MAX_DEPTH = 100
"""Objects inside objects that a config may have; what walks through it must not meet Python's recursion limit."""

_HOW_IT_RUNS = {
    "loop", "runtime", "sinks", "stats", "persistence", "print_config", "progress_bar", "tags", "description", "tune",
}  # fmt: skip
_NO_PARAMETERS = (_HOW_IT_RUNS - {"loop"}) | {"app_name", "run_name", "replay.storage_dir"}


_OF_TRAININGS = {"agent", "env"}
"""A config with these sections belongs to a `TrainingConfig`, which uses all others."""
_ALWAYS_SHOWN = {"loop.objective", "loop.mode"}
"""The results read these of every run."""


def parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that sinks show: dotted names without names of runs, paths and unused defaults."""
    unused = unused_defaults(config)
    return {name: value for name, value in _parameters(config) if name not in unused}


def unused_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of `replay` and `loop` that have their defaults and do not belong to a training by trieye.

    Every config has these sections. A custom loop may ignore them, and its few parameters would be lost among them.
    """
    if config.keys() >= _OF_TRAININGS:
        return {}
    sections = {"replay": ReplayConfig(), "loop": LoopConfig()}
    defaults = dict(leaves({name: section.model_dump(mode="json") for name, section in sections.items()}))
    return {
        name: value
        for name, value in _parameters(config)
        if name in defaults and value == defaults[name] and name not in _ALWAYS_SHOWN
    }


def _parameters(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    kept = {name: value for name, value in config.items() if name not in _NO_PARAMETERS}
    return ((name, value) for name, value in leaves(kept) if name not in _NO_PARAMETERS)


def changed_values(earlier: Path, config: TrieyeConfig) -> list[str]:
    """Return `key: before -> now` for values that change what is trained; how long and where it runs is left out.

    Args:
        earlier: The configs.json of the last attempt; nothing is compared if it cannot be read.
        config: The config of this one.
    """
    try:
        held = json_of(earlier)
    except (OSError, ValueError):
        return []
    return differences(held, config)


def differences(held: Mapping[str, Any], config: TrieyeConfig) -> list[str]:
    """Return `key: stored -> present` where a stored config trains something else; see `changed_values`.

    Added and removed keys are included, except a key that the stored config lacks and that has its default value.
    """
    now = redacted(config.model_dump(mode="json", exclude=_HOW_IT_RUNS))
    before = {key: value for key, value in redacted(held).items() if key not in {*_HOW_IT_RUNS, HIDDEN}}
    return list(_differences(before, now, config))


_NOT_SET = "not set"


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], model: Any, prefix: str = "") -> Iterator[str]:
    """Yield the differences of two sections; `model` is the config object of the present one, if there is one."""
    fields = type(model).model_fields if isinstance(model, BaseModel) else {}
    is_other_kind = before.get("kind") != now.get("kind")  # whose keys are others
    for key in dict.fromkeys((*now, *before)):
        one, other = before.get(key, _NOT_SET), now.get(key, _NOT_SET)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _differences(one, other, getattr(model, key, None) if fields else None, f"{prefix}{key}.")
        elif key not in before or key not in now:
            is_default = key in fields and getattr(model, key) == fields[key].get_default(call_default_factory=True)
            if not is_other_kind and not is_default:
                yield f"{prefix}{key}: {one} -> {other}"
        elif one != other:
            yield f"{prefix}{key}: {one} -> {other}"


def json_of(path: Path) -> dict[str, Any]:
    """Return the config in a configs.json with the current names of its keys; empty if the file has no JSON object.

    Raises:
        OSError: It cannot be read.
        ValueError: It holds no JSON, or one that is nested too deeply to be a config.
    """
    try:
        held = json.loads(path.read_bytes())
    except RecursionError as error:
        raise ValueError(f"it is nested too deeply: {error}") from error
    if not isinstance(held, dict):
        held = {}
    level: list[Any] = [held]
    for _ in range(MAX_DEPTH):
        level = [item for value in level for item in _items(value)]
        if not level:
            return current_config(held)
    raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) for the values of nested dicts."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
