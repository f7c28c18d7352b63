"""The best trial of a study as a config that runs again."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from trieye.config import TrieyeConfig
from trieye.config.hydra.axes import value_of
from trieye.config.hydra.launch import Launch
from trieye.config.redaction import redacted
from trieye.exceptions import SerializationError
from trieye.files.atomic import write_atomic
from trieye.sweeps.grid import bare
from trieye.sweeps.jobs import JobRecord
from trieye.tune.values import with_values

_WRITTEN = "by trieye, as the best trial of a study"
_HOW_IT_RUNS = {
    "app_name", "run_name", "runtime", "persistence", "sinks", "stats", "tune", "tags", "description", "print_config",
    "progress_bar",
}  # fmt: skip
"""What a run decides for itself."""


def best_config(config: TrieyeConfig, directory: Path, index: int) -> tuple[TrieyeConfig, dict[str, Any]]:
    """Return the config of a trial, with the values that it had in the end, and these.

    Args:
        config: The config of the study.
        directory: Of the study.
        index: Number of the trial.

    Raises:
        SerializationError: Its record is not there.
    """
    record = JobRecord.read(directory / str(index))
    if record is None:
        raise SerializationError(f"{directory / str(index)} has no record of trial {index}")
    pairs = (word.partition("=") for word in record.overrides)
    values = {bare(key): value_of(text) for key, _, text in pairs}
    return with_values(config, values), values


def write_best(
    made: tuple[TrieyeConfig, Mapping[str, Any]],
    launch: Launch | None,
    directory: Path,
    *,
    index: int,
    objective: float,
) -> Path:
    """Write the config of a trial as a preset, `experiment=best_<study>`, and return the file.

    It says everything that is trained, and which options that began with, so that it runs the same whatever else is
    chosen. It lies in the config directory of the program, or, where there is none that takes it, below the study.

    Args:
        made: The config, and the values that the study chose.
        launch: How the program was started.
        directory: Of the study.
        index: Number of the trial.
        objective: What it reached.
    """
    config, values = made
    held = redacted(config.model_dump(mode="json", exclude=_HOW_IT_RUNS))
    choices = {} if launch is None else launch.choices
    chosen = {group: option for group, option in choices.items() if group in held and isinstance(option, str)}
    content = {"defaults": [{f"override /{group}": option} for group, option in chosen.items()], **held}
    told = ", ".join(f"{key}={value}" for key, value in values.items())
    lines = [
        "# @package _global_",
        f"# Written {_WRITTEN}: trial {index} of {directory.name}, {config.loop.objective} {objective:g}.",
        f"# What the study chose: {told}",
        *(["# They changed on the way, as population-based training does; these are the last ones."] * _is_pbt(config)),
        yaml.safe_dump(content, sort_keys=False, default_flow_style=None, allow_unicode=True, width=120),
    ]
    path = _place(launch, directory)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, "\n".join(lines).encode())
    return path


def _is_pbt(config: TrieyeConfig) -> bool:
    return config.tune.scheduler == "pbt"


def _place(launch: Launch | None, directory: Path) -> Path:
    name = f"best_{re.sub(r'[^0-9A-Za-z_-]', '_', directory.name)}.yaml"
    own = directory / "conf" / "experiment" / name
    if launch is None or launch.config_dir is None or not launch.config_dir.is_dir():
        return own
    path = launch.config_dir / "experiment" / name
    try:
        is_ours = not path.exists() or _WRITTEN in path.read_text("utf-8")
        path.parent.mkdir(exist_ok=True)
    except OSError:
        return own
    return path if is_ours else own
