"""Fake sinks, an in-memory history for them, and the description of a run, for tests."""

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trieye.sinks.base import Cursor, RunInfo, RunStatus
from trieye.stats.operations import Item, Medium
from trieye.stats.point import Point


def make_run_info(root: Path, **changes: Any) -> RunInfo:
    """Return a run below `root`, with an MLflow store in a database there; its directory exists.

    Args:
        root: A directory, usually pytest's `tmp_path`.
        **changes: Fields of `RunInfo` to override.
    """
    run_dir, mlflow_dir = root / "app" / "runs" / "run", root / "app" / "mlruns"
    fields: dict[str, Any] = {
        "app_name": "app",
        "run_name": "run",
        "run_id": "5f0c2a52-6c2b-4a55-9d0e-8a4f0a3a7b11",
        "run_dir": run_dir,
        "tensorboard_dir": run_dir / "tensorboard",
        "mlflow_dir": mlflow_dir,
        "tracking_uri": f"sqlite:///{mlflow_dir / 'mlflow.db'}",
        "created": time.time(),
    }
    run = RunInfo(**{**fields, **changes})
    run.run_dir.mkdir(parents=True, exist_ok=True)
    return run


class MemorySink:
    """A sink that stores everything in memory, in order of arrival.

    Attributes:
        points: All written points.
        params: All logged parameters.
        tags: All set tags.
        artifacts: (path, artifact path) of all logged files.
        media: All histograms, images, videos, tables and texts.
        writes: Number of points of each write.
        statuses: Arguments of `close`.
    """

    def __init__(self, name: str = "memory") -> None:
        self.name = name
        self.points: list[Point] = []
        self.params: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.artifacts: list[tuple[Path, str | None]] = []
        self.media: list[Medium] = []
        self.writes: list[int] = []
        self.statuses: list[RunStatus] = []

    def open(self, run: RunInfo) -> None:
        """Do nothing."""

    def write(self, points: Sequence[Point]) -> None:
        """Store the points."""
        self.points.extend(points)
        self.writes.append(len(points))

    def log_params(self, params: Mapping[str, str]) -> None:
        """Store the parameters."""
        self.params.update(params)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Store the tags."""
        self.tags.update(tags)

    def log_artifact(self, path: Path, artifact_path: str | None) -> None:
        """Store the path of the file."""
        self.artifacts.append((path, artifact_path))

    def log_media(self, medium: Medium) -> None:
        """Store the histogram, image or another medium."""
        self.media.append(medium)

    def close(self, status: RunStatus) -> None:
        """Store the status."""
        self.statuses.append(status)


class FlakySink(MemorySink):
    """A `MemorySink` that fails a number of times, or until `repair` is called.

    Args:
        num_failures: Number of failing calls, including `open`; None: all calls until `repair`.
        error: The exception that failing calls raise.
        name: Name of the sink.
    """

    def __init__(self, num_failures: int | None = None, *, error: Exception | None = None, name: str = "flaky") -> None:
        super().__init__(name)
        self.num_calls = 0
        self._failures_left = num_failures
        self._error = error or ConnectionError("the server is unavailable")
        self._is_broken = True

    def repair(self) -> None:
        """Make all later calls succeed."""
        self._is_broken = False

    def fail(self) -> None:
        """Make all later calls fail."""
        self._failures_left, self._is_broken = None, True

    def open(self, run: RunInfo) -> None:
        """Fail, or do nothing."""
        self._maybe_fail()
        super().open(run)

    def write(self, points: Sequence[Point]) -> None:
        """Fail, or store the points."""
        self._maybe_fail()
        super().write(points)

    def log_media(self, medium: Medium) -> None:
        """Fail, or store the histogram, image or another medium."""
        self._maybe_fail()
        super().log_media(medium)

    def close(self, status: RunStatus) -> None:
        """Fail, or store the status."""
        self._maybe_fail()
        super().close(status)

    def _maybe_fail(self) -> None:
        self.num_calls += 1
        if not self._is_broken or self._failures_left == 0:
            return
        if self._failures_left is not None:
            self._failures_left -= 1
        raise self._error


class MemoryHistory:
    """An in-memory history for a sink thread; a second thread with the same source simulates a restart.

    Thread-safe. Call `wake` of the sink thread after `append`, and `rewind` after `supersede`.

    Attributes:
        cursors: Cursor of each sink, by name; assign an older cursor to simulate a crash.
    """

    def __init__(self, items: Iterable[Item] = ()) -> None:
        self.cursors: dict[str, Cursor] = {}
        self._lock = threading.Lock()  # guards the two fields below; a thread that holds it takes no other lock
        self._items: list[Item] = list(items)
        self._superseded: set[int] = set()

    @property
    def end(self) -> int:
        """Index after the last item."""
        return len(self._items)

    def append(self, items: Iterable[Item]) -> None:
        """Add items."""
        with self._lock:
            self._items.extend(items)

    def supersede(self, first: int, end: int) -> None:
        """Supersede the points and media with indices in `[first, end)`, like a rewind."""
        with self._lock:
            self._superseded.update(range(first, end))

    def read(self, start: int, limit: int) -> tuple[list[Item], int]:
        """Return at most `limit` items from an index on, and the index after them."""
        with self._lock:
            after = max(start, min(start + limit, len(self._items)))
            items = enumerate(self._items[start:after], start)
            hidden = (Point, Medium)
            return [
                item for index, item in items if not (index in self._superseded and isinstance(item, hidden))
            ], after

    def cursor(self, sink: str) -> Cursor | None:
        """Return the cursor of a sink; None if it has none."""
        return self.cursors.get(sink)

    def set_cursor(self, sink: str, cursor: Cursor) -> None:
        """Set the cursor of a sink."""
        self.cursors[sink] = cursor

    def superseded(self, before: int) -> Iterator[Point]:
        """Yield the superseded points before an index."""
        with self._lock:
            items = [self._items[index] for index in sorted(self._superseded) if index < before]
        yield from (item for item in items if isinstance(item, Point))

    @property
    def is_whole(self) -> bool:
        """Whether the history is complete."""
        return True

    @property
    def branch(self) -> int:
        """A number that changes with each rewind."""
        return len(self._superseded)
