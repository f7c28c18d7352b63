import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stats.conftest import batch, metric, rate, restored
from tests.stats.test_windows import actions, fresh, metrics
from trieye.stats.aggregator import MAX_UNDECLARED_NAMES, Aggregator
from trieye.stats.windows import AttemptTimes


def test_the_summary_has_the_extremes_of_all_attempts():
    first = Aggregator([metric(aggregation="mean")])
    first.ingest(batch(*[("m", value, step, 0.0) for step, value in enumerate((3.0, 9.0, 5.0))]), at=0.0)
    first.flush(at=1.0)
    second = restored(first, [metric(aggregation="mean")])
    second.ingest(batch(("m", 4.0, 3, 0.0)), at=0.0)
    second.flush(at=1.0)
    assert second.summary["m"] == {"last": 4.0, "min": 3.0, "max": 9.0, "step": 3}


@pytest.mark.parametrize("length", [1, 7, 100])
def test_open_windows_continue_with_another_length(length):
    first = Aggregator([metric(log_frequency_steps=10)])
    first.ingest(batch(*[("m", 1.0, step, 0.0) for step in range(1, 18)]), at=0.0)
    first.advance(at=0.5)
    second = restored(first, [metric(log_frequency_steps=length)])
    second.ingest(batch(*[("m", 1.0, step, 0.0) for step in range(18, 31)]), at=0.0)
    points = second.flush(at=1.0)
    assert sum(point.value for point in points) == 20.0  # without the window that was logged at step 10
    assert [point.step for point in points] == sorted(point.step for point in points)


def test_open_windows_of_another_aggregation_are_logged_unchanged():
    first = Aggregator([metric(aggregation="mean", log_frequency_steps=10)])
    first.ingest(batch(("m", 2.0, 1, 0.0), ("m", 4.0, 2, 0.0)), at=0.0)
    second = restored(first, [metric(aggregation="latest", log_frequency_steps=10)])
    second.ingest(batch(("m", 7.0, 3, 0.0)), at=0.0)
    assert [(point.step, point.value) for point in second.flush(at=1.0)] == [(2, 3.0), (3, 7.0)]


def aggregator_with_events(*numbers, **settings):
    """Return an aggregator with one event at each of the steps."""
    aggregator = Aggregator([metric(**{"log_frequency_steps": 10, **settings})])
    aggregator.ingest(batch(*[("m", 1.0, number, 0.0) for number in numbers]), at=0.0)
    return aggregator


def test_restoring_an_empty_state_resets_the_aggregator():
    aggregator = aggregator_with_events(1, 2)
    aggregator.ingest(batch(("other", 1.0, 1, 0.0), ("other", float("inf"), 1, 0.0)), at=0.0)
    aggregator.restore({})
    assert aggregator.to_state() == Aggregator([metric(log_frequency_steps=10)]).to_state()
    assert aggregator.flush(at=1.0) == []


@pytest.mark.long
def test_undeclared_metrics_keep_their_order_and_limit_after_a_restore():
    first = Aggregator([metric("declared")])
    names = [f"m{number * 7919 % 10_007}" for number in range(MAX_UNDECLARED_NAMES - 1)]
    first.ingest(batch(("nan", float("nan"), 1, 0.0), *[(name, 1.0, 1, 0.0) for name in names]), at=0.0)
    second = restored(first, [metric("declared")])
    more = batch(("declared", 1.0, 1, 0.0), ("too many", 1.0, 1, 0.0), ("nan", 2.0, 1, 0.0))
    second.ingest(more, at=0.0)
    points = second.flush(at=1.0)
    assert [point.metric for point in points] == [
        "declared", "nan", *names, "trieye/dropped/non_finite", "trieye/dropped/undeclared",
    ]  # fmt: skip


