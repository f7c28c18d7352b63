"""Export of the best trial of a study as an experiment preset."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trieye.config import TrieyeConfig
from trieye.config.fingerprint import differences
from trieye.config.hydra.axes import value_of
from trieye.config.hydra.launch import Launch
from trieye.config.hydra.override_text import values_of
from trieye.config.hydra.records import as_yaml
from trieye.config.redaction import with_references
from trieye.files.atomic import write_atomic
from trieye.sweeps.jobs import JobRecord
from trieye.tune.ended import overrides_of, with_secrets_of
from trieye.tune.space import Space
from trieye.tune.values import with_values

_WRITTEN = "by trieye, as the best trial of a study"
_HOW_IT_RUNS = {
    "app_name", "run_name", "runtime", "persistence", "sinks", "stats", "tune", "tags", "description", "print_config",
    "progress_bar",
}  # fmt: skip
"""Config keys that are not part of the preset, because each run sets them."""


def best_config(config: TrieyeConfig, directory: Path, index: int) -> tuple[TrieyeConfig, dict[str, Any]]:
    """Return the config of a trial with its final values, and these values.

    Args:
        config: The config of the study.
        directory: Directory of the study.
        index: Index of the trial.
    """
    record = JobRecord.read(directory / str(index))
    assert record is not None  # noqa: S101 - its objective was read from it
    texts = values_of(with_secrets_of(Space(config).dimensions, record.overrides))
    values = {key: value_of(text) for key, text in texts.items()}
    return with_values(config, values), values


def changes_since(config: TrieyeConfig, values: Mapping[str, Any], recorded_config: Mapping[str, Any]) -> Iterator[str]:
    """Yield `key: recorded -> current` for each key of the preset that differs from the config of the trial's run.

    Args:
        config: The config for the preset.
        values: The values that the study chose, which the trial has recorded elsewhere.
        recorded_config: The configs.json of the run.
    """
    ignored_keys = {*values, "loop.target"}  # `tune.target` sets `loop.target` of each trial
    for change in differences(recorded_config, config, ignored=_HOW_IT_RUNS):
        key = change.partition(":")[0]
        if key not in ignored_keys and key.partition(".")[0] in type(config).model_fields:  # not added by the program
            yield change


def write_best(
    config_and_values: tuple[TrieyeConfig, Mapping[str, Any]],
    launch: Launch | None,
    directory: Path,
    *,
    index: int,
    objective: float,
) -> Path:
    """Write the config of a trial as the preset `experiment=best_<study>`, and return the file.

    The preset contains the complete training config and its group options, so that it does not depend on other
    overrides. Secrets are taken from the environment. The file is written to the config directory of the program, or
    below the study if that is not possible.

    Args:
        config_and_values: The config, and the values that the study chose.
        launch: How the program was started.
        directory: Directory of the study.
        index: Index of the trial.
        objective: Objective of the trial.
    """
    config, values = config_and_values
    items = with_references(config.model_dump(mode="json", exclude=_HOW_IT_RUNS))
    choices = {} if launch is None else launch.choices
    option_by_group = {group: option for group, option in choices.items() if group in items and isinstance(option, str)}
    content = {"defaults": [{f"override /{group}": option} for group, option in option_by_group.items()], **items}
    is_pbt = config.tune.scheduler == "pbt"
    lines = [
        "# @package _global_",
        f"# Written {_WRITTEN}: trial {index} of {directory.name}, {config.loop.objective} {objective:g}.",
        f"# Values chosen by the study: {', '.join(overrides_of(values))}",
        *(["# Final values; population-based training changed them during the trial."] if is_pbt else []),
        as_yaml(content),
    ]
    path = _preset_path(launch, directory)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, "\n".join(lines).encode())
    return path


def _preset_path(launch: Launch | None, directory: Path) -> Path:
    stem = re.sub(r"[^0-9A-Za-z_-]", "_", directory.name)
    suffix = "" if stem == directory.name else f"-{hashlib.sha256(directory.name.encode()).hexdigest()[:6]}"
    name = f"best_{stem}{suffix}.yaml"
    fallback = directory / "conf" / "experiment" / name
    if launch is None or launch.config_dir is None or not launch.config_dir.is_dir():
        return fallback
    path = launch.config_dir / "experiment" / name
    try:
        own_header = rf"{_WRITTEN}: trial \d+ of {re.escape(directory.name)}, "
        may_replace = not path.exists() or re.search(own_header, path.read_text("utf-8")) is not None
        path.parent.mkdir(exist_ok=True)
    except OSError:
        return fallback
    return path if may_replace else fallback
