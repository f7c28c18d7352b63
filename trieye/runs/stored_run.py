"""StoredRun: a run directory of trieye, described by its smallest files.

Importing this loads neither pydantic nor NumPy, which take longer to load than a thousand runs to read.
"""

import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from trieye.exceptions import ConfigurationError, JournalError
from trieye.files.run_files import CONFIGS, JOURNAL, RUN_RECORD
from trieye.process.lock import is_alive
from trieye.stats.drops import has_diverged

if TYPE_CHECKING:
    from trieye.files.run_record import RunRecord
    from trieye.run.provenance import Provenance

Status = Literal["RUNNING", "FINISHED", "FAILED", "KILLED", "LOST"]
"""`LOST`: the run is recorded as running, and its process no longer exists."""

Mode = Literal["max", "min"]
Metrics = Mapping[str, Mapping[str, float | None]]
"""`last`, `min`, `max` and `step` of each metric; None where the value was not finite."""


class _Fork(msgspec.Struct):
    app_name: str
    run_name: str
    step: int | None = None


class _RunSummaryFields(msgspec.Struct):
    """The fields of run.json for a listing; `RunRecord` has the rest."""

    run_id: str
    app_name: str
    run_name: str
    status: Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]
    started: float
    created: float
    ended: float | None = None
    attempt: int = 1
    group: str | None = None
    forked_from: _Fork | None = None
    summary: dict[str, dict[str, float | None]] = {}


class _Loop(msgspec.Struct):
    objective: str | None = None
    mode: Mode = "max"


class _Config(msgspec.Struct):
    loop: _Loop = msgspec.field(default_factory=_Loop)


_read_fields, _read_config = msgspec.json.Decoder(_RunSummaryFields).decode, msgspec.json.Decoder(_Config).decode


