import math
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stats.conftest import batch, metric
from tests.stats.reference import ELAPSED_BEFORE, STARTED, Reference
from trieye.config import AggregationMethod, MetricConfig
from trieye.stats.aggregator import Aggregator
from trieye.stats.windows import AttemptTimes

AGGREGATIONS = [name for name in get_args(AggregationMethod) if name != "each"]
"""All that aggregate windows; `each` makes every event a point."""

steps = st.one_of(
    st.integers(-5, 60),
    st.integers(1, 400),
    st.sampled_from([1 << 62, (1 << 62) - 1, -(1 << 62), 0]),
)
values = st.floats(-1e9, 1e9).map(lambda value: round(value, 6)) | st.integers(-3, 3).map(float)
rows = st.lists(st.tuples(steps, values, st.floats(900, 2000)), min_size=1, max_size=30)
actions = st.one_of(
    st.tuples(st.just("events"), rows),
    st.tuples(st.just("events"), rows),
    st.tuples(st.just("advance"), st.none() | steps),
    st.tuples(st.just("flush"), st.none() | steps),
    st.tuples(st.just("wait"), st.integers(0, 90).map(lambda tenths: tenths / 10)),
    st.tuples(st.just("save"), st.sampled_from([0.0, 16.0, -4.0])),
)
frequencies = st.sampled_from([(1, 0.0), (7, 0.0), (10, 0.0), (0, 2.0), (10, 2.0), (0, 0.0)])


@st.composite
def metrics(draw):
    """Draw one metric per aggregation; all read the same events."""
    return [
        MetricConfig(
            name=name,
            raw_event_name="e",
            rate_numerator_event="e",
            aggregation=name,
            log_frequency_steps=length,
            log_frequency_seconds=seconds,
            x_axis=draw(st.sampled_from(["global_step", "wall_time", "episode"])),
            quantile=draw(st.floats(0, 1)),
            ema_alpha=draw(st.floats(0.001, 1)),
        )
        for name in AGGREGATIONS
        for length, seconds in [draw(frequencies)]
    ]


def fresh(declared):
    return Aggregator(declared, times=AttemptTimes(STARTED, STARTED, ELAPSED_BEFORE))


def stored(state):
    """Return a state after a round trip through its file format."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(state))


def play(declared, stream, *, saves):
    """Return the points of all flushes, and the aggregator; with `saves`, a new one replaces it after each save."""
    aggregator, at, points = fresh(declared), 0.0, []
    for action, argument in stream:
        match action:
            case "events":
                aggregator.ingest(batch(*[("e", value, step, time) for step, value, time in argument]), at=at)
            case "advance":
                points.append(aggregator.advance(at=at, step=argument))
            case "flush":
                points.append(aggregator.flush(at=at, step=argument))
            case "wait":
                at += argument
            case "save" if saves:
                state = stored(aggregator.to_state())
                aggregator = fresh(declared)
                aggregator.ingest(batch(("e", 5.0, 3, 0.0), ("other", 1.0, 1, 0.0)), at=at)  # restore discards these
                aggregator.restore(state)
    points.append(aggregator.flush(at=at + 1))
    return points, aggregator


def expected(config, stream):
    reference, at, points = Reference(config), 0.0, []
    for action, argument in stream:
        match action:
            case "events":
                reference.ingest(argument, at)
            case "advance":
                points += reference.advance(at, argument)
            case "flush":
                points += reference.flush(at, argument)
            case "wait":
                at += argument
    return points + reference.flush(at + 1), reference


@given(metrics(), st.lists(actions, max_size=20))
def test_points_match_the_reference_and_survive_saves_bit_exactly(declared, stream):
    passes, aggregator = play(declared, stream, saves=False)
    passes_with_saves, saved = play(declared, stream, saves=True)
    assert passes_with_saves == passes
    assert saved.to_state() == aggregator.to_state()
    assert (saved.summary, saved.num_late) == (aggregator.summary, aggregator.num_late)
    points = [point for points_of_pass in passes for point in points_of_pass]
    largest = max((abs(row[1]) for action, argument in stream if action == "events" for row in argument), default=1.0)
    for config in declared:
        actual = [(p.step, p.value, p.count, p.wall_time) for p in points if p.metric == config.name]
        reference_points, reference = expected(config, stream)
        assert [(step, count, time) for step, _, count, time in actual] == [
            (step, count, time) for step, _, count, time in reference_points
        ]
        is_exact = config.aggregation in {"min", "max", "count", "latest"}
        tolerance = 0.0 if is_exact else 1e-9 * (1e3 * largest if config.aggregation == "std" else largest)
        assert [value for _, value, _, _ in actual] == pytest.approx(
            [value for _, value, _, _ in reference_points], rel=0.0 if is_exact else 1e-9, abs=tolerance
        )
        assert aggregator.late_by_metric.get(config.name, 0) == reference.num_late
        if config.log_frequency_steps or config.log_frequency_seconds:
            assert sum(count for _, _, count, _ in actual) == reference.num_events


def test_an_overflowing_sum_is_logged_as_the_largest_float():
    aggregator = Aggregator([metric(aggregation="sum")])
    aggregator.ingest(batch(("m", 1.7e308, 1, 0.0), ("m", 1.7e308, 1, 0.0)), at=0.0)
    assert math.isfinite(aggregator.flush(at=1.0)[0].value)


def test_sums_are_exact():
    for value in (123456.9, 250000.75, 3e-9):
        aggregator = Aggregator([metric(aggregation="sum")])
        aggregator.ingest(batch(("m", value, 1, 0.0)), at=0.0)
        assert aggregator.flush(at=1.0)[0].value == value


@pytest.mark.parametrize("time", [math.nan, math.inf, -math.inf, 1e300])
def test_an_invalid_time_affects_no_other_values(time):
    aggregator = Aggregator([metric(x_axis="wall_time", log_frequency_steps=10)], times=AttemptTimes(1000.0, 1000.0))
    aggregator.ingest(batch(("m", 1.0, 1, 1010.0), ("m", 1.0, 2, time)), at=0.0)
    assert [point.count for point in aggregator.flush(at=1.0)] == [2]


def test_the_episode_axis_uses_the_context_or_counts_episodes():
    aggregator = Aggregator([metric(x_axis="episode")])
    aggregator.ingest(batch(("m", 1.0, 10, 0.0), ("m", 1.0, 20, 0.0), ("m", 1.0, 30, 0.0, {"episode": 12})), at=0.0)
    aggregator.ingest(batch(("m", 1.0, 40, 0.0, {"episode": 13.0})), at=0.0)
    assert [point.step for point in aggregator.flush(at=1.0)] == [1, 2, 12, 13]
