from tests.stats.conftest import batch, rate
from trieye.stats.aggregator import Aggregator


def test_a_rate_is_the_sum_since_the_last_point_over_the_seconds_since_then():
    aggregator = Aggregator([rate(log_frequency_seconds=5.0)], undeclared="drop")
    aggregator.ingest(batch(*[("done", 2.0, step, 0.0) for step in range(10)]), at=1.0)
    assert aggregator.advance(at=4.0) == []
    aggregator.ingest(batch(*[("done", 2.0, step, 0.0) for step in range(10, 20)]), at=4.0)
    assert [(point.step, point.value) for point in aggregator.advance(at=5.0)] == [(19, 8.0)]
    aggregator.ingest(batch(("done", 12.0, 20, 0.0)), at=8.0)
    assert [point.value for point in aggregator.advance(at=11.0)] == [2.0]


def test_a_rate_goes_on_in_another_attempt_with_the_time_that_the_first_one_measured():
    first = Aggregator([rate(log_frequency_seconds=5.0)], undeclared="drop", started=1000.0)
    first.ingest(batch(*[("done", 3.0, step, 0.0) for step in range(10)]), at=4.0)
    second = Aggregator([rate(log_frequency_seconds=5.0)], undeclared="drop", started=9000.0, attempt_started=9004.0)
    second.restore(first.to_state())
    second.ingest(batch(("done", 20.0, 11, 0.0)), at=5.0)
    assert [point.value for point in second.advance(at=5.0)] == [10.0]
    assert [point.wall_time for point in second.advance(at=10.0)] == [9010.0]


def test_a_rate_of_a_later_attempt_that_has_no_past_is_measured_from_its_beginning():
    aggregator = Aggregator([rate(log_frequency_seconds=5.0)], undeclared="drop")
    aggregator.started, aggregator.attempt_started = 8000.0, 8500.0
    aggregator.ingest(batch(("done", 10.0, 1, 0.0)), at=501.0)
    assert aggregator.advance(at=504.9) == []
    assert [point.value for point in aggregator.advance(at=505.0)] == [2.0]
