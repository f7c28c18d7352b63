"""SinkContract: tests that every sink must pass."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar
from unittest import SkipTest

from trieye.sinks.base import Rerunning, Resumable, RunInfo, RunStatus, Sink
from trieye.sinks.thread import SinkThread
from trieye.stats.point import Point
from trieye.testing.sinks import MemoryHistory, make_run_info


class SinkContract:
    """Inherited tests of a sink: subclass it in a class that pytest collects, and implement its two abstract methods.

    The points of the sink must be readable.
    """

    TIMEOUT_S = 60.0
    """Time limit for open, write and close; an `open` that raises fails at once."""

    exactly_once: ClassVar[bool] = False
    """Whether the sink stores a point once even if it is delivered again after a crash."""

    def make_sink(self) -> Sink:
        """Return a new sink, not yet open."""
        raise NotImplementedError

    def read_points(self, run: RunInfo) -> list[tuple[str, float, int]]:
        """Return (metric, value, step) of all points of all attempts, in written order within a metric."""
        raise NotImplementedError

    @contextmanager
    def running(self, run: RunInfo, source: MemoryHistory, status: RunStatus = "FINISHED") -> Iterator[SinkThread]:
        """Run the sink for one attempt, which ends with the block; reusing a source simulates a restart."""
        thread = SinkThread(self.make_sink(), run, source)
        deadline = time.monotonic() + self.TIMEOUT_S
        while not thread.when_ready(0.01):
            if thread.error or time.monotonic() > deadline:
                thread.request_close(status, 0.0)
                raise AssertionError(f"`open` of sink {thread.sink.name!r}: {thread.error or 'timed out'}")
        yield thread
        assert thread.close(status, self.TIMEOUT_S), thread.health  # noqa: S101 - a test

    def attempt(
        self,
        run: RunInfo,
        *batches: Sequence[Point],
        status: RunStatus = "FINISHED",
        source: MemoryHistory | None = None,
    ) -> None:
        """Write batches like one attempt of a run, and close."""
        history = MemoryHistory() if source is None else source
        with self.running(run, history, status) as thread:
            for batch in batches:
                self.write(thread, history, batch)

    def write(self, thread: SinkThread, source: MemoryHistory, points: Sequence[Point]) -> None:
        """Add points, and block until the sink has written them."""
        source.append(points)
        thread.wake()
        assert thread.flush(self.TIMEOUT_S), thread.health  # noqa: S101 - a test

    def test_it_has_a_name(self) -> None:
        """A sink has a non-empty name."""
        assert isinstance(self.make_sink().name, str)  # noqa: S101 - a test
        assert self.make_sink().name  # noqa: S101 - a test

    def test_every_point_arrives_once(self, tmp_path: Path) -> None:
        """Points in excess of one write arrive once each, in order."""
        run = make_run_info(tmp_path)
        points = _points(0, 2500)
        self.attempt(run, points[:1], [], points[1:])
        assert self.read_points(run) == _rows(points)  # noqa: S101 - a test

    def test_an_attempt_may_have_no_points(self, tmp_path: Path) -> None:
        """A sink can be opened and closed without points."""
        run = make_run_info(tmp_path)
        self.attempt(run, status="FAILED")
        assert self.read_points(run) == []  # noqa: S101 - a test

    def test_a_later_attempt_appends_its_points(self, tmp_path: Path) -> None:
        """The sink contains the points of both attempts."""
        run, source = make_run_info(tmp_path), MemoryHistory()
        self.attempt(run, _points(1, 2), status="KILLED", source=source)
        self.attempt(run, _points(2, 3), source=source)
        assert self.read_points(run) == _rows(_points(1, 3))  # noqa: S101 - a test

    def test_metrics_of_one_step_stay_separate(self, tmp_path: Path) -> None:
        """Points that share step and time do not replace each other."""
        run = make_run_info(tmp_path)
        self.attempt(run, [Point(name, value, 7, 1.7e9) for name, value in (("a", 1.0), ("b/c d", -2.0), ("é", 0.0))])
        assert sorted(self.read_points(run)) == [("a", 1.0, 7), ("b/c d", -2.0, 7), ("é", 0.0, 7)]  # noqa: S101 - a test

    def test_extreme_steps_and_times_are_preserved(self, tmp_path: Path) -> None:
        """64-bit steps, negative steps and times before 1970 are stored exactly."""
        run = make_run_info(tmp_path)
        steps = [-(2**63), -1, 0, 2**62, 2**63 - 1]
        self.attempt(run, [Point("loss", float(n), step, -5.0 + n) for n, step in enumerate(steps)])
        assert sorted(self.read_points(run), key=lambda row: row[2]) == [  # noqa: S101 - a test
            ("loss", float(n), step) for n, step in enumerate(steps)
        ]

    def test_a_sink_enabled_later_receives_earlier_points(self, tmp_path: Path) -> None:
        """A sink enabled after the start of a run receives its whole history."""
        if getattr(self.make_sink(), "live_only", False):
            raise SkipTest("the sink shows only new points")
        run, source = make_run_info(tmp_path), MemoryHistory(_points(0, 1200))
        self.attempt(run, _points(1200, 1210), source=source)
        assert self.read_points(run) == _rows(_points(0, 1210))  # noqa: S101 - a test

    def test_redelivered_points_appear_once(self, tmp_path: Path) -> None:
        """A process was killed before it stored the sink's cursor, or the cursor was lost."""
        if not self.exactly_once:
            raise SkipTest("the sink may store a point twice")
        run, source = make_run_info(tmp_path), MemoryHistory()
        with self.running(run, source, "KILLED") as thread:
            self.write(thread, source, _points(0, 10))
            earlier_cursors = dict(source.cursors)
            self.write(thread, source, _points(10, 20))
        source.cursors = earlier_cursors
        self.attempt(run, _points(20, 30), status="KILLED", source=source)
        assert self.read_points(run) == _rows(_points(0, 30))  # noqa: S101 - a test
        source.cursors.clear()
        self.attempt(run, _points(30, 40), source=source)
        assert self.read_points(run) == _rows(_points(0, 40))  # noqa: S101 - a test

    def test_a_rewound_branch_disappears(self, tmp_path: Path) -> None:
        """A resumable sink shows only the surviving branch, whenever the rewind happened."""
        if not isinstance(self.make_sink(), Resumable):
            raise SkipTest("the sink cannot remove points")
        run, source = make_run_info(tmp_path), MemoryHistory()
        with self.running(run, source, "KILLED") as thread:
            self.write(thread, source, _points(0, 10))
            source.supersede(5, 10)
            thread.rewind(5)
            self.write(thread, source, _points(5, 8, branch=1))
            assert self.read_points(run) == _rows(_points(0, 5), _points(5, 8, branch=1))  # noqa: S101 - a test
        source.supersede(11, 13)  # and the process dies before it notifies the sink
        self.attempt(run, _points(6, 9, branch=2), source=source)
        expected_rows = _rows(_points(0, 5), _points(5, 6, branch=1), _points(6, 9, branch=2))
        assert self.read_points(run) == expected_rows  # noqa: S101 - a test

    def test_a_repeated_step_appears_once(self, tmp_path: Path) -> None:
        """A run restored a checkpoint and computes the same values again, at another time."""
        if not (self.exactly_once and isinstance(self.make_sink(), Resumable | Rerunning)):
            raise SkipTest("the sink may store a point twice")
        run, source = make_run_info(tmp_path), MemoryHistory()
        with self.running(run, source, "KILLED") as thread:
            self.write(thread, source, _points(0, 5))
            earlier_cursors = dict(source.cursors)
            self.write(thread, source, _points(5, 10))
        source.cursors = earlier_cursors  # the process was killed before it stored the sink's cursor
        source.supersede(3, 10)
        with self.running(run, source) as thread:
            self.write(thread, source, _points(3, 7, later_s=60.0))
            source.supersede(12, 14)
            thread.rewind(12)
            self.write(thread, source, _points(5, 10, later_s=120.0))
        assert sorted(self.read_points(run)) == sorted(_rows(_points(0, 10)))  # noqa: S101 - a test


def _points(first: int, end: int, *, branch: int = 0, later_s: float = 0.0) -> list[Point]:
    return [Point("loss", step + 100.0 * branch, step, 1.7e9 + step + later_s) for step in range(first, end)]


def _rows(*branches: Sequence[Point]) -> list[tuple[str, float, int]]:
    return [(point.metric, point.value, point.step) for points in branches for point in points]
