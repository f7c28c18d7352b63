"""Sinks for tests, and the tests that every sink has to pass."""

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trieye.sinks.base import RunInfo, RunStatus, Sink
from trieye.sinks.runner import SinkThread
from trieye.stats.point import Point


def make_run(root: Path, **changes: Any) -> RunInfo:
    """Return a run below `root`, with an MLflow store in a database there; nothing is created.

    Args:
        root: A directory, usually pytest's `tmp_path`.
        **changes: Fields of `RunInfo` that are to differ.
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
        "spool_dir": run_dir / "spool",
        "created": time.time(),
    }
    return RunInfo(**{**fields, **changes})


class MemorySink:
    """A tracker that keeps everything, as it came.

    Attributes:
        points: All points written.
        params: All parameters logged.
        tags: All tags set.
        artifacts: (path, artifact path) of all files logged.
        writes: How many points each write had.
        statuses: Arguments of `close`.
    """

    def __init__(self, name: str = "memory") -> None:
        self.name = name
        self.points: list[Point] = []
        self.params: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.artifacts: list[tuple[Path, str | None]] = []
        self.writes: list[int] = []
        self.statuses: list[RunStatus] = []

    def open(self, run: RunInfo) -> None:
        """Do nothing."""

    def write(self, points: Sequence[Point]) -> None:
        """Keep the points."""
        self.points.extend(points)
        self.writes.append(len(points))

    def log_params(self, params: Mapping[str, str]) -> None:
        """Keep the parameters."""
        self.params.update(params)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Keep the tags."""
        self.tags.update(tags)

    def log_artifact(self, path: Path, artifact_path: str | None) -> None:
        """Keep where the file is."""
        self.artifacts.append((path, artifact_path))

    def close(self, status: RunStatus) -> None:
        """Keep the status."""
        self.statuses.append(status)


class FlakySink(MemorySink):
    """A `MemorySink` that fails for a while, or until `repair` is called.

    Args:
        num_failures: How many calls fail, those of `open` included; None = all until `repair`.
        error: What they raise.
        name: Name of the sink.
    """

    def __init__(self, num_failures: int | None = None, *, error: Exception | None = None, name: str = "flaky") -> None:
        super().__init__(name)
        self.num_calls = 0
        self._left = num_failures
        self._error = error or ConnectionError("the other side is away")
        self._broken = threading.Event()
        self._broken.set()

    def repair(self) -> None:
        """Let everything work from now on."""
        self._broken.clear()

    def fail(self) -> None:
        """Let everything fail from now on."""
        self._left = None
        self._broken.set()

    def open(self, run: RunInfo) -> None:
        """Fail, or do nothing."""
        self._maybe_fail()
        super().open(run)

    def write(self, points: Sequence[Point]) -> None:
        """Fail, or keep the points."""
        self._maybe_fail()
        super().write(points)

    def close(self, status: RunStatus) -> None:
        """Fail, or keep the status."""
        self._maybe_fail()
        super().close(status)

    def _maybe_fail(self) -> None:
        self.num_calls += 1
        if not self._broken.is_set():
            return
        if self._left is None:
            raise self._error
        if self._left > 0:
            self._left -= 1
            raise self._error


class SinkContract:
    """Tests that a sink inherits: subclass it, in a class that pytest collects, and give the two methods.

    The sink has to be one whose points can be read back.
    """

    TIMEOUT_S = 60.0
    """How long a sink may take to open, write and close."""

    def make_sink(self) -> Sink:
        """Return a new sink, not yet open."""
        raise NotImplementedError

    def read_points(self, run: RunInfo) -> list[tuple[str, float, int]]:
        """Return (metric, value, step) of all points that all attempts wrote, those of one metric in written order."""
        raise NotImplementedError

    def attempt(self, run: RunInfo, *batches: Sequence[Point], status: RunStatus = "FINISHED") -> None:
        """Write batches as one attempt of a run would and close."""
        thread = SinkThread(self.make_sink(), run)
        for batch in batches:
            thread.submit_points(batch)
        assert thread.close(status, self.TIMEOUT_S), thread.health  # noqa: S101 - a test

    def test_it_has_a_name(self) -> None:
        """A sink is known by its name."""
        assert isinstance(self.make_sink().name, str)  # noqa: S101 - a test
        assert self.make_sink().name  # noqa: S101 - a test

    def test_every_point_arrives_once(self, tmp_path: Path) -> None:
        """More points than one write takes arrive once each, in order."""
        run = make_run(tmp_path)
        points = [Point("loss", float(step), step, 1.7e9 + step) for step in range(2500)]
        self.attempt(run, points[:1], [], points[1:])
        assert self.read_points(run) == [("loss", float(step), step) for step in range(2500)]  # noqa: S101 - a test

    def test_an_attempt_without_points_is_fine(self, tmp_path: Path) -> None:
        """Opening and closing is enough."""
        run = make_run(tmp_path)
        self.attempt(run, status="FAILED")
        assert self.read_points(run) == []  # noqa: S101 - a test

    def test_a_later_attempt_adds_to_the_earlier(self, tmp_path: Path) -> None:
        """Points of both attempts are there."""
        run = make_run(tmp_path)
        self.attempt(run, [Point("loss", 1.0, 1, 1.7e9)], status="KILLED")
        self.attempt(run, [Point("loss", 0.5, 2, 1.7e9 + 1)])
        assert self.read_points(run) == [("loss", 1.0, 1), ("loss", 0.5, 2)]  # noqa: S101 - a test

    def test_several_metrics_of_a_step_stay_apart(self, tmp_path: Path) -> None:
        """Points that share step and time do not replace each other."""
        run = make_run(tmp_path)
        self.attempt(run, [Point(name, value, 7, 1.7e9) for name, value in (("a", 1.0), ("b/c d", -2.0), ("é", 0.0))])
        assert sorted(self.read_points(run)) == [("a", 1.0, 7), ("b/c d", -2.0, 7), ("é", 0.0, 7)]  # noqa: S101 - a test

    def test_extreme_steps_and_times_are_kept(self, tmp_path: Path) -> None:
        """Steps of 64 bits, negative steps, and times before 1970."""
        run = make_run(tmp_path)
        steps = [-(2**63), -1, 0, 2**62, 2**63 - 1]
        self.attempt(run, [Point("loss", float(n), step, -5.0 + n) for n, step in enumerate(steps)])
        assert sorted(self.read_points(run), key=lambda row: row[2]) == [  # noqa: S101 - a test
            ("loss", float(n), step) for n, step in enumerate(steps)
        ]
