import sys
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stats.conftest import batch, metric, rate, restored
from trieye.stats.aggregator import Aggregator
from trieye.stats.window_kinds import smoothed_sums
from trieye.stats.windows import AttemptTimes


def test_a_rate_divides_the_sum_by_the_seconds_since_the_last_point():
    aggregator = Aggregator([rate(log_frequency_seconds=5.0)], undeclared="drop")
    aggregator.ingest(batch(*[("done", 2.0, step, 0.0) for step in range(10)]), at=1.0)
    assert aggregator.advance(at=4.0) == []
    aggregator.ingest(batch(*[("done", 2.0, step, 0.0) for step in range(10, 20)]), at=4.0)
    assert [(point.step, point.value) for point in aggregator.advance(at=5.0)] == [(19, 8.0)]
    aggregator.ingest(batch(("done", 12.0, 20, 0.0)), at=8.0)
    assert [point.value for point in aggregator.advance(at=11.0)] == [2.0]


def test_a_rate_includes_the_time_measured_by_the_previous_attempt():
    first = Aggregator([rate(log_frequency_seconds=5.0)], undeclared="drop", times=AttemptTimes(1000.0, 1000.0))
    first.ingest(batch(*[("done", 3.0, step, 0.0) for step in range(10)]), at=4.0)
    second = restored(first, [rate(log_frequency_seconds=5.0)], undeclared="drop", times=AttemptTimes(9000.0, 9004.0))
    second.ingest(batch(("done", 20.0, 11, 0.0)), at=5.0)
    assert [point.value for point in second.advance(at=5.0)] == [10.0]


def test_a_rate_without_a_restored_state_starts_with_its_attempt():
    times = AttemptTimes(8000.0, 8500.0)
    aggregator = Aggregator([rate(log_frequency_seconds=5.0)], undeclared="drop", times=times)
    aggregator.ingest(batch(("done", 10.0, 1, 0.0)), at=501.0)
    assert aggregator.advance(at=504.9) == []
    assert [point.value for point in aggregator.advance(at=505.0)] == [2.0]


def test_a_pause_logs_no_rate_that_would_replace_the_last_one():
    first = Aggregator([rate(log_frequency_seconds=5.0)], undeclared="drop")
    first.ingest(batch(("done", 10.0, 1, 0.0)), at=5.0)
    assert [point.value for point in first.advance(at=5.0)] == [2.0]
    second = restored(first, [rate(log_frequency_seconds=5.0)], undeclared="drop", times=AttemptTimes(8994.0, 9000.0))
    assert second.advance(at=30.0) == []
    second.ingest(batch(("done", 50.0, 2, 0.0)), at=30.0)
    assert [point.value for point in second.advance(at=30.0)] == [2.0]
    assert [second.advance(at=at) for at in (35.0, 60.0)] == [[], []]
    second.ingest(batch(("done", 80.0, 3, 0.0)), at=70.0)
    assert [(point.step, point.value) for point in second.advance(at=70.0)] == [(3, 2.0)]


def test_the_rate_of_a_flush_counts_from_the_newest_event_of_the_last_point():
    first = Aggregator([rate(log_frequency_seconds=5.0)], undeclared="drop", times=AttemptTimes(1000.0, 1000.0))
    first.ingest(batch(*[("done", 1.0, step, 1000.0 + step / 100) for step in range(481)]), at=4.9)
    assert [point.value for point in first.advance(at=5.0)] == [481 / 5]
    second = restored(
        first, [rate(log_frequency_seconds=5.0)], undeclared="drop", times=AttemptTimes(9000.0, 9000.0), shift_s=100.0
    )
    second.ingest(batch(*[("done", 1.0, step, 9100.0 + step / 100) for step in range(481, 501)]), at=105.01)
    assert [point.value for point in second.flush(at=105.01)] == [pytest.approx(20 / 0.21)]
    second.ingest(batch(("done", 1.0, 501, 9106.0)), at=107.01)
    assert [point.value for point in second.flush(at=107.01)] == [pytest.approx(1 / 2)]


