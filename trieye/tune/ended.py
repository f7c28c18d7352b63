"""Results of trials that had ended before the driver of their study was killed: Tune's own state may be older."""

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from trieye.config import TrieyeConfig
from trieye.config.hydra.axes import Dimension, typed, value_of
from trieye.config.redaction import redacted
from trieye.exceptions import SerializationError
from trieye.sweeps.jobs import JobRecord

REPORTED = "reported.jsonl"
"""File of a trial with a line `[iteration, objective]` per evaluation; Tune itself stores only the last."""

INDEX = "trial"
"""Key of a trial's index in its values, if its id does not end with the index."""

HAD_ENDED = "had_ended"
"""Key of a result that repeats the end of a trial: nothing was trained."""


def reported_objectives(job_dir: Path) -> dict[int, float]:
    """Return the objectives of a trial by iteration, over all of its processes."""
    path = job_dir / REPORTED
    objectives: dict[int, float] = {}
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        with suppress(ValueError):  # an incomplete line of a killed process
            iteration, value = json.loads(line)
            objectives[int(iteration)] = float(value)
    return objectives


def ended_record(job_dir: Path) -> JobRecord | None:
    """Return the record of a trial that was completed or pruned; None for all others, and if the record is damaged."""
    with suppress(SerializationError):
        record = JobRecord.read(job_dir)
        return record if record is not None and record.state in ("completed", "pruned") else None
    return None


def overrides_of(values: Mapping[str, Any]) -> list[str]:
    """Return the values of a trial as overrides without secrets; `value_of` parses all others to the same values."""
    plain_values = {key: value.item() if isinstance(value, np.generic) else value for key, value in values.items()}
    overrides: list[str] = redacted([f"{key}={typed(value)}" for key, value in plain_values.items() if key != INDEX])
    return overrides


def with_secrets_of(dimensions: Iterable[Dimension], recorded_overrides: Iterable[str]) -> list[str]:
    """Return the recorded overrides of a trial with their secrets, which are choices of the search space."""
    choices = [(dimension.key, value_of(text)) for dimension in dimensions for text in dimension.choices]
    words = {overrides_of({key: value})[0]: f"{key}={typed(value)}" for key, value in choices}
    return [words.get(word, word) for word in recorded_overrides]


def result_at_end(job_dir: Path, config: TrieyeConfig, values: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the last result of a trial that has ended; None if it has not, or had other values.

    A search that forgot the newest trials may draw other values for them. PBT changes the values of a trial, and draws
    the first ones from a seed.
    """
    record, loop = ended_record(job_dir), config.loop
    if record is None or record.step is None:
        return None
    if config.tune.scheduler != "pbt" and redacted(record.overrides) != overrides_of(values):
        return None
    worst = -math.inf if loop.mode == "max" else math.inf
    return {
        HAD_ENDED: True,
        "training_iteration": max(reported_objectives(job_dir), default=1),
        loop.objective: worst if record.objective is None else record.objective,
        "best_objective": record.objective,
        "step": record.step,
        "attempt": record.attempt,
        "done": True,
        "stop_reason": None if record.state == "pruned" else "completed before",
    }
