import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stats.conftest import batch, metric
from trieye.stats.aggregator import Aggregator
from trieye.stats.window_kinds import smoothed_sums


def smoothed(alpha):
    return Aggregator([metric(aggregation="ema", ema_alpha=alpha, log_frequency_steps=10)])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), st.floats(1e-6, 1), st.floats(-1e6, 1e6))
def test_sums_are_those_of_the_recurrence(values, alpha, before):
    expected, total = [], before
    for value in values:
        total = (1 - alpha) * total + alpha * value
        expected.append(total)
    assert smoothed_sums(np.array(values), alpha, before=before).tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("alpha", [1e-12, 1e-3, 0.1, 1.0])
def test_the_average_of_a_constant_is_that_constant(alpha):
    aggregator = smoothed(alpha)
    for step in range(1, 4):
        aggregator.ingest(batch(*[("m", 3.5, step, 0.0)] * 1000), at=0.0)
        assert aggregator.flush(at=float(step))[0].value == pytest.approx(3.5, rel=1e-9)


def test_another_weight_in_another_attempt_goes_on_from_the_same_average():
    first = smoothed(0.1)
    first.ingest(batch(*[("m", 3.0, step, 0.0) for step in range(1, 200)]), at=0.0)
    second = smoothed(0.001)
    second.restore(first.to_state())
    second.ingest(batch(("m", 3.0, 200, 0.0)), at=0.0)
    assert second.flush(at=1.0)[-1].value == pytest.approx(3.0)


@pytest.mark.parametrize("alpha", [0.0, -0.1, 1.1])
def test_the_weight_of_a_new_value_is_positive_and_at_most_1(alpha):
    with pytest.raises(ValueError, match="ema_alpha"):
        metric(ema_alpha=alpha)
