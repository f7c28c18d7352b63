from itertools import pairwise

import msgspec
import numpy as np
import pytest
from history_run import exact, point, points, random_items, seeded
from hypothesis import given, settings
from hypothesis import strategies as st

from trieye.exceptions import SerializationError
from trieye.history.arrow import from_file_table, to_file_table
from trieye.history.chunks import decode_chunk, encode_chunk
from trieye.history.columns import Columns, cut, regrouped
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


@settings(deadline=None)  # the first example imports Arrow
@given(st.lists(ITEM, min_size=1, max_size=20), st.integers(0, 1 << 40))
def test_items_come_back_from_columns_chunks_and_tables_to_the_last_bit(items, first):
    columns = Columns.from_items(first, items)
    for copy in (columns, decode_chunk(encode_chunk(columns)), from_file_table(to_file_table(columns))):
        assert (copy.first, copy.end) == (first, first + len(items))
        assert exact(copy.items()) == exact(items)
        assert copy.checksum() == columns.checksum()


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 40), st.integers(1, 300))
def test_groups_hold_the_same_items_within_the_limits(seed, max_items, max_bytes):
    rng = seeded(seed)
    items = random_items(rng, 200)
    places = sorted({0, 200, *(rng.randrange(200) for _ in range(10))})
    parts = [Columns.from_items(a + 7, items[a:b]) for a, b in pairwise(places)]
    groups = list(regrouped(parts, max_items=max_items, max_bytes=max_bytes))
    assert exact(item for group in groups for item in group.items()) == exact(items)
    assert [group.first for group in groups] == [7, *(group.end for group in groups[:-1])]
    for group in groups:
        assert 1 <= len(group) <= max_items
        assert group.operation_bytes <= max_bytes or len(group.operations) == 1


def test_a_cut_leaves_one_operation_at_least():
    sizes = [(3, 10), (5, 10), (6, 1)]
    assert cut((0, 9), sizes, max_bytes=25) == 9
    assert cut((0, 9), sizes, max_bytes=20) == 6
    assert cut((0, 9), sizes, max_bytes=5) == 3
    assert cut((3, 9), sizes, max_bytes=5) == 5
    assert cut((4, 5), sizes, max_bytes=5) == 5


@pytest.mark.parametrize("field", ["metric", "value", "step", "wall_time", "log_to", "count"])
def test_the_checksum_sees_each_field(field):
    items = points(0, 5)
    other = {"metric": "other", "value": -0.0, "step": 7, "wall_time": 1.0, "log_to": ("mlflow", "wandb"), "count": 0}
    changed = [*items[:2], point(2), *items[3:]]
    values = {name: getattr(items[2], name) for name in other}
    changed[2] = Point(**{**values, field: other[field]})
    assert Columns.from_items(0, changed).checksum() != Columns.from_items(0, items).checksum()
    assert Columns.from_items(1, items).checksum() != Columns.from_items(0, items).checksum()


def test_names_that_do_not_occur_any_more_are_forgotten():
    whole = Columns.from_items(0, [point(n, metric=f"m{n}") for n in range(100)])
    joined = Columns.joined([whole.part(10, 11), whole.part(11, 13)])
    assert joined.names == ["m10", "m11", "m12"]


@pytest.mark.parametrize("payload", [b"", b"\xc1", msgspec.msgpack.encode([1, 2]), msgspec.msgpack.encode({"a": 1})])
def test_bytes_that_are_no_chunk_are_refused(payload):
    with pytest.raises(SerializationError, match="chunk of the history"):
        decode_chunk(payload)


def test_a_chunk_of_which_columns_are_short_is_refused():
    held = msgspec.msgpack.decode(encode_chunk(Columns.from_items(0, points(0, 5))))
    for field, short in [(3, held[3][:-1]), (4, held[4][:-8])]:
        with pytest.raises(SerializationError, match="chunk of the history"):
            decode_chunk(msgspec.msgpack.encode([*held[:field], short, *held[field + 1 :]]))


def test_values_are_numpy_arrays_without_a_copy():
    columns = decode_chunk(encode_chunk(Columns.from_items(0, points(0, 5))))
    assert columns.values.dtype == np.float64
    assert columns.part(1, 3).values.base is not None