@pytest.mark.parametrize(("undeclared", "metric_names"), [("auto", ["m"]), ("warn", []), ("drop", [])])
def test_removed_metrics_are_restored_only_if_undeclared_names_are_accepted(undeclared, metric_names):
    second = Aggregator([metric("n")], undeclared=undeclared)
    second.restore(aggregator_with_events(1, 2).to_state())
    assert [point.metric for point in second.flush(at=1.0)] == metric_names


def test_restored_journal_times_are_shifted_to_the_new_attempt():
    settings = {"log_frequency_steps": 0, "log_frequency_seconds": 5.0}
    first = Aggregator([metric(**settings), rate(log_frequency_seconds=5.0)])
    first.ingest(batch(("m", 1.0, 1, 0.0), ("done", 20.0, 1, 0.0)), at=103.0)
    second = restored(first, [metric(**settings), rate(log_frequency_seconds=5.0)], shift_s=7.0 - 104.0)
    assert second.advance(at=10.9)[0].metric == "r"  # 107.9 s after the start
    assert second.advance(at=11.0)[0].metric == "m"


def test_a_longer_time_window_still_counts_from_its_opening():
    first = Aggregator([metric(log_frequency_steps=0, log_frequency_seconds=5.0)])
    first.ingest(batch(("m", 1.0, 1, 0.0)), at=2.0)
    second = restored(first, [metric(log_frequency_steps=0, log_frequency_seconds=20.0)])
    assert second.advance(at=21.9) == []
    assert len(second.advance(at=22.0)) == 1


@pytest.mark.parametrize(
    ("before", "value"),
    [("quantile", 4.0), ("ema", (0.125 * 2.0 + 0.25 * 4.0 + 0.5 * 6.0) / 0.875), ("std", (8 / 3) ** 0.5)],
)
def test_open_windows_become_points_if_the_aggregation_changes(before, value):
    first = Aggregator([metric(aggregation=before, ema_alpha=0.5, log_frequency_steps=10)])
    first.ingest(batch(("m", 2.0, 1, 0.0), ("m", 4.0, 2, 0.0), ("m", 6.0, 3, 0.0)), at=0.0)
    second = restored(first, [metric(aggregation="mean", log_frequency_steps=10)])
    assert second.waits_for_time
    third = restored(second, [metric(aggregation="mean", log_frequency_steps=10)])
    (point,) = third.advance(at=1.0)
    assert (point.step, point.count) == (3, 3)
    assert point.value == pytest.approx(value)
    assert not third.waits_for_time


@pytest.mark.parametrize("aggregation", ["count", "std"])
def test_late_events_become_a_point_after_a_restore_even_if_the_aggregation_changes(aggregation):
    first = aggregator_with_events(*range(1, 11))
    first.flush(at=1.0)
    first.ingest(batch(("m", 7.0, 3, 0.0)), at=1.0)
    second = restored(first, [metric(aggregation=aggregation, log_frequency_steps=10)])
    assert [(point.step, point.value) for point in second.flush(at=2.0)] == [(10, 1.0)]


def test_an_event_of_a_window_closed_before_a_restore_is_late():
    first = aggregator_with_events(*range(1, 12))
    assert [point.step for point in first.flush(at=1.0)] == [10, 11]
    second = restored(first, [metric(log_frequency_steps=10)])
    second.ingest(batch(("m", 7.0, 3, 0.0), ("m", 1.0, 25, 0.0)), at=2.0)
    assert [(point.step, point.count) for point in second.flush(at=3.0)] == [(25, 2)]


@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(["mean", "rate", "quantile", "ema"], 2)))
@pytest.mark.parametrize("length", [0, 10])
def test_any_aggregation_can_replace_any_other(before, after, length):
    first, second = (
        Aggregator([metric(aggregation=aggregation, rate_numerator_event="m", log_frequency_steps=length)])
        for aggregation in (before, after)
    )
    first.ingest(batch(*[("m", 2.0, step, 0.0) for step in range(1, 16)]), at=1.0)
    second.restore(first.to_state())
    second.ingest(batch(*[("m", 2.0, step, 0.0) for step in range(16, 26)]), at=2.0)
    points = second.flush(at=4.0)
    unfinished = 15 if before == "rate" else 0
    assert sum(point.count for point in points) == (25 - unfinished if length else 0)
    assert second.to_state()


