import json
import math
import sys

import numpy as np
import pytest

from tests.stats.conftest import batch, metric, restored, values_of
from trieye.stats.aggregator import MAX_STEP, MAX_UNDECLARED_NAMES, Aggregator
from trieye.stats.batch import MAX_NAME_LENGTH, EventBatch
from trieye.stats.windows import MetricWindows

LONGEST = "n" * MAX_NAME_LENGTH


@pytest.mark.parametrize(
    ("reason", "invalid"),
    [
        ("non_finite", [("m", value, 1, 0.0) for value in (math.nan, math.inf)]),
        ("step_out_of_range", [("m", 1.0, MAX_STEP + 1, 0.0)]),
        ("unnamed", [(name, 1.0, 1, 0.0) for name in ("", "\ud800")]),
        ("name_too_long", [(LONGEST + "n", 1.0, 1, 0.0)]),
    ],
)
def test_invalid_events_are_counted_with_one_warning_per_name_and_affect_no_others(reason, invalid, caplog):
    aggregator = Aggregator([metric(aggregation="sum", log_frequency_steps=10)])
    aggregator.ingest(batch(("m", 1.0, 1, 0.0), *invalid, (LONGEST, 1.0, 1, 0.0), ("m", 2.0, 4, 0.0)), at=0.0)
    points = values_of(aggregator.flush(at=1.0))
    assert points == {"m": 3.0, LONGEST: 1.0, f"trieye/dropped/{reason}": float(len(invalid))}
    assert sum(f"({reason})" in record.message for record in caplog.records) == len({name for name, *_ in invalid})


def test_the_points_of_open_windows_are_read_without_closing_them():
    aggregator = Aggregator([metric(aggregation="sum", log_frequency_steps=10)])
    aggregator.ingest(batch(("m", 1.0, 1, 0.0), ("m", 2.0, 2, 0.0), ("m", math.nan, 3, 0.0)), at=0.0)
    read = aggregator.if_closed(at=1.0)
    assert values_of(read) == {"m": 3.0, "trieye/dropped/non_finite/m": 1.0}
    assert [point for point in aggregator.flush(at=1.0) if point.metric != "trieye/dropped/non_finite"] == read


@pytest.mark.parametrize(("length", "num_warnings"), [(1, 1), (10, 0)])
def test_a_counter_that_restarts_causes_one_warning(length, num_warnings, caplog):
    aggregator = Aggregator([metric(log_frequency_steps=length)])
    for epoch in range(3):
        aggregator.ingest(batch(*[("m", 1.0, step, 0.0) for step in range(30)]), at=float(epoch))
        aggregator.advance(at=float(epoch))
    assert sum("log at steps that increase" in record.message for record in caplog.records) == num_warnings


def test_a_value_at_the_step_of_a_closed_window_causes_no_warning_about_lower_steps(caplog):
    aggregator = Aggregator([metric()])
    for value in (1.0, 3.0):  # two updates between environment steps, and a checkpoint after the first
        aggregator.ingest(batch(("m", value, 5, 0.0)), at=0.0)
        aggregator.flush(at=0.0)
    assert not caplog.records
    aggregator.ingest(batch(("m", 1.0, 4, 0.0)), at=0.0)
    assert "lower steps" in caplog.text


def test_steps_after_a_step_back_are_new_instead_of_late():
    aggregator = Aggregator([metric(aggregation="mean", log_frequency_steps=10)])
    aggregator.ingest(batch(*[("m", 1.0, step, 0.0) for step in range(1, 31)]), at=0.0)
    aggregator.flush(at=1.0)
    aggregator.go_back(11)
    aggregator.ingest(batch(*[("m", 5.0, step, 2.0) for step in range(11, 22)]), at=2.0)
    assert [(point.step, point.value, point.count) for point in aggregator.advance(at=2.0)] == [(20, 5.0, 10)]


