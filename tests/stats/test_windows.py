import math

import pytest

from tests.stats.conftest import batch, metric
from trieye.stats.aggregator import Aggregator


def test_every_due_step_is_a_point_although_all_come_in_one_pass():
    aggregator = Aggregator([metric(aggregation="mean", log_frequency_steps=10)])
    aggregator.ingest(batch(*[("m", float(step), step, 0.0) for step in range(1, 102)]), at=0.1)
    points = aggregator.advance(at=1.0)
    assert [point.step for point in points] == list(range(10, 101, 10))
    assert [point.value for point in points] == [step - 4.5 for step in range(10, 101, 10)]


def test_a_late_event_joins_the_next_open_window():
    aggregator = Aggregator([metric(log_frequency_steps=10)])
    aggregator.ingest(batch(*[("m", 1.0, step, 0.0) for step in range(1, 13)]), at=0.0)
    aggregator.advance(at=1.0)
    aggregator.ingest(batch(("m", 1.0, 3, 0.0)), at=1.0)
    assert aggregator.num_late == 1
    assert [(point.step, point.value) for point in aggregator.flush(at=2.0)] == [(12, 3.0)]


def test_a_metric_without_frequency_is_readable_and_never_logged():
    aggregator = Aggregator([metric(aggregation="mean", log_frequency_steps=0)])
    aggregator.ingest(batch(("m", 1.0, 1, 0.0), ("m", 4.0, 2, 0.0)), at=0.0)
    assert aggregator.flush(at=100.0) == []
    assert aggregator.latest() == {"m": (2, 2.5)}


@pytest.mark.parametrize("time", [math.nan, math.inf, -math.inf, 1e300])
def test_a_time_that_is_no_date_costs_nothing_else(time):
    aggregator = Aggregator([metric(x_axis="wall_time", log_frequency_steps=10)], started=1000.0)
    aggregator.ingest(batch(("m", 1.0, 1, 1010.0), ("m", 1.0, 2, time)), at=0.0)
    assert [point.count for point in aggregator.flush(at=1.0)] == [2]


def test_episode_axis_takes_the_number_from_the_context_or_counts():
    aggregator = Aggregator([metric(x_axis="episode")])
    aggregator.ingest(batch(("m", 1.0, 10, 0.0), ("m", 1.0, 20, 0.0), ("m", 1.0, 30, 0.0, {"episode": 12})), at=0.0)
    assert [point.step for point in aggregator.flush(at=1.0)] == [1, 2, 12]
