"""Records and reports of the trials of earlier starts of a study."""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from trieye.config.hydra.axes import Dimension, typed, value_of
from trieye.config.redaction import redacted
from trieye.exceptions import SerializationError
from trieye.sweeps.jobs import JobRecord

REPORTED = "reported.jsonl"
"""File of a trial with a line `[iteration, objective]` per evaluation, for the scheduler of a resumed study."""


def reported_objectives(job_dir: Path) -> dict[int, float]:
    """Return the objectives of a trial by iteration, over all of its processes."""
    path = job_dir / REPORTED
    objectives: dict[int, float] = {}
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        with suppress(ValueError):  # an incomplete line of a killed process
            iteration, value = json.loads(line)
            objectives[int(iteration)] = float(value)
    return objectives


def record_before(job_dir: Path) -> JobRecord | None:
    """Return the record of a trial from an earlier start; None if there is none, or if it is damaged."""
    with suppress(SerializationError):
        return JobRecord.read(job_dir)
    return None


def ended_record(job_dir: Path) -> JobRecord | None:
    """Return the record of a trial that was completed or pruned; None for all others, and if the record is damaged."""
    record = record_before(job_dir)
    return record if record is not None and record.state in ("completed", "pruned") else None


def overrides_of(values: Mapping[str, Any]) -> list[str]:
    """Return the values of a trial as overrides without secrets; `value_of` parses all others to the same values."""
    plain_values = {key: value.item() if isinstance(value, np.generic) else value for key, value in values.items()}
    overrides: list[str] = redacted([f"{key}={typed(value)}" for key, value in plain_values.items()])
    return overrides


def with_secrets_of(dimensions: Iterable[Dimension], recorded_overrides: Iterable[str]) -> list[str]:
    """Return the recorded overrides of a trial with their secrets, which are choices of the search space."""
    choices = [(dimension.key, value_of(text)) for dimension in dimensions for text in dimension.choices]
    words = {overrides_of({key: value})[0]: f"{key}={typed(value)}" for key, value in choices}
    return [words.get(word, word) for word in recorded_overrides]
