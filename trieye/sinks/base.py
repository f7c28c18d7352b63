"""Sink: what a place where points go has to do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from trieye.schemas import RunStatus as RunStatus  # noqa: PLC0414 - part of the protocol
from trieye.stats.point import Point

MAX_POINTS_PER_WRITE = 1000
"""Points that a sink gets in one call; MLflow takes no more in one request."""


@dataclass(frozen=True)
class RunInfo:
    """What a sink may know of the run.

    Attributes:
        app_name: Name of the app; the MLflow experiment.
        run_name: Name of the run, unique within the app.
        run_id: The run's own id, the same in every attempt.
        run_dir: Absolute directory of the run.
        tensorboard_dir: Where event files belong.
        mlflow_dir: Where an MLflow store on this disk belongs.
        tracking_uri: MLflow store or server.
        spool_dir: Where unsent operations wait for the next attempt.
        created: Unix time in seconds at which the run began.
        mlflow_run_id: The MLflow run of earlier attempts, or None.
        tags: Tags given by the user.
    """

    app_name: str
    run_name: str
    run_id: str
    run_dir: Path
    tensorboard_dir: Path
    mlflow_dir: Path
    tracking_uri: str
    spool_dir: Path
    created: float
    mlflow_run_id: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


class Sink(Protocol):
    """A place where points go.

    All methods are called on the sink's own thread, one at a time, `open` first. They may block. Any exception means
    "not now": the same call is made again after a while, in order, and neither the training nor other sinks notice. A
    `ProcessingError` from `write` means "never": the operation is counted, reported once and dropped.

    A call that raised is repeated as a whole, so a sink that took half of the points before it raised gets them twice.
    """

    @property
    def name(self) -> str:
        """Name of the sink; a metric's `log_to` refers to it."""
        ...

    def open(self, run: RunInfo) -> None:
        """Connect; heavy libraries are imported here. Called again after it raised."""
        ...

    def write(self, points: Sequence[Point]) -> None:
        """Take at most `MAX_POINTS_PER_WRITE` points in the order in which they were made."""
        ...

    def close(self, status: RunStatus) -> None:
        """Release what `open` acquired and record how the run ended."""
        ...


@runtime_checkable
class Tracker(Protocol):
    """A sink that also takes parameters, tags and files; same thread and same errors as `Sink`."""

    def log_params(self, params: Mapping[str, str]) -> None:
        """Record parameters; a parameter never changes."""
        ...

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Record tags; a later value replaces an earlier one."""
        ...

    def log_artifact(self, path: Path, artifact_path: str | None) -> None:
        """Copy a file, or a directory with all it holds, below the directory `artifact_path` of the run's artifacts."""
        ...


@runtime_checkable
class Flushable(Protocol):
    """A sink that may hold points back for a moment.

    Attributes:
        flush_interval_s: Seconds that a written point may wait for `flush`.
    """

    flush_interval_s: float

    def flush(self) -> None:
        """Hand over everything written so far."""
        ...
