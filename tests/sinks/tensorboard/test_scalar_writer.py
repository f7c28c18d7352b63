from trieye.sinks.base import Resumable
from trieye.sinks.tensorboard.sink import ScalarWriterSink
from trieye.stats.point import Point
from trieye.testing import make_run_info


class Writer:
    """A writer as users of trieye 0.1.5 could inject it."""

    def __init__(self):
        self.calls = []

    def add_scalar(self, *arguments):
        self.calls.append(arguments)

    def flush(self):
        self.calls.append("flush")

    def close(self):
        self.calls.append("close")


def test_an_injected_writer_receives_points_and_calls(tmp_path):
    run, writer = make_run_info(tmp_path), Writer()
    sink = ScalarWriterSink(writer)
    sink.open(run)
    sink.write([Point("a", 1.0, 1, 10.5)])
    sink.flush()
    sink.close("FINISHED")
    assert writer.calls == [("a", 1.0, 1), "flush", "flush", "close"]
    assert not run.tensorboard_dir.exists()
    assert not isinstance(sink, Resumable)
