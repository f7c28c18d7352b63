from trieye.sinks.base import Resumable
from trieye.sinks.tensorboard.sink import ScalarWriterSink
from trieye.stats.point import Point
from trieye.testing import make_run_info


class Writer:
    """What trieye 0.1.5 let one inject."""

    def __init__(self):
        self.calls = []

    def add_scalar(self, *arguments):
        self.calls.append(arguments)

    def flush(self):
        self.calls.append("flush")

    def close(self):
        self.calls.append("close")


def test_a_given_writer_is_used_as_it_is(tmp_path):
    run, writer = make_run_info(tmp_path), Writer()
    sink = ScalarWriterSink(writer)
    sink.open(run)
    sink.write([Point("a", 1.0, 1, 10.5)])
    sink.flush()
    sink.close("FINISHED")
    assert writer.calls == [("a", 1.0, 1), "flush", "flush", "close"]
    assert not run.tensorboard_dir.exists()


def test_it_does_not_claim_that_it_can_take_points_back():
    assert not isinstance(ScalarWriterSink(Writer()), Resumable)
