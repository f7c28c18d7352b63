import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trieye.config import MetricConfig
from trieye.stats.aggregator import MAX_STEP, MAX_UNDECLARED_NAMES, Aggregator
from trieye.stats.batch import EventBatch, EventRow, salvage


def batch(*rows):
    return EventBatch.from_rows([EventRow(*row) for row in rows])


def metric(name="m", **settings):
    return MetricConfig(name=name, **{"aggregation": "count", **settings})


steps = st.one_of(
    st.integers(-5, 60),
    st.integers(1, 400),
    st.sampled_from([1 << 62, (1 << 62) - 1, -(1 << 62), 0]),
)
frequencies = st.sampled_from(
    [
        {"log_frequency_steps": 1},
        {"log_frequency_steps": 7},
        {"log_frequency_steps": 10},
        {"log_frequency_steps": 0, "log_frequency_seconds": 2.0},
        {"log_frequency_steps": 10, "log_frequency_seconds": 2.0},
    ]
)
actions = st.one_of(
    st.tuples(
        st.just("events"), st.lists(st.tuples(st.sampled_from(["train", "env"]), steps), min_size=1, max_size=30)
    ),
    st.tuples(st.just("timer"), st.none()),
    st.tuples(st.just("step"), steps),
    st.tuples(st.just("force"), steps),
    st.tuples(st.just("save and resume"), st.none()),
)


