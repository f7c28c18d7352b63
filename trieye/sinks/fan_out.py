"""FanOut: every point to the sinks that it is meant for, every sink on its own."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from trieye.config.metric import LogTarget
from trieye.sinks.base import RunInfo, RunStatus, Sink, Tracker
from trieye.sinks.operations import LogArtifact, LogParams, Operation, SetTags
from trieye.sinks.runner import SinkHealth, SinkThread
from trieye.stats.point import Point

_TARGETS: frozenset[str] = frozenset(get_args(LogTarget))


class FanOut:
    """All sinks of a run; nothing here waits for a sink except what has a timeout.

    Sinks start to open at once, each on its own thread. A sink named like a `LogTarget` gets the points whose `log_to`
    names it; any other sink gets every point.
    """

    def __init__(self, sinks: Sequence[Sink], run: RunInfo, *, max_backlog_points: int = 1_000_000) -> None:
        self._threads = [SinkThread(sink, run, max_backlog_points=max_backlog_points) for sink in sinks]

    def write(self, points: Sequence[Point]) -> None:
        """Queue points for the sinks that they are meant for.

        Raises:
            RunClosedError: `close` was called before.
        """
        for thread in self._threads:
            name = thread.sink.name
            thread.submit_points([point for point in points if name in point.log_to] if name in _TARGETS else points)

    def log_params(self, params: Mapping[str, object]) -> None:
        """Queue parameters for the trackers, as the text that they are now.

        Raises:
            RunClosedError: `close` was called before.
        """
        self._submit_to_trackers(LogParams({str(name): str(value) for name, value in params.items()}))

    def set_tags(self, tags: Mapping[str, object]) -> None:
        """Queue tags for the trackers, as the text that they are now.

        Raises:
            RunClosedError: `close` was called before.
        """
        self._submit_to_trackers(SetTags({str(name): str(value) for name, value in tags.items()}))

    def log_artifact(self, path: Path, artifact_path: str | None = None) -> None:
        """Queue a file or directory for the trackers; it is read later and has to stay.

        Raises:
            RunClosedError: `close` was called before.
        """
        self._submit_to_trackers(LogArtifact(path.absolute(), artifact_path))

    def flush(self, timeout_s: float, *, working_only: bool = False) -> bool:
        """Wait until every sink has what was queued before, and tell whether all have.

        Args:
            timeout_s: Seconds to wait at most.
            working_only: Do not wait for a sink that is known to fail now.
        """
        deadline = time.monotonic() + timeout_s
        asked = [thread for thread in self._threads if not (working_only and thread.error)]
        targets = [(thread, thread.request_flush()) for thread in asked]
        flushed = [thread.wait_flushed(target, deadline) for thread, target in targets]
        return all(flushed)

    def close(self, status: RunStatus, timeout_s: float) -> bool:
        """Let every sink finish and tell whether all got everything; the rest is kept for the next attempt."""
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.request_close(status, timeout_s)
        closed = [thread.wait_closed(deadline) for thread in self._threads]  # each of them, also after a failure
        return all(closed)

    def close_sink(self, name: str, timeout_s: float) -> bool:
        """Let one sink finish while the others go on, and tell whether it got everything; it gets nothing more."""
        deadline = time.monotonic() + timeout_s
        closing = [thread for thread in self._threads if thread.sink.name == name]
        self._threads = [thread for thread in self._threads if thread.sink.name != name]
        for thread in closing:
            thread.request_close("FINISHED", timeout_s)
        closed = [thread.wait_closed(deadline) for thread in closing]
        return all(closed)

    def mlflow_run_id(self, timeout_s: float) -> str | None:
        """Wait for the MLflow run and return its id; None without MLflow, or while it is unreachable."""
        for thread in self._threads:
            if thread.sink.name == "mlflow":
                thread.when_ready(timeout_s)
                return getattr(thread.sink, "run_id", None)
        return None

    def health(self) -> list[SinkHealth]:
        """Return how each sink is."""
        return [thread.health for thread in self._threads]

    def _submit_to_trackers(self, operation: Operation) -> None:
        for thread in self._threads:
            if isinstance(thread.sink, Tracker):
                thread.submit(operation)
