import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stats.conftest import batch
from trieye.stats.batch import EventBatch, EventRow, context_bytes, salvage

contexts = st.none() | st.just({}) | st.integers(0, 9).map(lambda number: {"k": number})
rows = st.tuples(st.sampled_from("abc"), st.floats(-1, 1), st.integers(0, 9), st.floats(0, 1), contexts)


@given(st.lists(rows, max_size=30))
def test_events_of_a_name_keep_their_order(events):
    events_by_name = {
        name: [
            (value, step, time, part.contexts.get(row))
            for row, (value, step, time) in enumerate(
                zip(part.values.tolist(), part.steps.tolist(), part.times.tolist(), strict=True)
            )
        ]
        for name, part in batch(*events).by_name()
    }
    expected = {}
    for name, value, step, time, context in events:
        expected.setdefault(name, []).append((value, step, time, context or None))
    assert events_by_name == expected


def test_salvage_separates_invalid_rows_and_names_the_reason():
    good = EventRow("m", 1.0, 1, 0.0)
    rows = [good, EventRow("m", 10**400, 1, 0.0), EventRow("m", 1.0, 1 << 70, 0.0), EventRow("m", "x", 1, 0.0)]
    with pytest.raises((OverflowError, ValueError)):
        EventBatch.from_rows(rows)
    assert salvage(rows) == ([good], [("non_finite", "m"), ("step_out_of_range", "m"), ("invalid", "m")])


class Unpicklable:
    def __reduce__(self):
        raise TypeError("it cannot be pickled")


def test_the_size_of_a_context_is_that_of_its_keys_and_values():
    assert context_bytes({"a": 1, "bc": None, "text": "abc", "raw": b"12"}) == (1 + 8) + (2 + 8) + (4 + 3) + (3 + 2)
    assert context_bytes({"numbers": list(range(1000))}) > 1000
    assert context_bytes({"object": Unpicklable()}) > len("object")
