"""The protocols of sinks: `Sink`, its optional extensions, and the history that a sink thread reads."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from trieye.files.run_record import RunStatus as RunStatus  # noqa: PLC0414 - part of the protocol
from trieye.stats.operations import Item, Medium
from trieye.stats.point import Point

MAX_POINTS_PER_WRITE = 1000
"""Maximum number of points per `write` call: MLflow's limit for one request."""


@dataclass(frozen=True)
class RunInfo:
    """Identity and directories of a run, passed to `Sink.open`.

    Attributes:
        app_name: Name of the app; also the name of the MLflow experiment.
        run_name: Name of the run, unique within the app.
        run_id: Id of the run, the same in every attempt.
        run_dir: Absolute directory of the run.
        tensorboard_dir: Directory for event files.
        mlflow_dir: Directory for an MLflow store on this disk.
        tracking_uri: URI of the MLflow store or server.
        created: Creation time of the run, Unix seconds.
        mlflow_run_id: Id of the MLflow run of earlier attempts, or None.
        tags: The user's tags.
        group: The sweep that the run belongs to, or None.
        owner: Token of the run directory, or None if its `run.json` records no owner.
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
    """Progress of a sink in the history.

    Attributes:
        index: The sink has received every item before this index.
        position: The sink's `Resumable.position` at that index, prefixed with the branch; None for other sinks.
    """

    index: int = 0  # type: ignore[assignment]  # hides tuple.index, which is unused
    position: str | None = None


class HistoryReader(Protocol):
    """The history of a run, as sink threads read it; thread-safe."""

    @property
    def end(self) -> int:
        """Index after the last item."""

    def read(self, start: int, limit: int) -> tuple[list[Item], int]:
        """Return at most `limit` items from index `start` on, in order, and the index of the next read.

        Superseded items are omitted, so the list may be empty although the index advances.
        """

    def cursor(self, sink: str) -> tuple[int, str | None] | None:
        """Return the fields of a sink's `Cursor`; None if the run has never stored one."""

    def set_cursor(self, sink: str, cursor: Cursor) -> None:
        """Store a sink's cursor durably: it survives a crash of the process."""

    def superseded(self, before: int) -> Iterable[Point]:
        """Yield the superseded points before an index; a sink may have shown them."""

    @property
    def is_whole(self) -> bool:
        """Whether every item of the surviving branch is readable: none was lost."""

    @property
    def branch(self) -> int:
        """Number of indices that rewinds have superseded; it changes with every rewind."""


class Sink(Protocol):
    """A destination for points.

    All methods are called on the sink's own thread, one at a time, `open` first. They may block. Any exception means
    "not now": the call is retried after a delay, in order, without affecting training or other sinks. A
    `ProcessingError` from `write` means "never": the operation is counted, reported once and dropped. A `SinkBusyError`
    means that another process is using the store: the call is retried soon, and the end of the run waits for it.

    A call that raised is repeated in full: a sink that accepted half of the points before raising gets them twice.
    After a hub crash, points since the stored cursor are delivered again, equal in every field and in the same order.

    A sink with an attribute `live_only = True` (the console) that has no cursor yet starts at the end of the history
    and never receives earlier items.
    """

    @property
    def name(self) -> str:
        """Name of the sink; `log_to` of a metric selects `mlflow`, `tensorboard` and `console` by it."""

    def open(self, run: RunInfo) -> None:
        """Connect, and import heavy libraries; called again after an exception."""

    def write(self, points: Sequence[Point]) -> None:
        """Write at most `MAX_POINTS_PER_WRITE` points, in order of production."""

    def close(self, status: RunStatus) -> None:
        """Release the resources that `open` acquired, and record the final status of the run."""


@runtime_checkable
class Tracker(Protocol):
    """A sink that also records parameters and tags; same thread and same errors as `Sink`."""

    def log_params(self, params: Mapping[str, str]) -> None:
        """Record parameters; a parameter never changes."""

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Record tags; a later value replaces an earlier one."""


@runtime_checkable
class ArtifactSink(Protocol):
    """A sink that also stores files; same thread and same errors as `Sink`."""

    def log_artifact(self, path: Path, artifact_path: str | None) -> None:
        """Copy a file, or a directory recursively, into the directory `artifact_path` of the run's artifacts."""


@runtime_checkable
class SingleWriterSink(Protocol):
    """A sink whose store accepts one writer at a time, so that it may have to wait for writers of other processes."""

    def store_activity(self) -> object:
        """Return a value that changes with every write of any process to the store; called from any thread."""


@runtime_checkable
class Filtering(Protocol):
    """A sink that rejects single points or operations of a call permanently, and accepts the others.

    Attributes:
        num_refused: Number of rejected points and operations; read by any thread.
    """

    num_refused: int


@runtime_checkable
class Flushable(Protocol):
    """A sink that buffers points.

    Attributes:
        flush_interval_s: Maximum seconds between the write of a point and its `flush`.
    """

    flush_interval_s: float

    def flush(self) -> None:
        """Deliver all buffered points."""


@runtime_checkable
class MediaSink(Protocol):
    """A sink that also shows histograms, images, videos, tables or texts, and ignores the kinds it cannot show."""

    def log_media(self, medium: Medium) -> None:
        """Show a medium."""


@runtime_checkable
class Resumable(Protocol):
    """A sink that can return to an earlier position, and so shows every point exactly once.

    `resume` is called after `open` and before the first write of an attempt, `position` after each flush. Where the
    history has lost items that the sink shows, neither `resume` nor `clear` is called: the sink appends to its content.

    An optional attribute `is_empty` is True if the sink shows nothing of the run: a restart from scratch loses nothing.
    """

    def position(self) -> str:
        """Return the sink's position as text for `resume`; called after a flush."""

    def resume(self, position: str | None) -> bool:
        """Return to a position (None: nothing was ever written), or return False if that is impossible.

        After False, `clear` is called and all items are delivered again.
        """

    def clear(self) -> None:
        """Remove all content of the run, including earlier attempts; all items are delivered again."""


@runtime_checkable
class Rerunning(Protocol):
    """A sink that cannot remove points, and skips a point that it showed for an earlier branch of the run.

    It also receives superseded points that it may have missed, so that its content does not depend on the time of a
    crash.

    Attributes:
        is_empty: After `open`: whether it shows nothing of the run, in any attempt; then all items are delivered.
    """

    is_empty: bool

    def note_superseded(self, points: Iterable[Point]) -> None:
        """Record points that the sink shows and a rewind has superseded; some of them may be delivered again.

        Called after `open` and at a rewind.
        """