def test_an_attempt_that_repeats_steps_of_a_metric_closes_the_windows_of_this_metric_alone():
    aggregator = Aggregator([metric(name, aggregation="mean", log_frequency_steps=10) for name in ("m", "other")])
    aggregator.ingest(batch(*[(name, 1.0, step, 0.0) for step in range(1, 15) for name in ("m", "other")]), at=0.0)
    points = aggregator.begin_again({"m": 3, "other": 15, "new": 0}, at=1.0)
    assert [(point.metric, point.step) for point in points] == [("m", 10), ("m", 14)]
    aggregator.ingest(batch(*[("m", 5.0, step, 2.0) for step in range(3, 12)]), at=2.0)
    values = {(point.metric, point.step): (point.value, point.count) for point in aggregator.advance(at=2.0)}
    assert values == {("m", 10): (5.0, 8), ("other", 10): (1.0, 10)}


def test_undeclared_names_become_means_at_every_step():
    aggregator = Aggregator([], undeclared="auto")
    aggregator.ingest(batch(("new", 1.0, 5, 0.0), ("new", 3.0, 5, 0.0)), at=0.0)
    assert [(point.metric, point.step, point.value) for point in aggregator.flush(at=1.0)] == [("new", 5, 2.0)]


@pytest.mark.parametrize("policy", ["warn", "drop"])
def test_undeclared_names_can_be_rejected_and_are_counted(policy, caplog):
    aggregator = Aggregator([metric()], undeclared=policy)
    aggregator.ingest(batch(*[("nwe", 1.0, step, 0.0) for step in range(3)]), at=0.0)
    (dropped,) = aggregator.flush(at=1.0)
    assert (dropped.metric, dropped.value, dropped.count) == ("trieye/dropped/undeclared", 3.0, 0)
    assert any("nwe" in record.message for record in caplog.records) == (policy == "warn")


def test_names_beyond_the_limit_are_dropped_with_a_warning_that_states_the_limit(caplog):
    aggregator = Aggregator([])
    names = tuple(f"name/{number}" for number in range(MAX_UNDECLARED_NAMES + 1))
    column = np.zeros(len(names))
    aggregator.ingest(
        EventBatch(names, np.arange(len(names), dtype=np.int32), column, column.astype(np.int64), column), at=0.0
    )
    assert aggregator.drops.by_reason == {"undeclared": 1}
    (warning,) = caplog.messages
    assert names[-1] in warning
    assert f"accepts {MAX_UNDECLARED_NAMES:,} names" in warning


def test_context_values_are_read_only_from_events_with_the_key():
    aggregator = Aggregator([metric("score", raw_event_name="episode_end", context_key="score", aggregation="mean")])
    rows = [("episode_end", 1.0, 1, 0.0, context) for context in ({"score": 3}, {"length": 9}, {"score": "x"}, None)]
    aggregator.ingest(batch(*rows, ("episode_end", math.nan, 1, 0.0, {"score": 5})), at=0.0)
    points = values_of(aggregator.flush(at=1.0))
    assert points == {"score": 4.0, "trieye/dropped/context": 1.0}


@pytest.mark.parametrize(
    "context", [{"score": 10**400}, {"score": [1]}, {"score": "x"}, {"episode": 10**30, "score": 1.0}]
)
def test_an_invalid_context_affects_no_other_events(context):
    aggregator = Aggregator([metric("n"), metric("s", raw_event_name="n", context_key="score", x_axis="episode")])
    aggregator.ingest(batch(("n", 1.0, 1, 0.0), ("n", 1.0, 1, 0.0, context), ("n", 1.0, 1, 0.0)), at=0.0)
    assert values_of(aggregator.flush(at=1.0))["n"] == 3.0


def test_a_non_finite_event_read_by_several_metrics_is_counted_once():
    readers = [metric(name, raw_event_name="e") for name in ("a", "b", "c")]
    from_context = [metric(key, raw_event_name="e", context_key=key) for key in ("x", "y")]
    aggregator = Aggregator(readers + from_context)
    aggregator.ingest(batch(("e", math.nan, 1, 0.0, {"x": math.inf, "y": 1.0}), ("e", 1.0, 1, 0.0)), at=0.0)
    points = values_of(aggregator.flush(at=1.0))
    counts = {"trieye/dropped/non_finite": 2.0, "trieye/dropped/non_finite/x": 1.0}
    assert points == {"a": 1.0, "b": 1.0, "c": 1.0, "y": 1.0, **counts}