def test_a_window_that_ends_before_time_has_passed_joins_the_next_window():
    settings = {"aggregation": "rate", "rate_numerator_event": "done", "log_frequency_steps": 10}
    aggregator = Aggregator([metric("r", **settings)], undeclared="drop")
    aggregator.ingest(batch(*[("done", 1.0, step, 0.0) for step in range(12)]), at=0.0)
    assert aggregator.advance(at=0.0) == []
    aggregator.ingest(batch(("done", 1.0, 21, 0.0)), at=1.0)
    assert [(point.step, point.value, point.count) for point in aggregator.advance(at=2.0)] == [(20, 6.0, 12)]


def smoothed(alpha):
    return Aggregator([metric(aggregation="ema", ema_alpha=alpha, log_frequency_steps=10)])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), st.floats(1e-6, 1), st.floats(-1e6, 1e6))
def test_smoothed_sums_match_the_recurrence(values, alpha, before):
    expected, total = [], before
    for value in values:
        total = (1 - alpha) * total + alpha * value
        expected.append(total)
    assert smoothed_sums(np.array(values), alpha, before=before).tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("alpha", [1e-12, 0.1, 1.0])
def test_the_average_of_a_constant_is_that_constant(alpha):
    aggregator = smoothed(alpha)
    for step in range(1, 4):
        aggregator.ingest(batch(*[("m", 3.5, step, 0.0)] * 1000), at=0.0)
        assert aggregator.flush(at=float(step))[0].value == pytest.approx(3.5, rel=1e-9)


def test_a_changed_weight_continues_from_the_restored_average():
    first = smoothed(0.1)
    first.ingest(batch(*[("m", 3.0, step, 0.0) for step in range(1, 200)]), at=0.0)
    second = smoothed(0.001)
    second.restore(first.to_state())
    second.ingest(batch(("m", 3.0, 200, 0.0)), at=0.0)
    assert second.flush(at=1.0)[-1].value == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("field", "value"), [("ema_alpha", 0.0), ("ema_alpha", 1.1), ("quantile", -0.1), ("quantile", 1.1)]
)
def test_the_parameters_of_an_aggregation_have_bounds(field, value):
    with pytest.raises(ValueError, match=field):
        metric(**{field: value})


def points_of(values, quantile, *, size):
    aggregator = Aggregator([metric(aggregation="quantile", quantile=quantile, log_frequency_steps=10)])
    for start in range(0, len(values), size):
        aggregator.ingest(batch(*[("m", value, 1, 0.0) for value in values[start : start + size]]), at=0.0)
    return aggregator.flush(at=1.0)


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=60), st.floats(0, 1), st.integers(1, 60))
def test_quantiles_equal_numpys_for_any_batch_size(values, quantile, size):
    (point,) = points_of(values, quantile, size=size)
    assert point.value == np.quantile(values, quantile)
    assert point.count == len(values)


def test_the_largest_floats_are_interpolated_without_overflow():
    greatest = sys.float_info.max
    assert points_of([-greatest, greatest], 0.5, size=1)[0].value == 0.0
    assert points_of([-greatest, greatest], 0.75, size=1)[0].value == pytest.approx(greatest / 2)


def test_a_large_window_needs_eight_bytes_per_event():
    aggregator = Aggregator([metric(aggregation="quantile", log_frequency_steps=10)])
    values = np.random.default_rng(0).normal(size=1_000_000)
    events = batch(("m", 0.0, 1, 0.0))
    tracemalloc.start()
    for part in np.split(values, 100):
        rows = np.zeros(len(part), dtype=np.intp)
        aggregator.ingest(replace(events.take(rows), values=part), at=0.0)
    allocated_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert allocated_bytes < 8 * 1.3e6
    assert aggregator.flush(at=1.0)[0].value == np.quantile(values, 0.5)
