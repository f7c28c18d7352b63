"""Ragged curves on one grid: interpolation, missing ranges, and run counts per point."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trieye.exceptions import ConfigurationError
from trieye.results.aligned import on_grid
from trieye.results.curves import aggregate_curves, area_under_curve
from trieye.results.statistics import aggregate

NAN = np.nan
LONG, SHORT, LATE = ([0, 10, 20], [1.0, 3.0, 2.0]), ([0, 5], [5.0, 6.0]), ([10, 30], [4.0, 8.0])


def gridded(curves, grid, between="linear"):
    """Return the values of curves on a grid, and check the mask."""
    xs, ys = ([np.array(curve[part], np.float64) for curve in curves] for part in (0, 1))
    grid = grid if isinstance(grid, int) else np.array(grid, np.float64)
    _, values, mask = on_grid(xs, ys, grid, between)
    assert np.isnan(values[~mask]).all()
    return values


def test_the_last_value_is_carried_between_steps_and_never_beyond_them():
    expected = [[1, 1, 1, 3, 2, NAN], [5, 6, NAN, NAN, NAN, NAN], [NAN, NAN, NAN, 4, 4, 4]]
    np.testing.assert_array_equal(gridded([LONG, SHORT, LATE], [0, 5, 9, 10, 20, 21], "last"), expected)


def test_lines_between_steps_end_with_the_curve():
    expected = [[1, 2, 3, 2.5, NAN], [5, 6, NAN, NAN, NAN], [NAN, NAN, 4, 5, 7]]
    np.testing.assert_array_equal(gridded([LONG, SHORT, LATE], [0, 5, 10, 15, 25]), expected)


@given(
    steps=st.lists(st.integers(0, 30), max_size=8).map(sorted),
    grid=st.lists(st.integers(-5, 35), min_size=1, max_size=10).map(sorted),
)
def test_a_curve_on_a_grid_is_what_one_reads_off_it(steps, grid):
    values = [float(100 * index + step) for index, step in enumerate(steps)]
    read = [NAN] * len(grid)
    for column, at in enumerate(grid):
        if steps and steps[0] <= at <= steps[-1]:
            read[column] = [value for step, value in zip(steps, values, strict=True) if step <= at][-1]
    np.testing.assert_array_equal(gridded([(steps, values)], grid, "last"), [read])
    linear = gridded([(steps, values)], grid)[0]
    np.testing.assert_array_equal(np.isnan(linear), np.isnan(read))
    at_steps = np.isin(grid, steps)
    np.testing.assert_array_equal(linear[at_steps], np.array(read)[at_steps])


def test_a_diverged_value_is_carried_as_missing():
    curve, grid = ([0, 10, 20, 30], [1.0, NAN, 3.0, NAN]), [0, 5, 10, 15, 20, 25, 30]
    np.testing.assert_array_equal(gridded([curve], grid, "last"), [[1, 1, NAN, NAN, 3, 3, NAN]])
    np.testing.assert_array_equal(gridded([curve], grid), [[1, NAN, NAN, NAN, 3, NAN, NAN]])


@pytest.mark.parametrize("between", ["last", "linear"])
def test_of_values_at_the_same_step_the_last_counts_and_steps_may_come_in_any_order(between):
    np.testing.assert_array_equal(gridded([([0, 10, 10, 20], [0, 7, 1, 2])], [0, 10, 20], between), [[0, 1, 2]])
    np.testing.assert_array_equal(gridded([([20, 10, 0, 10], [2, 7, 0, 1])], [0, 10, 20], between), [[0, 1, 2]])


def test_a_common_grid_spans_all_curves_even_if_one_has_no_point():
    coordinates, values, _ = on_grid(
        [np.array([0.0, 20]), np.zeros(0), None, np.array([10.0, 30])], [np.zeros(2)] * 4, 4
    )
    np.testing.assert_array_equal(coordinates, [0, 10, 20, 30])
    assert values.shape == (4, 4)
    assert [part.shape for part in on_grid([np.zeros(0)], [np.zeros(0)], 4)] == [(0,), (1, 0), (1, 0)]


def test_each_point_is_the_aggregate_of_the_runs_that_reach_it():
    values = np.random.default_rng(0).normal(size=(6, 3, 4))
    values[0, :, 3] = values[1, 2, 1:] = NAN
    band = aggregate_curves(values, [0, 1, 2, 3], "mean", resamples=4000)
    for point in range(4):
        one = aggregate(values[..., point], "mean", resamples=4000)
        assert (band.value[point], band.n[point], band.n_missing[point]) == (one.value, one.n, one.n_missing)
        assert (band.low[point], band.high[point]) == (one.low, one.high)
    assert band.n.tolist() == [18, 17, 17, 14]


def test_where_one_run_is_left_there_is_a_value_but_no_interval_and_without_a_run_neither():
    values = gridded([LONG, LONG, LATE], [0, 10, 25, 40], "last")
    band = aggregate_curves(values, [0, 10, 25, 40], "mean", resamples=50)
    np.testing.assert_array_equal(band.value, [1, 10 / 3, 4, NAN])
    np.testing.assert_array_equal(np.isnan(band.low), [False, False, True, True])
    np.testing.assert_array_equal(np.isnan(band.high), [False, False, True, True])
    np.testing.assert_array_equal(band.n, [2, 3, 1, 0])
    np.testing.assert_array_equal(band.n_missing, [1, 0, 2, 3])


def test_a_point_that_a_task_has_not_reached_has_no_value():
    band = aggregate_curves([[[1.0, 2.0], [3.0, NAN]], [[1.0, 2.0], [5.0, NAN]]], [0, 1], "mean", resamples=50)
    np.testing.assert_array_equal(band.value, [2.5, NAN])


def test_a_seed_determines_the_band_and_the_order_of_runs_does_not():
    values = np.random.default_rng(0).normal(size=(5, 30))
    first, again, other = (
        aggregate_curves(each, np.arange(30), seed=seed, resamples=100)
        for each, seed in [(values, 1), (values[::-1], 1), (values, 2)]
    )
    np.testing.assert_array_equal([first.low, first.high], [again.low, again.high])
    assert (first.low != other.low).any()


def test_the_area_is_that_of_rectangles_or_of_trapezes():
    values = [[1.0, 3.0, 2.0], [0.0, 0.0, 1.0]]
    np.testing.assert_allclose(area_under_curve(values, [0, 10, 30]), [1 * 10 + 3 * 20, 0])
    np.testing.assert_allclose(area_under_curve(values, [0, 10, 30], "linear"), [2 * 10 + 2.5 * 20, 10])


@pytest.mark.parametrize("between", ["last", "linear"])
def test_a_curve_that_does_not_cover_the_grid_has_no_area(between):
    values = [[[1.0, 1.0, NAN], [NAN, 1.0, 1.0], [1.0, 1.0, 1.0]]]
    np.testing.assert_array_equal(area_under_curve(values, [0, 1, 3], between), [[NAN, NAN, 3]])


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: gridded([LONG], [1, 0]), ["grid", "0 comes after 1"]),
        (lambda: gridded([LONG], []), ["grid", "1 or more"]),
        (lambda: gridded([LONG], 0), ["grid=0"]),
        (lambda: gridded([LONG], [0], "step"), ["between='step'", "'last'", "'linear'"]),
        (lambda: aggregate_curves(np.zeros((2, 3)), [0, 1]), ["(2, 3)", "[seed, task, 2]"]),
        (lambda: area_under_curve(np.zeros((2, 3)), [0, 1]), ["(2, 3)", "[..., 2]"]),
        (lambda: area_under_curve([1.0], [0]), ["grid", "2 or more"]),
        (lambda: area_under_curve([1.0, 2.0], [0, 1], "spline"), ["between='spline'"]),
    ],
)
def test_errors_name_the_curve_and_what_is_allowed(act, words):
    with pytest.raises(ConfigurationError) as caught:
        act()
    assert [word for word in words if word not in str(caught.value)] == []
