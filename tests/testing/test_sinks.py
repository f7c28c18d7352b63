import pytest

from trieye.sinks.base import Cursor
from trieye.stats.operations import LogText, SetTags
from trieye.stats.point import Point
from trieye.testing import FlakySink, MemoryHistory, MemorySink, make_run_info

POINTS = [Point("m", 0.5, step, 1.7e9) for step in range(10)]


def test_make_run_info_creates_only_an_empty_directory(tmp_path):
    run = make_run_info(tmp_path / "root", app_name="other")
    assert run.app_name == "other"
    assert list(run.run_dir.iterdir()) == []
    assert [path for path in (tmp_path / "root").rglob("*") if path.is_file()] == []


def test_a_memory_sink_records_its_calls(tmp_path):
    sink, text, point = MemorySink(), LogText("t", 1, 1.7e9, "x"), Point("m", 0.5, 1, 1.7e9)
    sink.open(make_run_info(tmp_path))
    sink.write([point])
    sink.log_media(text)
    sink.set_tags({"a": "1"})
    sink.close("KILLED")
    assert (sink.points, sink.media, sink.tags, sink.statuses) == ([point], [text], {"a": "1"}, ["KILLED"])


def test_a_flaky_sink_fails_the_first_calls_and_on_request(tmp_path):
    sink = FlakySink(1)
    with pytest.raises(ConnectionError):
        sink.open(make_run_info(tmp_path))
    sink.open(make_run_info(tmp_path))
    sink.fail()
    with pytest.raises(ConnectionError):
        sink.log_media(LogText("t", 1, 1.7e9, "x"))
    sink.repair()
    sink.write([])
    assert sink.num_calls == 4


def test_items_are_read_in_order_and_in_parts():
    source = MemoryHistory(POINTS[:3])
    source.append(POINTS[3:])
    assert source.end == 10
    assert source.read(0, 4) == (POINTS[:4], 4)
    assert source.read(8, 4) == (POINTS[8:], 10)
    assert source.read(10, 4) == ([], 10)


def test_superseded_items_are_skipped_and_their_points_can_be_queried():
    source = MemoryHistory([*POINTS[:5], SetTags({"a": "1"}), *POINTS[5:]])
    source.supersede(4, 7)
    source.supersede(3, 5)
    assert source.read(0, 5) == (POINTS[:3], 5)
    assert source.read(5, 100) == ([SetTags({"a": "1"}), *POINTS[6:]], 11)
    assert source.branch == 4
    assert list(source.superseded(4)) == POINTS[3:4]
    assert list(source.superseded(11)) == POINTS[3:6]


def test_cursors_are_stored():
    source = MemoryHistory()
    assert source.cursor("a") is None
    source.set_cursor("a", Cursor(3, "x"))
    assert source.cursor("a") == source.cursors["a"] == (3, "x")
