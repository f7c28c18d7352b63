from trieye.sinks.base import Cursor
from trieye.stats.operations import SetTags
from trieye.stats.point import Point
from trieye.testing import MemoryHistory

POINTS = [Point("m", 0.5, step, 1.7e9) for step in range(10)]


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
