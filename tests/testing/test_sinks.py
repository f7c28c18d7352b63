import pytest

from trieye.testing import MemorySink, SinkContract, make_run


class TestMemorySink(SinkContract):
    @pytest.fixture(autouse=True)
    def _points(self):
        self.points = []

    def make_sink(self):
        sink = MemorySink()
        sink.points = self.points
        return sink

    def read_points(self, run):
        return [(point.metric, point.value, point.step) for point in self.points]


class LossySink(MemorySink):
    def write(self, points):
        super().write(points[:-1])


def test_the_contract_notices_a_sink_that_loses_points(tmp_path):
    sink = LossySink()

    class Contract(SinkContract):
        def make_sink(self):
            return sink

        def read_points(self, run):
            return [(point.metric, point.value, point.step) for point in sink.points]

    with pytest.raises(AssertionError):
        Contract().test_every_point_arrives_once(tmp_path)


def test_a_made_run_creates_nothing(tmp_path):
    run = make_run(tmp_path / "root", app_name="other")
    assert run.app_name == "other"
    assert not (tmp_path / "root").exists()
