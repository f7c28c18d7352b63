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


def test_a_window_closes_only_when_a_later_step_was_seen():
    aggregator = Aggregator([metric(log_frequency_steps=10)])
    aggregator.ingest(batch(*[("m", 1.0, step, 0.0) for step in range(1, 11)]), at=0.0)
    assert aggregator.advance(at=1.0) == []
    aggregator.ingest(batch(("m", 1.0, 11, 0.0)), at=1.0)
    assert [(point.step, point.value) for point in aggregator.advance(at=2.0)] == [(10, 10.0)]


def test_process_and_log_closes_the_window_that_ends_at_its_step():
    aggregator = Aggregator([metric(log_frequency_steps=10)])
    aggregator.ingest(batch(*[("m", 1.0, step, 0.0) for step in range(1, 11)]), at=0.0)
    assert [point.step for point in aggregator.advance(at=1.0, step=10)] == [10]


def test_a_late_event_joins_the_next_open_window():
    aggregator = Aggregator([metric(log_frequency_steps=10)])
    aggregator.ingest(batch(*[("m", 1.0, step, 0.0) for step in range(1, 13)]), at=0.0)
    aggregator.advance(at=1.0)
    aggregator.ingest(batch(("m", 1.0, 3, 0.0)), at=1.0)
    assert aggregator.num_late == 1
    assert [(point.step, point.value) for point in aggregator.flush(at=2.0)] == [(12, 3.0)]


def test_a_late_event_that_nothing_follows_gives_a_point_at_the_highest_step():
    aggregator = Aggregator([metric(log_frequency_steps=10)])
    aggregator.ingest(batch(*[("m", 1.0, step, 0.0) for step in range(1, 11)]), at=0.0)
    aggregator.flush(at=1.0)
    aggregator.ingest(batch(("m", 1.0, 3, 0.0)), at=1.0)
    assert [(point.step, point.value) for point in aggregator.flush(at=2.0)] == [(10, 1.0)]


def test_force_leaves_later_steps_for_later():
    aggregator = Aggregator([metric(log_frequency_steps=10)])
    aggregator.ingest(batch(*[("m", 1.0, step, 0.0) for step in (3, 15)]), at=0.0)
    assert [point.step for point in aggregator.flush(at=1.0, step=5)] == [3]
    assert [point.step for point in aggregator.flush(at=2.0)] == [15]


def test_a_metric_by_seconds_is_logged_at_its_highest_step_when_the_seconds_are_over():
    aggregator = Aggregator([metric(aggregation="sum", log_frequency_steps=0, log_frequency_seconds=5.0)])
    aggregator.ingest(batch(("m", 1.5, 1, 0.0), ("m", 2.0, 8, 0.0)), at=1.0)
    assert aggregator.advance(at=5.9) == []
    assert [(point.step, point.value) for point in aggregator.advance(at=6.0)] == [(8, 3.5)]


def test_with_both_frequencies_the_one_that_comes_first_logs():
    aggregator = Aggregator([metric(log_frequency_steps=10, log_frequency_seconds=5.0)])
    aggregator.ingest(batch(*[("m", 1.0, step, 0.0) for step in (1, 2)]), at=0.0)
    assert [(point.step, point.count) for point in aggregator.advance(at=5.0)] == [(2, 2)]
    aggregator.ingest(batch(*[("m", 1.0, step, 0.0) for step in (9, 10, 11)]), at=5.0)
    assert [(point.step, point.count) for point in aggregator.advance(at=5.1)] == [(10, 2)]


def test_a_metric_without_frequency_is_readable_and_never_logged():
    aggregator = Aggregator([metric(aggregation="mean", log_frequency_steps=0)])
    aggregator.ingest(batch(("m", 1.0, 1, 0.0), ("m", 4.0, 2, 0.0)), at=0.0)
    assert aggregator.flush(at=100.0) == []
    assert aggregator.latest() == {"m": (2, 2.5)}


def test_the_time_of_the_events_is_the_time_of_the_point():
    aggregator = Aggregator([metric()], started=1000.0)
    aggregator.ingest(batch(("m", 1.0, 1, 1234.5)), at=0.0)
    assert aggregator.flush(at=1.0)[0].wall_time == 1234.5


def test_wall_time_axis_counts_whole_seconds_since_the_run_began():
    aggregator = Aggregator([metric(x_axis="wall_time")], started=1000.0, elapsed_before=100.0)
    aggregator.ingest(batch(("m", 1.0, 7, 1002.9)), at=2.9)
    assert aggregator.flush(at=3.0)[0].step == 102


def test_episode_axis_takes_the_number_from_the_context_or_counts():
    aggregator = Aggregator([metric(x_axis="episode")])
    aggregator.ingest(batch(("m", 1.0, 10, 0.0), ("m", 1.0, 20, 0.0), ("m", 1.0, 30, 0.0, {"episode": 12})), at=0.0)
    assert [point.step for point in aggregator.flush(at=1.0)] == [1, 2, 12]


@pytest.mark.parametrize("days", [-3, 3])
def test_wall_time_axis_goes_on_whatever_was_done_to_the_clock_between_two_attempts(days):
    aggregator = Aggregator([metric(x_axis="wall_time")], started=1000.0)
    aggregator.ingest(batch(("m", 1.0, 1, 1010.0)), at=10.0)
    points = aggregator.flush(at=11.0)
    begins = 1011.0 + 86400 * days
    aggregator.started, aggregator.attempt_started, aggregator.elapsed_before = begins - 11.0, begins, 11.0
    aggregator.ingest(batch(("m", 1.0, 2, begins + 4.0), ("m", 1.0, 3, begins - 1e9)), at=15.0)
    assert [point.step for point in points + aggregator.flush(at=16.0)] == [10, 15, 0]


@pytest.mark.parametrize("time", [math.nan, math.inf, -math.inf, 1e300])
def test_a_time_that_is_no_date_costs_nothing_else(time):
    aggregator = Aggregator([metric(x_axis="wall_time", log_frequency_steps=10)], started=1000.0)
    aggregator.ingest(batch(("m", 1.0, 1, 1010.0), ("m", 1.0, 2, time)), at=0.0)
    assert [point.count for point in aggregator.flush(at=1.0)] == [2]


def test_late_events_are_counted_for_each_metric():
    aggregator = Aggregator([metric("a", log_frequency_steps=10), metric("b", log_frequency_steps=10)])
    aggregator.ingest(batch(*[(name, 1.0, step, 0.0) for step in range(1, 13) for name in "ab"]), at=0.0)
    aggregator.advance(at=1.0)
    assert aggregator.late_by_metric == {}
    aggregator.ingest(batch(("a", 1.0, 3, 0.0), ("a", 1.0, 4, 0.0), ("b", 1.0, 12, 0.0)), at=1.0)
    assert (aggregator.late_by_metric, aggregator.num_late) == ({"a": 2}, 2)