def test_a_changed_quantile_applies_to_restored_values_too():
    first = Aggregator([metric(aggregation="quantile", quantile=0.5, log_frequency_steps=10)])
    first.ingest(batch(("m", 1.0, 1, 0.0), ("m", 2.0, 2, 0.0)), at=0.0)
    second = restored(first, [metric(aggregation="quantile", quantile=1.0, log_frequency_steps=10)])
    second.ingest(batch(("m", 0.0, 3, 0.0)), at=0.0)
    assert [point.value for point in second.flush(at=1.0)] == [2.0]


@pytest.mark.parametrize("state", [{"windows": {"m": {}, "r": {}, "q": {}, "e": {}}}, {"drops": {}}, {"summary": {}}])
def test_a_state_with_missing_keys_can_be_restored(state):
    quantile, ema = metric("q", aggregation="quantile"), metric("e", aggregation="ema")
    aggregator = Aggregator([metric(), rate(log_frequency_seconds=5.0), quantile, ema])
    aggregator.restore(state)
    assert aggregator.late_by_metric == {}
    aggregator.ingest(batch(*[(name, 1.0, 1, 0.0) for name in ("m", "q", "e", "done")]), at=1.0)
    assert len(aggregator.flush(at=5.0)) == 4


def test_remember_widens_the_extremes_of_the_summary():
    aggregator = aggregator_with_events(1, 2)
    aggregator.flush(at=1.0)
    gone = {"last": 1.0, "min": 1.0, "max": 1.0, "step": 1}
    aggregator.remember({"m": {"last": 9.0, "min": 0.5, "max": 9.0, "step": 1}, "gone": gone})
    assert aggregator.summary["m"] == {"last": 2.0, "min": 0.5, "max": 9.0, "step": 2}
    assert aggregator.summary["gone"] == gone


@pytest.mark.long
@given(metrics(), st.lists(actions, max_size=12))
def test_waits_for_time_predicts_points_of_a_flush_without_events(declared, stream):
    aggregator = fresh(declared)
    at = 0.0
    for action, argument in stream:
        if action == "events":
            aggregator.ingest(batch(*[("e", value, step, time) for step, value, time in argument]), at=at)
        elif action == "flush":
            aggregator.flush(at=at, step=argument)
        elif action == "wait":
            at += argument
        aggregator.advance(at=at)
    waits, before = aggregator.waits_for_time, msgspec.msgpack.encode(aggregator.to_state())
    points = aggregator.advance(at=at + 1e6)
    assert bool(points) == waits
    if not waits:
        assert msgspec.msgpack.encode(aggregator.to_state()) == before


def test_unreported_drops_wait_for_the_next_flush_at_the_time_of_the_attempt():
    aggregator = Aggregator([], times=AttemptTimes(7000.0))
    assert not aggregator.waits_for_time
    aggregator.drops.add("overflow", "*", 3)
    assert aggregator.waits_for_time
    assert [(point.value, point.wall_time) for point in aggregator.advance(at=5.0)] == [(3.0, 7005.0)]
    assert not aggregator.waits_for_time


def test_a_new_attempt_without_open_windows_has_no_points():
    assert Aggregator([metric()]).begin_again({"m": 1}, at=1.0) == []


def test_the_axis_of_a_metric_is_that_of_its_config():
    aggregator = Aggregator([metric("by_step"), metric("by_time", x_axis="wall_time")])
    axes = [aggregator.axis_of(name) for name in ("by_step", "by_time", "unknown")]
    assert axes == ["global_step", "wall_time", "global_step"]
