"""Renames: public names of earlier versions with their current names.

Stored configs and overrides are translated when they are read. A typed or passed old name is an error that states the
new name; nothing else accepts it. The import loads nothing.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

_TRAINING = {"explorer", "explore", "bench"}
"""Sections of `TrainingConfig`. Other projects may have sections of these names, but hardly all of them."""

_PREFIXES = ("", "hydra.sweeper.params.", "tune.space.")
"""What may precede a config key in the key of an override."""


@dataclass(frozen=True)
class Rename:
    """A public name that changed.

    Attributes:
        old: Name in versions before `since`.
        new: Current name.
        since: First version with the current name.
        values: Old values of a key or an option, with the current ones.
    """

    old: str
    new: str
    since: str = "0.2.0"
    values: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.old} was renamed to {self.new}"

    def value(self, old: Any) -> Any:
        """Return the current value of an old one; the step of a checkpoint was a number."""
        if self.new.endswith(".checkpoint") and str(old).isdecimal():
            return f"step:{old}"
        return self.values.get(old, old) if isinstance(old, str) else old


def _renames(table: Mapping[str, str]) -> dict[str, Rename]:
    return {old: Rename(old, new) for old, new in table.items()}


KEYS = _renames(
    {
        "bench.which": "bench.checkpoints",
        "explore.file": "explore.output",
        "explore.which": "explore.checkpoint",
        "explorer.backoff_s": "explorer.restart_backoff_s",
        "explorer.in_flight": "explorer.max_in_flight",
        "explorer.replay_snapshot_s": "explorer.replay_snapshot_interval_s",
        "explorer.steps": "explorer.fragment_steps",
        "explorer.timeout_s": "explorer.fragment_timeout_s",
        "hydra.launcher.env": "hydra.launcher.runtime_env",
        "hydra.sweeper.without": "hydra.sweeper.exclude",
        "loop.evaluate_beside": "loop.background_evaluation",
        "persistence.keep_checkpoints": "persistence.keep_last",
        "persistence.mirror_every_s": "persistence.mirror_interval_s",
        "runtime.env": "runtime.runtime_env",
        "sinks.config_params": "sinks.log_config",
        "sinks.without": "sinks.exclude_plugins",
        "stats.own_metrics_seconds": "stats.hub_metrics_interval_s",
        "tune.at_once": "tune.max_concurrent_trials",
        "tune.grace": "tune.grace_period",
        "tune.in_step": "tune.synchronous",
        "tune.interval": "tune.perturbation_interval",
        "tune.quantile": "tune.quantile_fraction",
        "tune.reduction": "tune.reduction_factor",
        "tune.resample": "tune.resample_probability",
        "tune.retries": "tune.max_failures",
    }
)
"""Keys of the config."""

CHOICES = _renames({"hydra/launcher=trieye_ray": "hydra/launcher=trieye"})
"""Options of config groups."""

COMMANDS = _renames(
    {
        "trieye sweep index": "trieye sweep find",
        "trieye sweep slurm": "trieye sweep relaunch hydra.launcher.backend=slurm",
    }
)
"""Commands and actions."""

OPTIONS = _renames(
    {
        "trieye evaluate --which": "trieye evaluate --checkpoint",
        "trieye export --which": "trieye export --checkpoint",
        "trieye results --finite": "trieye results --include-diverged",
        "trieye results --min": "trieye results --mode min",
        "trieye results --out": "trieye results --output",
        "trieye results --partial": "trieye results --include-unfinished",
        "trieye sweep plan --out": "trieye sweep plan --output",
        "trieye sweep plan --without": "trieye sweep plan --exclude",
        "trieye sweep run --at-once": "trieye sweep run --max-concurrent",
    }
)
OPTIONS["trieye fork --at"] = Rename("trieye fork --at", "trieye fork --checkpoint", values={"last": "latest"})
"""Options of commands; those of all actions of a command have no action."""

NAMES = _renames(
    {
        "trieye.replay.Draw": "trieye.replay.SampledIds",
        "trieye.replay.Hindsight": "trieye.replay.HindsightRelabeler",
        "trieye.replay.Limiter": "trieye.replay.RateLimiter",
        "trieye.results.Groups": "trieye.results.RunGroups",
        "trieye.results.Scoring": "trieye.results.ScoreDefinition",
        "trieye.runs.Delivery": "trieye.runs.DeliveryResult",
        "trieye.runs.Pruning": "trieye.runs.PruneResult",
        "trieye.runs.Restart": "trieye.runs.RestartPlan",
        "trieye.testing.MemorySource": "trieye.testing.MemoryHistory",
        "trieye.testing.make_run": "trieye.testing.make_run_info",
    }
)
"""Classes and functions."""

METRICS = _renames(
    {
        "explorer/<number>/lag": "explorer/<number>/staleness",
        "explorer/lost": "explorer/lost_fragments",
        "replay/early": "replay/waiting_fragments",
        "replay/waiters": "replay/waiting_readers",
    }
)
"""Metrics that trieye logs; a stored run has the names that it logged."""

FILES = _renames({"journal-witness.jsonl": "journal-watermark.jsonl"})
"""Files of a run directory, which are renamed when the run is opened."""

TABLES = {
    "Config keys": KEYS,
    "Options of config groups": CHOICES,
    "Commands": COMMANDS,
    "Options": OPTIONS,
    "Classes and functions": NAMES,
    "Metrics": METRICS,
    "Files of a run": FILES,
}
"""The tables by the heading that docs/renames.md gives them."""


def no_attribute(module: str, name: str) -> AttributeError:
    """Return the error for a name that a module lacks, with its current name if it was renamed."""
    rename = NAMES.get(f"{module}.{name}")
    return AttributeError(str(rename) if rename else f"module {module!r} has no attribute {name!r}")


def renamed_field(name: str, fields: Iterable[str]) -> str | None:
    """Return the current name of a field of a config model; None if it has no such field.

    Args:
        name: Old name of a field, without the keys that lead to it.
        fields: Fields of the model.
    """
    pairs = ((rename.old.rpartition(".")[2], rename.new.rpartition(".")[2]) for rename in KEYS.values())
    return next((new for old, new in pairs if old == name and new in fields), None)


def current_config(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored config with the current names of its keys, in the same order."""
    config = dict(stored)
    is_training = config.keys() >= _TRAINING
    for rename in KEYS.values():
        section, _, old = rename.old.rpartition(".")
        new, values = rename.new.rpartition(".")[2], config.get(section)
        is_own = is_training or section not in _TRAINING  # else a section of the project
        if is_own and isinstance(values, Mapping) and old in values and new not in values:
            config[section] = {
                new if key == old else key: rename.value(value) if key == old else value
                for key, value in values.items()
            }
    return config


