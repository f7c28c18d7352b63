import time

import pytest

from trieye.testing import FlakySink, MemorySink, SinkContract


class Kept:
    """What sinks of all attempts of a test wrote, as a file would keep it."""

    @pytest.fixture(autouse=True)
    def _points(self):
        self.points = []

    def read_points(self, run):
        return [(point.metric, point.value, point.step) for point in self.points]


class TestMemorySink(Kept, SinkContract):
    def make_sink(self):
        sink = MemorySink()
        sink.points = self.points
        return sink


class StoreSink(MemorySink):
    """Stores each point once, and ignores superseded points that are logged again."""

    def __init__(self, points):
        super().__init__()
        self.points, self.shown = points, set()
        self.is_empty = not points

    def write(self, points):
        new = [point for point in points if (point.metric, point.step, point.value) not in self.shown]
        self.points.extend(point for point in new if point not in self.points)

    def note_superseded(self, points):
        self.shown.update((point.metric, point.step, point.value) for point in points)


class TestStoreSink(Kept, SinkContract):
    exactly_once = True

    def make_sink(self):
        return StoreSink(self.points)


class FileSink(MemorySink):
    """Can be cut back."""

    def __init__(self, points):
        super().__init__()
        self.points = points

    def position(self):
        return str(len(self.points))

    def resume(self, position):
        del self.points[int(position or 0) :]
        return True

    def clear(self):
        self.points.clear()


class TestFileSink(Kept, SinkContract):
    exactly_once = True

    def make_sink(self):
        return FileSink(self.points)


class LossySink(FileSink):
    def write(self, points):
        super().write(points[:-1])


class CarelessSink(FileSink):
    def resume(self, position):
        return True


class StubbornSink(FileSink):
    def clear(self):
        pass


class DeafSink(StoreSink):
    def note_superseded(self, points):
        pass


@pytest.mark.parametrize(
    ("sink_class", "failing_test"),
    [
        (LossySink, "test_every_point_arrives_once"),
        (CarelessSink, "test_redelivered_points_appear_once"),
        (StubbornSink, "test_a_rewound_branch_disappears"),
        (DeafSink, "test_a_repeated_step_appears_once"),
    ],
)
def test_the_sink_contract_detects_a_broken_sink(tmp_path, sink_class, failing_test):
    class Contract(Kept, SinkContract):
        exactly_once, points = True, []

        def make_sink(self):
            return sink_class(self.points)

    with pytest.raises(AssertionError):
        getattr(Contract(), failing_test)(tmp_path)


def test_the_sink_contract_reports_a_failed_open_without_a_timeout(tmp_path):
    class Contract(Kept, SinkContract):
        points = []

        def make_sink(self):
            return FlakySink(error=FileNotFoundError("no such directory"), name="lines")

    started = time.monotonic()
    with pytest.raises(AssertionError, match="`open` of sink 'lines': FileNotFoundError: no such directory"):
        Contract().test_every_point_arrives_once(tmp_path)
    assert time.monotonic() - started < SinkContract.TIMEOUT_S / 4
