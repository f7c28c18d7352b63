"""Whether two configs train the same thing, and where they differ."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trieye.config.redaction import redacted
from trieye.config.root import TrieyeConfig

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


_HOW_IT_RUNS = {"loop", "runtime", "sinks", "stats", "persistence", "print_config", "tags"}


def changed_values(earlier: Path, config: TrieyeConfig) -> list[str]:
    """Return `key: before -> now` for values that change what is trained; how long and where it runs is left out.

    Args:
        earlier: The configs.json of the last attempt; nothing is compared if it cannot be read.
        config: The config of this one.
    """
    try:
        held = json.loads(earlier.read_bytes())
    except (OSError, ValueError):
        return []
    now = dict(leaves(redacted(config.model_dump(mode="json", exclude=_HOW_IT_RUNS))))
    before = dict(leaves(redacted(held))) if isinstance(held, dict) else {}
    return [f"{key}: {before[key]} -> {value}" for key, value in now.items() if key in before and before[key] != value]


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) for the values of nested dicts."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
