import pytest

from trieye.testing import MemorySink, SinkContract


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
    """Drops what it has, and leaves out what it is told to."""

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


def contract(sink_class, **attributes):
    points = []

    class Contract(SinkContract):
        def make_sink(self):
            return sink_class(points)

        def read_points(self, run):
            return [(point.metric, point.value, point.step) for point in points]

    for name, value in attributes.items():
        setattr(Contract, name, value)
    return Contract()


def test_the_contract_notices_a_sink_that_loses_points(tmp_path):
    class LossySink(FileSink):
        def write(self, points):
            super().write(points[:-1])

    with pytest.raises(AssertionError):
        contract(LossySink).test_every_point_arrives_once(tmp_path)


def test_the_contract_notices_a_sink_that_shows_points_twice(tmp_path):
    class CarelessSink(FileSink):
        def resume(self, position):
            return True

    with pytest.raises(AssertionError):
        contract(CarelessSink, exactly_once=True).test_points_that_come_again_appear_once(tmp_path)


def test_the_contract_notices_a_sink_that_keeps_a_branch(tmp_path):
    class StubbornSink(FileSink):
        def clear(self):
            pass

    with pytest.raises(AssertionError):
        contract(StubbornSink).test_a_rewound_branch_disappears(tmp_path)


def test_the_contract_notices_a_sink_that_forgets_what_it_has_shown(tmp_path):
    class DeafSink(StoreSink):
        def note_superseded(self, points):
            pass

    with pytest.raises(AssertionError):
        contract(DeafSink, exactly_once=True).test_a_point_that_is_run_again_appears_once(tmp_path)
