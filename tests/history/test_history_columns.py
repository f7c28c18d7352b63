from itertools import pairwise

import pytest
from history_run import exact, point, points, random_items, seeded
from hypothesis import given
from hypothesis import strategies as st

from trieye.history.columns import Columns, cut, grouped
from trieye.stats.operations import LogText
from trieye.stats.point import Point

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
POINT = st.builds(
    Point,
    metric=st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    value=st.floats(allow_nan=False),
    step=INT64,
    wall_time=st.floats(allow_nan=False),
    log_to=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), max_size=3).map(tuple),
    count=INT64,
)
ITEM = POINT | st.builds(LogText, name=st.just("n"), step=INT64, wall_time=st.floats(0, 1), text=st.just("t"))


@pytest.mark.long
@given(st.lists(ITEM, min_size=1, max_size=20), st.integers(0, 1 << 40))
def test_items_round_trip_bit_exactly_through_columns_and_chunks(items, first):
    columns = Columns.from_items(first, items)
    for copy in (columns, Columns.from_chunk(columns.to_chunk())):
        assert (copy.first, copy.end) == (first, first + len(items))
        assert exact(copy.items()) == exact(items)
        assert copy.checksum() == columns.checksum()


@given(st.integers(0, 1 << 30), st.integers(1, 40), st.integers(1, 300))
def test_grouping_preserves_items_within_the_limits(seed, max_items, max_bytes):
    rng = seeded(seed)
    items = random_items(rng, 200)
    bounds = sorted({0, 200, *(rng.randrange(200) for _ in range(40))})
    parts = [Columns.from_items(a + 7, items[a:b]) for a, b in pairwise(bounds)]
    groups = list(grouped(parts, max_items=max_items, max_bytes=max_bytes))
    assert exact(item for group in groups for item in group.items()) == exact(items)
    assert [group.first for group in groups] == [7, *(group.end for group in groups[:-1])]
    spans = {(part.first, part.end) for part in parts}
    for group in groups:
        is_small = len(group) <= max_items and group.operation_bytes <= max_bytes
        assert is_small or (group.first, group.end) in spans, "a part must not be split"


def test_a_cut_includes_at_least_one_operation():
    sizes = [(3, 10), (5, 10), (6, 1)]
    assert cut((0, 9), sizes, max_bytes=25) == 9
    assert cut((0, 9), sizes, max_bytes=20) == 6
    assert cut((0, 9), sizes, max_bytes=5) == 3
    assert cut((3, 9), sizes, max_bytes=5) == 5
    assert cut((4, 5), sizes, max_bytes=5) == 5


@pytest.mark.parametrize("field", ["metric", "value", "step", "wall_time", "log_to", "count"])
def test_the_checksum_covers_each_field(field):
    items = points(0, 5)
    other = {"metric": "other", "value": -0.0, "step": 7, "wall_time": 1.0, "log_to": ("mlflow", "wandb"), "count": 0}
    changed = [*items[:2], point(2), *items[3:]]
    values = {name: getattr(items[2], name) for name in other}
    changed[2] = Point(**{**values, field: other[field]})
    assert Columns.from_items(0, changed).checksum() != Columns.from_items(0, items).checksum()
    assert Columns.from_items(1, items).checksum() != Columns.from_items(0, items).checksum()


def test_joined_columns_drop_unused_metric_names():
    whole = Columns.from_items(0, [point(n, metric=f"m{n}") for n in range(100)])
    assert Columns.joined([whole.part(10, 11), whole.part(11, 13)]).names == ["m10", "m11", "m12"]