@settings(max_examples=1000, deadline=None)
@given(st.lists(actions, max_size=25), frequencies, frequencies)
def test_events_sent_equal_the_sum_of_counts_over_all_points(stream, train_frequency, env_frequency):
    def fresh():
        return Aggregator([metric("train", **train_frequency), metric("env", **env_frequency)])

    aggregator, points, sent, at = fresh(), [], {"train": 0, "env": 0}, 0.0
    for action, argument in stream:
        at += 0.7
        if action == "events":
            aggregator.ingest(batch(*[(name, 1.0, step, at) for name, step in argument]), at=at)
            for name, _ in argument:
                sent[name] += 1
        elif action == "timer":
            points += aggregator.advance(at=at)
        elif action == "step":
            points += aggregator.advance(at=at, step=argument)
        elif action == "force":
            points += aggregator.flush(at=at, step=argument)
        else:
            state = aggregator.to_state()
            aggregator = fresh()
            aggregator.restore(state, at=at)
    points += aggregator.flush(at=at + 1)
    for name, total in sent.items():
        of_metric = [point for point in points if point.metric == name]
        assert sum(point.value for point in of_metric) == total
        assert sum(point.count for point in of_metric) == total
        assert all(-(1 << 63) <= point.step < 1 << 63 for point in of_metric)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 50), st.floats(-1e9, 1e9)), min_size=1, max_size=80),
    st.sampled_from(["mean", "sum", "min", "max", "std", "count", "latest"]),
    st.integers(1, 12),
    st.integers(1, 80),
)
def test_a_window_equals_the_reducer_over_its_events_however_they_were_batched(events, aggregation, length, size):
    aggregator = Aggregator([metric(aggregation=aggregation, log_frequency_steps=length)])
    for start in range(0, len(events), size):
        aggregator.ingest(batch(*[("m", value, step, 0.0) for step, value in events[start : start + size]]), at=0.0)
    values = {}
    for step, value in events:
        values.setdefault(-(-step // length), []).append((step, value))
    found = {-(-point.step // length): point.value for point in aggregator.flush(at=1.0)}
    assert found.keys() == values.keys()
    for window, pairs in values.items():
        of_window = np.array([value for _, value in pairs])
        top = max(step for step, _ in pairs)
        expected = {
            "mean": of_window.mean(), "sum": of_window.sum(), "min": of_window.min(), "max": of_window.max(),
            "std": of_window.std(), "count": len(of_window),
            "latest": [value for step, value in pairs if step == top][-1],
        }[aggregation]  # fmt: skip
        assert found[window] == pytest.approx(expected, rel=1e-9, abs=1e-4 if aggregation == "std" else 1e-6)


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


def rate(**settings):
    return metric("r", aggregation="rate", rate_numerator_event="done", log_frequency_steps=0, **settings)


def test_a_rate_is_the_sum_since_the_last_point_over_the_seconds_since_then():
    aggregator = Aggregator([rate(log_frequency_seconds=5.0)], undeclared="drop")
    aggregator.ingest(batch(*[("done", 2.0, step, 0.0) for step in range(10)]), at=1.0)
    assert aggregator.advance(at=4.0) == []
    aggregator.ingest(batch(*[("done", 2.0, step, 0.0) for step in range(10, 20)]), at=4.0)
    assert [(point.step, point.value) for point in aggregator.advance(at=5.0)] == [(19, 8.0)]
    aggregator.ingest(batch(("done", 12.0, 20, 0.0)), at=8.0)
    assert [point.value for point in aggregator.advance(at=11.0)] == [2.0]


def test_an_idle_rate_says_zero_once():
    aggregator = Aggregator([rate(log_frequency_seconds=5.0)], undeclared="drop")
    aggregator.ingest(batch(("done", 1.0, 3, 0.0)), at=1.0)
    values = [[point.value for point in aggregator.advance(at=at)] for at in (5.0, 9.0, 10.0, 15.0, 20.0)]
    assert values == [[0.2], [], [0.0], [], []]


def test_sums_are_exact():
    for value in (123456.9, 250000.75, 3e-9):
        aggregator = Aggregator([metric(aggregation="sum")])
        aggregator.ingest(batch(("m", value, 1, 0.0)), at=0.0)
        assert aggregator.flush(at=1.0)[0].value == value


def test_non_finite_values_are_counted_and_cost_nothing_else(caplog):
    aggregator = Aggregator([metric(aggregation="sum", log_frequency_steps=10)])
    aggregator.ingest(batch(*[("m", value, 1, 0.0) for value in (1.0, math.nan, math.inf, 2.0)]), at=0.0)
    points = {point.metric: point.value for point in aggregator.flush(at=1.0)}
    assert points == {"m": 3.0, "trieye/dropped/non_finite": 2.0}
    assert sum("non_finite" in record.message for record in caplog.records) == 1


def test_a_sum_beyond_the_range_of_a_float_is_logged_as_the_largest_float():
    aggregator = Aggregator([metric(aggregation="sum")])
    aggregator.ingest(batch(("m", 1.7e308, 1, 0.0), ("m", 1.7e308, 1, 0.0)), at=0.0)
    assert math.isfinite(aggregator.flush(at=1.0)[0].value)


def test_undeclared_names_become_means_at_every_step():
    aggregator = Aggregator([], undeclared="auto")
    aggregator.ingest(batch(("new", 1.0, 5, 0.0), ("new", 3.0, 5, 0.0)), at=0.0)
    assert [(point.metric, point.step, point.value) for point in aggregator.flush(at=1.0)] == [("new", 5, 2.0)]


@pytest.mark.parametrize("policy", ["warn", "drop"])
def test_undeclared_names_can_be_refused_and_are_counted(policy, caplog):
    aggregator = Aggregator([metric()], undeclared=policy)
    aggregator.ingest(batch(*[("nwe", 1.0, step, 0.0) for step in range(3)]), at=0.0)
    assert [(point.metric, point.value) for point in aggregator.flush(at=1.0)] == [("trieye/dropped/undeclared", 3.0)]
    assert any("nwe" in record.message for record in caplog.records) == (policy == "warn")


def test_undeclared_names_are_bounded():
    aggregator = Aggregator([], undeclared="auto")
    names = [f"m{number}" for number in range(MAX_UNDECLARED_NAMES + 5)]
    aggregator.ingest(batch(*[(name, 1.0, 1, 0.0) for name in names]), at=0.0)
    points = aggregator.flush(at=1.0)
    assert len(points) == MAX_UNDECLARED_NAMES + 1
    assert points[-1].value == 5.0


def test_values_come_from_the_context_and_other_events_are_not_meant_for_the_metric():
    aggregator = Aggregator([metric("score", raw_event_name="episode_end", context_key="score", aggregation="mean")])
    rows = [("episode_end", 1.0, 1, 0.0, context) for context in ({"score": 3}, {"length": 9}, {"score": "x"}, None)]
    aggregator.ingest(batch(*rows, ("episode_end", math.nan, 1, 0.0, {"score": 5})), at=0.0)
    points = {point.metric: point.value for point in aggregator.flush(at=1.0)}
    assert points == {"score": 4.0, "trieye/dropped/context": 1.0}


def test_several_metrics_read_one_event():
    aggregator = Aggregator(
        [metric("low", raw_event_name="e", aggregation="min"), metric("high", raw_event_name="e", aggregation="max")]
    )
    aggregator.ingest(batch(("e", 1.0, 1, 0.0), ("e", 2.0, 1, 0.0)), at=0.0)
    assert {point.metric: point.value for point in aggregator.flush(at=1.0)} == {"low": 1.0, "high": 2.0}


def test_a_step_out_of_range_is_counted_and_its_neighbors_are_kept():
    aggregator = Aggregator([metric(aggregation="sum", log_frequency_steps=10)])
    aggregator.ingest(batch(("m", 1.0, MAX_STEP + 1, 0.0), ("m", 2.0, 4, 0.0)), at=0.0)
    points = {point.metric: point.value for point in aggregator.flush(at=1.0)}
    assert points == {"m": 2.0, "trieye/dropped/step_out_of_range": 1.0}


def test_rows_that_no_batch_can_hold_are_named_and_the_others_kept():
    good = EventRow("m", 1.0, 1, 0.0)
    rows = [good, EventRow("m", 10**400, 1, 0.0), EventRow("m", 1.0, 1 << 70, 0.0), EventRow("m", "x", 1, 0.0)]
    with pytest.raises((OverflowError, ValueError)):
        EventBatch.from_rows(rows)
    assert salvage(rows) == ([good], [("non_finite", "m"), ("step_out_of_range", "m"), ("invalid", "m")])


def test_the_time_of_the_events_is_the_time_of_the_point():
    aggregator = Aggregator([metric()], started=1000.0)
    aggregator.ingest(batch(("m", 1.0, 1, 1234.5)), at=0.0)
    assert aggregator.flush(at=1.0)[0].wall_time == 1234.5


def test_wall_time_axis_counts_whole_seconds_since_the_run_began():
    aggregator = Aggregator([metric(x_axis="wall_time")], started=1000.0, run_created=900.0)
    aggregator.ingest(batch(("m", 1.0, 7, 1002.9)), at=2.9)
    assert aggregator.flush(at=3.0)[0].step == 102


def test_episode_axis_takes_the_number_from_the_context_or_counts():
    aggregator = Aggregator([metric(x_axis="episode")])
    aggregator.ingest(batch(("m", 1.0, 10, 0.0), ("m", 1.0, 20, 0.0), ("m", 1.0, 30, 0.0, {"episode": 12})), at=0.0)
    assert [point.step for point in aggregator.flush(at=1.0)] == [1, 2, 12]


def test_open_windows_go_on_in_another_attempt():
    declared = [metric(log_frequency_steps=10)]
    first = Aggregator(declared)
    first.ingest(batch(*[("m", 1.0, step, 0.0) for step in range(1, 8)]), at=0.0)
    second = Aggregator(declared)
    second.restore(first.to_state(), at=0.0)
    second.ingest(batch(*[("m", 1.0, step, 0.0) for step in range(8, 12)]), at=0.0)
    assert [(point.step, point.value) for point in second.advance(at=1.0)] == [(10, 10.0)]


def test_summary_holds_the_extremes_over_attempts():
    first = Aggregator([metric(aggregation="mean")])
    first.ingest(batch(*[("m", value, step, 0.0) for step, value in enumerate((3.0, 9.0, 5.0))]), at=0.0)
    first.flush(at=1.0)
    second = Aggregator([metric(aggregation="mean")])
    second.restore(first.to_state(), at=0.0)
    second.ingest(batch(("m", 4.0, 3, 0.0)), at=0.0)
    second.flush(at=1.0)
    assert second.summary["m"] == {"last": 4.0, "min": 3.0, "max": 9.0, "step": 3}


@pytest.mark.parametrize(
    "context",
    [
        {"score": 10**400},
        {"score": [1]},
        {"score": "x"},
        {"episode": 10**30, "score": 1.0},
        {"episode": 1 << 64, "score": 1.0},
    ],
)
def test_no_context_costs_the_neighbors_of_its_event(context):
    aggregator = Aggregator([metric("n"), metric("s", raw_event_name="n", context_key="score", x_axis="episode")])
    aggregator.ingest(batch(("n", 1.0, 1, 0.0), ("n", 1.0, 1, 0.0, context), ("n", 1.0, 1, 0.0)), at=0.0)
    assert {point.metric: point.value for point in aggregator.flush(at=1.0)}["n"] == 3.0


@pytest.mark.parametrize("name", ["", "\ud800"])
def test_a_name_that_nothing_can_show_is_counted(name):
    aggregator = Aggregator([])
    aggregator.ingest(batch((name, 1.0, 1, 0.0), ("good", 1.0, 1, 0.0)), at=0.0)
    points = {point.metric: point.value for point in aggregator.flush(at=1.0)}
    assert points == {"good": 1.0, "trieye/dropped/unnamed": 1.0}


def test_a_state_of_this_attempt_is_not_counted_twice():
    aggregator = Aggregator([metric(log_frequency_steps=10)])
    aggregator.ingest(batch(*[("m", 1.0, step, 0.0) for step in range(1, 6)]), at=0.0)
    aggregator.restore(aggregator.to_state(), at=0.0)
    assert [point.value for point in aggregator.flush(at=1.0)] == [5.0]


def test_what_came_before_the_first_restore_is_added_and_a_second_restore_replaces():
    first = Aggregator([metric(log_frequency_steps=10)])
    first.ingest(batch(*[("m", 1.0, step, 0.0) for step in range(1, 6)]), at=0.0)
    second = Aggregator([metric(log_frequency_steps=10)])
    second.ingest(batch(("m", 1.0, 6, 0.0)), at=0.0)
    second.restore(first.to_state(), at=0.0)
    second.restore(first.to_state(), at=0.0)
    assert [point.value for point in second.flush(at=1.0)] == [5.0]
    third = Aggregator([metric(log_frequency_steps=10)])
    third.ingest(batch(("m", 1.0, 6, 0.0)), at=0.0)
    third.restore(first.to_state(), at=0.0)
    assert [point.value for point in third.flush(at=1.0)] == [6.0]


@pytest.mark.parametrize("length", [1, 7, 100])
def test_windows_of_another_length_are_taken_over(length):
    first = Aggregator([metric(log_frequency_steps=10)])
    first.ingest(batch(*[("m", 1.0, step, 0.0) for step in range(1, 18)]), at=0.0)
    first.advance(at=0.5)
    second = Aggregator([metric(log_frequency_steps=length)])
    second.restore(first.to_state(), at=0.0)
    second.ingest(batch(*[("m", 1.0, step, 0.0) for step in range(18, 31)]), at=0.0)
    points = second.flush(at=1.0)
    assert sum(point.value for point in points) == 20.0  # those after the window that was logged as step 10
    assert [point.step for point in points] == sorted(point.step for point in points)


def test_windows_of_another_aggregation_are_logged_as_they_are():
    first = Aggregator([metric(aggregation="mean", log_frequency_steps=10)])
    first.ingest(batch(("m", 2.0, 1, 0.0), ("m", 4.0, 2, 0.0)), at=0.0)
    second = Aggregator([metric(aggregation="latest", log_frequency_steps=10)])
    second.restore(first.to_state(), at=0.0)
    second.ingest(batch(("m", 7.0, 3, 0.0)), at=0.0)
    assert [(point.step, point.value) for point in second.flush(at=1.0)] == [(2, 3.0), (3, 7.0)]


def test_a_rate_begins_anew_in_another_attempt():
    first = Aggregator([rate(log_frequency_seconds=5.0)], undeclared="drop")
    first.ingest(batch(*[("done", 1000.0, step, 0.0) for step in range(10)]), at=4.9)
    second = Aggregator([rate(log_frequency_seconds=5.0)], undeclared="drop")
    second.restore(first.to_state(), at=0.0)
    second.ingest(batch(("done", 10.0, 11, 0.0)), at=1.0)
    assert [point.value for point in second.advance(at=5.0)] == [2.0]
