"""Budgets: keys, such as `loop.steps`, that an existing sweep may raise; its completed jobs then run further."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from trieye.config.hydra.override_text import values_of
from trieye.config.redaction import redacted_override
from trieye.exceptions import ConfigurationError
from trieye.process.progress import say
from trieye.process.text import counted
from trieye.renames import current_override
from trieye.sweeps.jobs import Job, JobRecord
from trieye.sweeps.record import OTHER_SWEEP


def with_raised_budget(
    directory: Path, jobs: Iterable[Job], keys: Sequence[str], configured: Callable[[str], str | None]
) -> list[JobRecord]:
    """Return the changed records of the jobs of an earlier start that had a smaller budget; write nothing.

    Args:
        directory: Directory of the sweep, whose lock the caller holds.
        jobs: The jobs, with the current budget.
        keys: Keys of the budget, which do not identify a job.
        configured: Returns the value of a key in the config of the last start, for jobs without an override of it.

    Raises:
        ConfigurationError: The current budget is smaller or missing.
    """
    records = []
    for job in jobs:
        job_dir = directory / str(job.index)
        record = JobRecord.read(job_dir)
        if record is None or record.liveness(job_dir) != "dead":
            continue
        overrides = [redacted_override(word) for word in job.overrides]
        values = values_of(overrides)
        recorded_values = values_of(current_override(word, values) for word in record.overrides)
        if recorded_values == values or _without(recorded_values, keys) != _without(values, keys):
            continue
        for key in keys:
            old_value = recorded_values.get(key) or (configured(key) if key in values else None)
            _check_raised(key, old_value, values.get(key))
        record.overrides = overrides
        records.append(record)
    return records


def run_further(directory: Path, records: Sequence[JobRecord], keys: Sequence[str]) -> None:
    """Write the records from `with_raised_budget`, and print how many completed jobs run further."""
    completed_records = [record for record in records if record.state == "completed"]
    for record in completed_records:
        record.state = "interrupted"
    for record in records:
        record.write(directory / str(record.index))
    if completed_records:
        words = dict.fromkeys(
            word for record in completed_records for word in record.overrides if {*values_of([word])} <= {*keys}
        )
        jobs = counted(len(completed_records), "completed job")
        say(f"sweep: running {jobs} further with {' '.join(words)}, from checkpoints where available")


def _check_raised(key: str, old_value: str | None, value: str | None) -> None:
    if old_value is not None and value is None:
        raise ConfigurationError(f"{key}: the budget of the sweep was raised to {key}={old_value}; repeat it")
    try:
        is_smaller = old_value is not None and value is not None and float(value) < float(old_value)
    except ValueError:  # such as null or an interpolation
        return
    if is_smaller:
        raise ConfigurationError(
            f"{key}={value}: the sweep has jobs with {key}={old_value}, and can only raise its budget; {OTHER_SWEEP}"
        )


def _without(values: Mapping[str, str], keys: Sequence[str]) -> list[tuple[str, str]]:
    return [(key, value) for key, value in values.items() if key not in keys]