@dataclass(frozen=True)
class StoredRun:
    """A run directory at the moment it was read; all times are Unix seconds.

    Attributes:
        run_dir: Its directory.
        app: Name of the app directory above it.
        name: Name of its directory; commands find it by this name.
        status: Its status; `LOST` if it is recorded as running and no process holds it.
        step: The highest step of any metric; None if nothing was logged.
        metric: The metric that rates it; None if its config cannot be read.
        mode: Whether higher or lower values of that metric are better.
        best: The best value of that metric; None if it was never logged.
        diverged: Whether its last values were NaN or infinite.
        attempt: Number of its last attempt, from 1.
        created: Start of its first attempt.
        took_s: Seconds of its last attempt, so far.
        sweep: Directory of the sweep that it belongs to.
        forked_from: The run and the step that it was forked from: `agents/first@1200`.
        metrics: Summary of each metric, also of a run that was killed.
    """

    run_dir: Path
    app: str
    name: str
    status: Status
    step: int | None
    metric: str | None
    mode: Mode
    best: float | None
    diverged: bool
    attempt: int
    created: float
    took_s: float
    sweep: str | None
    forked_from: str | None
    metrics: Metrics = field(repr=False)

    @classmethod
    def read(cls, run_dir: Path, *, metric: str | None = None, mode: Mode | None = None) -> "StoredRun":
        """Read a run directory.

        Args:
            run_dir: The directory.
            metric: The metric that rates the run; None: its `loop.objective`.
            mode: Whether higher values are better; None: its `loop.mode`.

        Raises:
            ConfigurationError: Its run.json is missing or damaged.
        """
        fields = _fields_of(run_dir)
        has_process = fields.status == "RUNNING" and is_alive(run_dir)
        # run.json has the metrics of the last attempt that was closed
        closed_metrics = fields.summary if fields.status != "RUNNING" else {}
        metrics = closed_metrics or published_metrics(run_dir) or fields.summary
        loop = _loop_of(run_dir)
        rated_by, direction = metric or loop.objective, mode or loop.mode
        end_time = fields.ended or (time.time() if has_process else _last_sign_of_life(run_dir, fields.started))
        fork = fields.forked_from
        return cls(
            run_dir=run_dir,
            app=run_dir.parents[1].name,
            name=run_dir.name,
            status="LOST" if fields.status == "RUNNING" and not has_process else fields.status,
            step=max((int(step) for seen in metrics.values() if (step := seen.get("step")) is not None), default=None),
            metric=rated_by,
            mode=direction,
            best=metrics.get(rated_by or "", {}).get(direction),
            diverged=has_diverged(metrics, rated_by or ""),
            attempt=fields.attempt,
            created=fields.created,
            took_s=max(end_time - fields.started, 0.0),
            sweep=fields.group,
            forked_from=None if fork is None else f"{fork.app_name}/{fork.run_name}@{fork.step}",
            metrics=metrics,
        )

    def __str__(self) -> str:
        """Return app and name: `agents/first`."""
        return f"{self.app}/{self.name}"

    @property
    def is_alive(self) -> bool:
        """Whether a process held it when it was read."""
        return self.status == "RUNNING"

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of its directory; a file with several names counts once."""
        return disk_bytes(self.run_dir)

    @cached_property
    def record(self) -> "RunRecord":
        """The whole run.json.

        Raises:
            ConfigurationError: It has been deleted.
            SerializationError: It is damaged.
        """
        return record_in(self.run_dir)

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """Its configs.json as plain data.

        Raises:
            ConfigurationError: It is missing or damaged.
        """
        return config_in(self.run_dir)

    @cached_property
    def provenance(self) -> "Provenance | None":
        """Command, commit and packages of its last attempt; None if they were not recorded, or are damaged."""
        from trieye.run.provenance import Provenance

        return Provenance.last(self.run_dir)


def record_in(run_dir: Path) -> "RunRecord":
    """Return the whole run.json of a run.

    Raises:
        ConfigurationError: It is missing.
        SerializationError: It is damaged.
    """
    from trieye.files.run_record import RunRecord

    record = RunRecord.read(run_dir / RUN_RECORD)
    if record is None:
        raise ConfigurationError(f"{run_dir} is not a run: it has no {RUN_RECORD}")
    return record


def config_in(run_dir: Path) -> dict[str, Any]:
    """Return the configs.json of a run as plain data.

    Raises:
        ConfigurationError: It is missing or damaged.
    """
    from trieye.config.fingerprint import json_of

    try:
        return json_of(run_dir / CONFIGS)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        if isinstance(error, FileNotFoundError):
            reason = "no such file; the program was stopped during startup, or the file was deleted"
        raise ConfigurationError(f"{run_dir / CONFIGS}, the config of the run, cannot be read: {reason}") from error


def published_metrics(run_dir: Path) -> Metrics:
    """Return the metrics that the hub of a run published last, also of a killed run; nothing if there are none."""
    from trieye.hub.status import read_status

    with suppress(JournalError, OSError, ValueError):
        metrics: Metrics = read_status(run_dir).get("metrics", {})
        return metrics
    return {}


def disk_bytes(*directories: Path) -> int:
    """Return the bytes of all files below directories; a file with several names counts once."""
    file_stats = (file_stat for directory in directories for file_stat in files_below(directory))
    return sum({(file_stat.st_dev, file_stat.st_ino): file_stat.st_size for file_stat in file_stats}.values())


def files_below(directory: Path) -> Iterator[os.stat_result]:
    """Yield the size and links of each file below a directory; links are not followed."""
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):  # a living run deletes old files
                file_stat = os.lstat(f"{folder}/{name}")
                if stat.S_ISREG(file_stat.st_mode):
                    yield file_stat


def _fields_of(run_dir: Path) -> _RunSummaryFields:
    try:
        return _read_fields((run_dir / RUN_RECORD).read_bytes())
    except FileNotFoundError:
        raise ConfigurationError(f"{run_dir}: it has no {RUN_RECORD}") from None
    except OSError as error:
        raise ConfigurationError(f"{run_dir}: its {RUN_RECORD} cannot be read: {error.strerror or error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{run_dir}: its {RUN_RECORD} is damaged or incomplete: {error}") from error


def _loop_of(run_dir: Path) -> _Loop:
    """Return objective and mode from the config of a run; the defaults if it cannot be read."""
    try:
        return _read_config((run_dir / CONFIGS).read_bytes()).loop
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Loop()


def _last_sign_of_life(run_dir: Path, started: float) -> float:
    times = [started]
    for name in (JOURNAL, f"{JOURNAL}-wal"):
        with suppress(OSError):
            times.append((run_dir / name).stat().st_mtime)
    return max(times)
