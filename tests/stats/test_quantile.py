import sys
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stats.conftest import batch, metric
from trieye.stats.aggregator import Aggregator


def points_of(values, quantile, *, size):
    aggregator = Aggregator([metric(aggregation="quantile", quantile=quantile, log_frequency_steps=10)])
    for start in range(0, len(values), size):
        aggregator.ingest(batch(*[("m", value, 1, 0.0) for value in values[start : start + size]]), at=0.0)
    return aggregator.flush(at=1.0)


@settings(max_examples=500, deadline=None)
@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=60), st.floats(0, 1), st.integers(1, 60))
def test_a_quantile_is_that_of_numpy_however_the_events_were_batched(values, quantile, size):
    (point,) = points_of(values, quantile, size=size)
    assert point.value == np.quantile(values, quantile)
    assert point.count == len(values)


def test_the_greatest_values_are_interpolated_too():
    greatest = sys.float_info.max
    assert points_of([-greatest, greatest], 0.5, size=1)[0].value == 0.0
    assert points_of([-greatest, greatest], 0.75, size=1)[0].value == pytest.approx(greatest / 2)


def test_a_large_window_takes_eight_bytes_an_event():
    aggregator = Aggregator([metric(aggregation="quantile", log_frequency_steps=10)])
    values = np.random.default_rng(0).normal(size=1_000_000)
    events = batch(("m", 0.0, 1, 0.0))
    tracemalloc.start()
    for part in np.split(values, 100):
        rows = np.zeros(len(part), dtype=np.intp)
        aggregator.ingest(replace(events.take(rows), values=part), at=0.0)
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held_bytes < 8 * 1.3e6
    assert aggregator.flush(at=1.0)[0].value == np.quantile(values, 0.5)


@pytest.mark.parametrize("quantile", [-0.1, 1.1])
def test_a_quantile_lies_between_0_and_1(quantile):
    with pytest.raises(ValueError, match="quantile"):
        metric(quantile=quantile)
