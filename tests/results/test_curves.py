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


def test_linear_interpolation_does_not_extrapolate():
    expected = [[1, 2, 3, 2.5, NAN], [5, 6, NAN, NAN, NAN], [NAN, NAN, 4, 5, 7]]
    np.testing.assert_array_equal(gridded([LONG, SHORT, LATE], [0, 5, 10, 15, 25]), expected)


@given(
    steps=st.lists(st.integers(0, 30), max_size=8).map(sorted),
    grid=st.lists(st.integers(-5, 35), min_size=1, max_size=10).map(sorted),
)
def test_gridded_values_match_a_naive_lookup(steps, grid):
    values = [float(100 * index + step) for index, step in enumerate(steps)]
    expected = [NAN] * len(grid)
    for column, position in enumerate(grid):
        if steps and steps[0] <= position <= steps[-1]:
            expected[column] = [value for step, value in zip(steps, values, strict=True) if step <= position][-1]
    np.testing.assert_array_equal(gridded([(steps, values)], grid, "last"), [expected])
    linear = gridded([(steps, values)], grid)[0]
    np.testing.assert_array_equal(np.isnan(linear), np.isnan(expected))
    is_step = np.isin(grid, steps)
    np.testing.assert_array_equal(linear[is_step], np.array(expected)[is_step])


def test_nan_values_are_carried_and_never_interpolated():
    curve, grid = ([0, 10, 20, 30], [1.0, NAN, 3.0, NAN]), [0, 5, 10, 15, 20, 25, 30]
    np.testing.assert_array_equal(gridded([curve], grid, "last"), [[1, 1, NAN, NAN, 3, 3, NAN]])
    np.testing.assert_array_equal(gridded([curve], grid), [[1, NAN, NAN, NAN, 3, NAN, NAN]])


@pytest.mark.parametrize("between", ["last", "linear"])
def test_the_last_value_of_a_step_counts_and_steps_may_be_unsorted(between):
    np.testing.assert_array_equal(gridded([([0, 10, 10, 20], [0, 7, 1, 2])], [0, 10, 20], between), [[0, 1, 2]])
    np.testing.assert_array_equal(gridded([([20, 10, 0, 10], [2, 7, 0, 1])], [0, 10, 20], between), [[0, 1, 2]])


def test_a_common_grid_spans_all_curves_with_points():
    coordinates, values, _ = on_grid(
        [np.array([0.0, 20]), np.zeros(0), None, np.array([10.0, 30])], [np.zeros(2)] * 4, 4
    )
    np.testing.assert_array_equal(coordinates, [0, 10, 20, 30])
    assert values.shape == (4, 4)
    assert [part.shape for part in on_grid([np.zeros(0)], [np.zeros(0)], 4)] == [(0,), (1, 0), (1, 0)]


@pytest.mark.parametrize(
    ("starts_and_ends", "grid", "expected"),
    [
        (([0, 100], [7], [31, 33]), 5, [0, 7, 19, 25, 31, 32, 33, 50, 75, 100]),
        (([0, 100], [7], [31, 33]), 2, [0, 100]),
        (([0], [10]), 2, [0, 5, 10]),
    ],
)
def test_a_grid_includes_at_most_as_many_ends_of_short_curves_as_points_and_separates_them(
    starts_and_ends, grid, expected
):
    xs = [np.array(x, np.float64) for x in starts_and_ends]
    coordinates, _, mask = on_grid(xs, xs, grid)
    assert coordinates.tolist() == expected
    assert mask.tolist() == [[x[0] <= point <= x[-1] for point in expected] for x in xs]


def test_each_point_aggregates_the_runs_that_reach_it():
    values = np.random.default_rng(0).normal(size=(6, 3, 4))
    values[0, :, 3] = values[1, 2, 1:] = NAN
    band = aggregate_curves(values, [0, 1, 2, 3], "mean", resamples=4000)
    for point in range(4):
        estimate = aggregate(values[..., point], "mean", resamples=4000)
        at_point = [getattr(band, name)[point] for name in ("value", "low", "high", "n", "n_missing")]
        assert at_point == [estimate.value, estimate.low, estimate.high, estimate.n, estimate.n_missing]
    assert band.n.tolist() == [18, 17, 17, 14]


def test_the_step_of_a_short_run_is_no_spike_in_the_curve_of_longer_runs():
    xs = [*[np.array([0.0, 1000.0])] * 5, np.array([503.0])]
    at, ys, _ = on_grid(xs, [*[np.full(2, 100.0)] * 5, np.array([0.0])], 200, "linear")
    band = aggregate_curves(ys, at, "mean")
    assert band.value.min() < 90
    smooth = band.without_spikes()
    assert (len(smooth.at), set(smooth.value), set(smooth.n)) == (200, {100.0}, {5})
    assert smooth.without_spikes().at.tolist() == smooth.at.tolist()


def test_a_point_of_one_run_has_no_interval_and_a_point_without_runs_no_value():
    values = gridded([LONG, LONG, LATE], [0, 10, 25, 40], "last")
    band = aggregate_curves(values, [0, 10, 25, 40], "mean", resamples=50)
    np.testing.assert_array_equal(band.value, [1, 10 / 3, 4, NAN])
    np.testing.assert_array_equal(np.isnan(band.low), [False, False, True, True])
    np.testing.assert_array_equal(np.isnan(band.high), [False, False, True, True])
    np.testing.assert_array_equal(band.n, [2, 3, 1, 0])
    np.testing.assert_array_equal(band.n_missing, [1, 0, 2, 3])


def test_a_point_has_no_value_if_no_run_of_a_task_reaches_it():
    band = aggregate_curves([[[1.0, 2.0], [3.0, NAN]], [[1.0, 2.0], [5.0, NAN]]], [0, 1], "mean", resamples=50)
    np.testing.assert_array_equal(band.value, [2.5, NAN])


def test_a_band_depends_on_the_seed_but_not_on_the_order_of_runs():
    values = np.random.default_rng(0).normal(size=(5, 30))
    band, reordered, other_seed = (
        aggregate_curves(runs, np.arange(30), seed=seed, resamples=100)
        for runs, seed in [(values, 1), (values[::-1], 1), (values, 2)]
    )
    np.testing.assert_array_equal([band.low, band.high], [reordered.low, reordered.high])
    assert (band.low != other_seed.low).any()


def test_the_area_sums_rectangles_by_default_or_trapezoids():
    values = [[1.0, 3.0, 2.0], [0.0, 0.0, 1.0]]
    np.testing.assert_allclose(area_under_curve(values, [0, 10, 30]), [1 * 10 + 3 * 20, 0])
    np.testing.assert_allclose(area_under_curve(values, [0, 10, 30], "linear"), [2 * 10 + 2.5 * 20, 10])


@pytest.mark.parametrize("between", ["last", "linear"])
def test_a_curve_that_does_not_cover_the_grid_has_no_area(between):
    values = [[[1.0, 1.0, NAN], [NAN, 1.0, 1.0], [1.0, 1.0, 1.0]]]
    np.testing.assert_array_equal(area_under_curve(values, [0, 1, 3], between), [[NAN, NAN, 3]])


@pytest.mark.parametrize(
    ("call", "words"),
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
def test_errors_name_the_invalid_argument(call, words):
    with pytest.raises(ConfigurationError) as caught:
        call()
    assert [word for word in words if word not in str(caught.value)] == []