def test_non_finite_metrics_are_reported_with_their_step_after_a_restore():
    first = Aggregator([metric(), metric("n")])
    values = [("m", 1.0, 5, 0.0), ("m", math.nan, 6, 3.0), ("m", math.inf, 7, 4.0), ("n", math.nan, 6, 0.0)]
    first.ingest(batch(*values, ("n", 2.0, 7, 0.0)), at=0.0)
    second = restored(first, [metric(), metric("n")])
    points = {point.metric: point for point in second.flush(at=1.0)}
    assert points.keys() == {"m", "n", "trieye/dropped/non_finite", "trieye/dropped/non_finite/m"}
    drop = points["trieye/dropped/non_finite/m"]
    assert (drop.value, drop.step, drop.wall_time, drop.count) == (2.0, 6, 3.0, 0)
    assert second.flush(at=2.0) == []


def test_an_event_named_like_another_events_metric_is_undeclared():
    aggregator = Aggregator([metric("score", raw_event_name="episode_end", log_frequency_steps=10)])
    aggregator.ingest(batch(("episode_end", 1.0, 1, 0.0)), at=0.0)
    aggregator.ingest(batch(("score", 1.0, 1, 0.0)), at=0.0)
    aggregator.ingest(batch(("episode_end", 1.0, 2, 0.0)), at=0.0)
    points = values_of(aggregator.flush(at=1.0))
    assert points == {"score": 2.0, "trieye/dropped/undeclared": 1.0}


@pytest.mark.long
@pytest.mark.parametrize("undeclared", ["auto", "drop"])
@pytest.mark.slow
def test_memory_is_bounded_for_unbounded_numbers_of_names(undeclared, caplog):
    aggregator, sent, size = Aggregator([], undeclared=undeclared), 60_000, 20_000
    for begin in range(0, sent, size):
        names = tuple(f"{begin + number}/{'x' * 50}" for number in range(size))
        column = np.zeros(size)
        codes = np.arange(size, dtype=np.int32)
        aggregator.ingest(EventBatch(names, codes, column, column.astype(np.int64), column), at=0.0)
        del names
        if begin == 0:
            aggregator.flush(at=0.0)
            blocks = sys.getallocatedblocks()
    assert sys.getallocatedblocks() - blocks < 10_000
    num_accepted = MAX_UNDECLARED_NAMES if undeclared == "auto" else 0
    assert aggregator.drops.by_reason == {"undeclared": sent - num_accepted}
    assert len(caplog.messages) <= 100
    assert len(json.dumps(aggregator.to_state())) < 1000 * num_accepted + 1000


def test_context_keys_lists_the_keys_that_metrics_read():
    assert Aggregator([metric()]).context_keys == frozenset()
    declared = [metric("a", context_key="score"), metric("b", context_key="length"), metric("c", x_axis="episode")]
    assert Aggregator(declared).context_keys == {"score", "length", "episode"}


def test_highest_step_covers_all_metrics():
    aggregator = Aggregator([metric()])
    assert aggregator.highest_step == -1
    aggregator.ingest(batch(("m", 1.0, 7, 0.0), ("new", 1.0, 9, 0.0)), at=0.0)
    assert aggregator.highest_step == 9


def test_a_failing_metric_drops_and_counts_only_its_own_events(monkeypatch):
    aggregator = Aggregator([metric(name=name, raw_event_name="loss") for name in ("first", "bad", "last")])
    add = MetricWindows.add

    def failing(windows, *columns, **options):
        if windows.config.name == "bad":
            raise RuntimeError("unexpected")
        add(windows, *columns, **options)

    monkeypatch.setattr(MetricWindows, "add", failing)
    aggregator.ingest(batch(*(("loss", 1.0, step, 0.0) for step in (1, 2, 3)), ("other", 1.0, 1, 0.0)), at=0.0)
    assert {point.metric for point in aggregator.flush(at=1.0)} == {"first", "last", "other", "trieye/dropped/invalid"}
    assert aggregator.drops.by_reason == {"invalid": 3}