def current_overrides(stored: Iterable[str], config: Mapping[str, Any] | None) -> list[str]:
    """Return stored overrides, `key=value`, with the current names of their keys and options.

    Args:
        stored: Overrides as typed.
        config: Config of the same program with current names; None: unknown, so that `explorer.steps` may be its own.
    """
    keys = [rename.new for rename in KEYS.values() if _is_key(rename.new, config)]
    return [current_override(word, keys) for word in stored]


def current_override(stored: str, keys: Collection[str]) -> str:
    """Return a stored override, or its key, with the current name of the key if that is one of `keys`."""
    if (choice := CHOICES.get(stored)) is not None:
        return choice.new
    typed, equals, value = stored.partition("=")
    bare = typed.lstrip("+~")
    for prefix in _PREFIXES:
        rename = KEYS.get(bare.removeprefix(prefix)) if bare.startswith(prefix) else None
        if rename is not None and (rename.new in keys or f"{prefix}{rename.new}" in keys):
            return f"{typed.removesuffix(rename.old)}{rename.new}{equals}{rename.value(value) if equals else ''}"
    return stored


def _is_key(key: str, config: Mapping[str, Any] | None) -> bool:
    section = key.partition(".")[0]
    return section == "hydra" or (section not in _TRAINING if config is None else _has(config, key))


def _has(config: Mapping[str, Any], key: str) -> bool:
    section, _, inner_key = key.partition(".")
    values = config.get(section)
    return section in config and (not inner_key or (isinstance(values, Mapping) and _has(values, inner_key)))
