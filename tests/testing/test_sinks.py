import pytest

from trieye.stats.operations import LogText
from trieye.stats.point import Point
from trieye.testing import FlakySink, MemorySink, make_run_info


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
