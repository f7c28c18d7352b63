"""Sink: what a place where points go has to do."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from trieye.files.run_record import RunStatus as RunStatus  # noqa: PLC0414 - part of the protocol
from trieye.stats.operations import Item, Medium
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
        created: Unix time in seconds at which the run began.
        mlflow_run_id: The MLflow run of earlier attempts, or None.
        tags: Tags given by the user.
        group: The sweep that the run belongs to, or None.
        owner: Token of the directory of the run, or None if its `run.json` records no owner.
    """

    app_name: str
    run_name: str
    run_id: str
    run_dir: Path
    tensorboard_dir: Path
    mlflow_dir: Path
    tracking_uri: str
    created: float
    mlflow_run_id: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    group: str | None = None
    owner: str | None = None


class Cursor(NamedTuple):
    """How far a sink is in the history.

    Attributes:
        index: It has everything before this index.
        position: What it said of itself then.
    """

    index: int = 0  # type: ignore[assignment]  # hides tuple.index, which nobody needs
    position: str | None = None


class Source(Protocol):
    """Where a sink thread reads what is to be sent: the history of the run; safe to use from several threads."""

    @property
    def end(self) -> int:
        """Index after the last item."""
        ...

    def read(self, start: int, limit: int) -> tuple[list[Item], int]:
        """Return at most `limit` items in order, beginning at index `start`, and the index to go on with.

        Items that a rewind has superseded are left out, so there may be none although the index grows.
        """
        ...

    def cursor(self, sink: str) -> tuple[int, str | None] | None:
        """Return how far a sink is, the fields of its `Cursor`; None if it was never there."""
        ...

    def set_cursor(self, sink: str, cursor: Cursor) -> None:
        """Remember how far a sink is; survives the death of the process."""
        ...

    def superseded(self, before: int) -> Iterable[Point]:
        """Yield the points before an index that a rewind has superseded: those that a sink may have shown."""
        ...

    @property
    def is_whole(self) -> bool:
        """Whether everything that belongs to the surviving branch can be read: nothing of it was lost."""
        ...

    @property
    def branch(self) -> int:
        """How many indices rewinds have superseded: another number says that there was another rewind."""
        ...


class Sink(Protocol):
    """A place where points go.

    All methods are called on the sink's own thread, one at a time, `open` first. They may block. Any exception means
    "not now": the same call is made again after a while, in order, and neither the training nor other sinks notice. A
    `ProcessingError` from `write` means "never": the operation is counted, reported once and dropped. A `SinkBusyError`
    means that others are at work in the store: the call comes again soon, and the end of the run waits for it.

    A call that raised is repeated as a whole, so a sink that took half of the points before it raised gets them twice.
    After the death of the hub, points since the last cursor come again, equal in every field and in the same order.

    A sink with an attribute `live_only = True` (the console) that has no cursor yet begins at the end of the history,
    and is not told what happened before.
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
class Shared(Protocol):
    """A sink whose store takes one writer at a time, so that the sink may have to wait for those of other processes."""

    def store_activity(self) -> object:
        """Return what changes whenever anybody writes to the store; called from any thread, at any time."""
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


@runtime_checkable
class Media(Protocol):
    """A sink that also shows histograms, pictures, videos, tables or texts; what it cannot show it ignores."""

    def log_media(self, medium: Medium) -> None:
        """Show it."""
        ...


@runtime_checkable
class Resumable(Protocol):
    """A sink that can go back to an earlier state of itself, and thereby show every point exactly once.

    `resume` is called after `open` and before the first write of an attempt, `position` after each flush. Where the
    history has lost what the sink shows, neither `resume` nor `clear` is: it goes on behind what it shows.

    An attribute `is_empty` may say that it shows nothing of the run; then nothing can be lost by beginning anew.
    """

    def position(self) -> str:
        """Return where the sink stands, everything flushed, as text for `resume`."""
        ...

    def resume(self, position: str | None) -> bool:
        """Go back to a position (None: nothing was ever written), or return False if that cannot be done.

        After False, `clear` is called and everything comes again from the beginning.
        """
        ...

    def clear(self) -> None:
        """Remove everything that was written for the run, in earlier attempts too; all of it comes again."""
        ...


@runtime_checkable
class Rerunning(Protocol):
    """A sink that cannot take points back, and leaves out a point that an earlier branch of the run has shown.

    It is given superseded points that it may not have got, too: what it shows must not depend on when a kill came.

    Attributes:
        is_empty: After `open`: whether it shows nothing of the run, in whatever attempt that is; then all of it comes.
    """

    is_empty: bool

    def note_superseded(self, points: Iterable[Point]) -> None:
        """Remember points that it shows and that a rewind has superseded; some of them may come again.

        Called after `open` and at a rewind.
        """
        ...
