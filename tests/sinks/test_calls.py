from pathlib import Path
from types import SimpleNamespace

import pytest

from trieye.exceptions import ProcessingError
from trieye.sinks.thread import SinkCalls
from trieye.stats.operations import LogArtifact, LogParams, LogText, SetTags
from trieye.stats.point import Point
from trieye.testing import MemorySink


def points(first, num, log_to=("mlflow",)):
    return [Point("m", 0.5, step, 1.7e9, log_to) for step in range(first, first + num)]


def ends(calls):
    return [(call.weight, call.end) for call in calls]


def test_consecutive_points_are_batched_and_operations_are_single_calls():
    items = [*points(0, 3), SetTags({"a": "1"}), LogParams({"b": "2"}), *points(3, 2), LogText("t", 1, 1.7e9, "x")]
    assert ends(SinkCalls(MemorySink()).convert(items, 100, 108)) == [(3, 103), (1, 104), (1, 105), (2, 107), (1, 108)]


def test_artifact_paths_are_relative_to_the_current_run_directory():
    sink = MemorySink()
    for call in SinkCalls(sink, Path("/now/run")).convert(
        [LogArtifact("artifacts/1/a.txt"), LogArtifact("/now/run/b")], 0, 2
    ):
        call.make()
    assert sink.artifacts == [(Path("/now/run/artifacts/1/a.txt"), None), (Path("/now/run/b"), None)]


@pytest.mark.parametrize("planted", ["/etc/passwd", "../../other/secret", "link/secret"])
def test_artifacts_outside_the_run_directory_are_never_passed_on(tmp_path, planted):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "link").symlink_to(tmp_path)
    sink = MemorySink()
    (call,) = SinkCalls(sink, tmp_path / "run").convert([LogArtifact(planted)], 0, 1)
    with pytest.raises(ProcessingError, match="outside the run directory"):
        call.make()
    assert sink.artifacts == []


def test_operations_without_a_sink_method_are_skipped():
    plain = SimpleNamespace(name="plain", open=print, write=print, close=print)
    items = [LogParams({"a": "1"}), *points(0, 2), LogText("t", 1, 1.7e9, "x"), *points(2, 1), SetTags({"b": "2"})]
    calls = SinkCalls(plain).convert(items, 0, 6)
    assert ends(calls) == [(2, 4), (1, 6)]
    assert SinkCalls(plain).convert(items[:1], 0, 1) == []


def test_only_calls_with_a_known_end_index_report_it():
    items = [*points(0, 3), SetTags({"a": "1"}), *points(3, 2)]
    assert ends(SinkCalls(MemorySink()).convert(items, 0, 10)) == [(3, None), (1, None), (2, 10)]
