"""Figures: points, lines, axes and legends."""

import io
import itertools

import numpy as np
import pytest

from tests.full_disk import full_disk
from trieye.exceptions import ConfigurationError
from trieye.process.terminal import Terminal
from trieye.results import plots
from trieye.results.curves import aggregate_curves
from trieye.results.hyperparameters import sensitivity
from trieye.results.statistics import performance_profile
from trieye.results.terminal import curves as curves_in_terminal

STEPS = np.linspace(0.0, 1000.0, 101)


def settings_of(values, param="key"):
    """Return the setting of each value of a parameter, with three runs per value."""
    scores = [[index + 0.1 * run for run in range(3)] for index in range(len(values))]
    return sensitivity(np.array(scores), [{param: value} for value in values], param)


def test_none_is_null_on_the_axis_of_a_parameter():
    (axes,) = plots.sensitivity({"": settings_of([None, "wide"])}, "key", "return").axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["null", "wide"]


def connected_lines(figure):
    """Return the lines of a figure that connect points."""
    (axes,) = figure.axes
    return [line for line in axes.lines if line.get_linestyle() not in ("None", "none")]


def test_parallel_coordinates_have_an_axis_per_key_and_a_line_per_scored_config():
    values = [
        {"a.lr": 10.0**-exponent, "algo": "xy"[exponent % 2], "clip": exponent if exponent % 2 else None}
        for exponent in range(1, 9)
    ]
    scores = [*map(float, range(7)), np.nan]
    (axes,) = plots.parallel(values, scores, ["a.lr", "algo", "clip"], "return", mode="min").axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["lr", "algo", "clip", "return"]
    lines = [line for line in axes.lines if len(line.get_xdata()) == 4]
    assert len(lines) == 7, "a config without a score has no line"
    assert lines[-1].get_ydata()[-1] == 0.0, "the best config is on top"
    assert lines[-1].get_color() != lines[0].get_color()
    assert np.allclose(np.diff(sorted(line.get_ydata()[0] for line in lines)), 1 / 6), "a logarithmic axis"
    texts = {text.get_text() for text in axes.texts}
    assert {"x", "y", "none"} <= texts
    assert min(line.get_ydata()[2] for line in lines) < 0


def curve_figure(*runs):
    """Return the figure of one group; each run has values from a first to an end index of `STEPS`."""
    values = np.full((len(runs), len(STEPS)), np.nan)
    for number, (first, end) in enumerate(runs):
        values[number, first:end] = number
    return plots.curves({"dqn": aggregate_curves(values, STEPS, "mean", resamples=10)}, "return", "step", what="mean")


def line_spans(figure):
    return [
        (steps[~np.isnan(value)].min(), steps[~np.isnan(value)].max())
        for steps, value in (map(np.asarray, line.get_data()) for line in connected_lines(figure))
    ]


@pytest.mark.parametrize("values", [["relu", "tanh", "gelu"], [True, False], [[64, 64], [128]]])
def test_categories_are_unconnected_points_with_error_bars(values):
    figure = plots.sensitivity({"a": settings_of(values), "b": settings_of(values)}, "key", "return")
    assert connected_lines(figure) == []
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == [str(value) for value in values]
    bars = [segment for collection in axes.collections for segment in collection.get_segments()]
    assert len(bars) == 2 * len(values)
    assert len({round(bar[0][0], 6) for bar in bars}) == 2 * len(values)  # side by side


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([1e-4, 3e-4, 1e-3], "log"),
        ([32, 64, 128, 256], "log"),
        ([1e-5, 1e-2], "log"),
        ([0, 1e-4, 1e-3, 1e-2], "symlog"),
        ([1, 2, 3, 4], "linear"),
        ([10, 20, 30, 40, 50, 60, 70, 80, 90], "linear"),
        ([0.9, 0.95, 0.99], "linear"),
        ([-1, 0, 1], "linear"),
        ([5], "linear"),
    ],
)
def test_a_parameter_axis_has_the_scale_that_spreads_its_values(values, scale):
    (axes,) = plots.sensitivity({"": settings_of(values)}, "key", "return").axes
    assert axes.get_xscale() == scale
    if scale != "linear":
        assert [label.get_text() for label in axes.get_xticklabels()] == [f"{value:g}" for value in values]


def test_the_legend_lists_the_best_config_and_the_mean_of_all():
    params = [{"key": value, "lr": rate} for value in ("relu", "tanh") for rate in (1, 2)]
    scores = np.arange(12.0).reshape(4, 3)
    figure = plots.sensitivity({"": sensitivity(scores, params, "key")}, "key", "return")
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["best config", "mean of all"]


@pytest.mark.long
def test_legends_are_below_the_axes():
    bands = {label: aggregate_curves(np.ones((2, len(STEPS))), STEPS, "mean", resamples=10) for label in ("dqn", "ppo")}
    profile = {"dqn": performance_profile([1.0, 2.0], [0.0, 1.5], resamples=10)}
    figures = [
        plots.curves(bands, "return", "step", what="mean"),
        plots.profiles(profile, "return"),
        plots.sensitivity({"a": settings_of([1, 2, 3]), "b": settings_of([1, 2, 3])}, "key", "return"),
    ]
    for figure in figures:
        figure.savefig(io.BytesIO())
        (axes,) = figure.axes
        assert axes.get_legend() is None
        (legend,) = figure.legends
        assert legend.get_window_extent().y1 <= axes.get_window_extent().y0


def test_a_curve_labels_its_number_of_runs_and_marks_where_it_changes():
    figure = curve_figure((0, 101), (0, 101), (0, 101), (0, 60))
    (axes,) = figure.axes
    assert axes.get_legend_handles_labels()[1] == ["dqn (n=3-4)"]
    (marker_line,) = (line for line in axes.lines if line.get_marker() not in ("None", ""))
    assert marker_line.get_xdata().tolist() == [600.0]
    (all_runs_span, any_run_span) = line_spans(figure)
    assert (all_runs_span, any_run_span) == ((0.0, 590.0), (0.0, 1000.0))


def test_ragged_ends_of_a_curve_are_trimmed():
    figure = curve_figure((3, 101), (0, 99), (1, 100), (2, 98))
    assert set(line_spans(figure)) == {(30.0, 970.0)}
    assert figure.axes[0].get_legend_handles_labels()[1] == ["dqn (n=4)"]


def test_two_crossing_runs_are_lines_instead_of_a_zero_width_band():
    band = aggregate_curves(np.stack([STEPS, STEPS[::-1]]), STEPS, "mean", resamples=100)
    figure = plots.curves({"dqn": band}, "return", "step", what="mean")
    (axes,) = figure.axes
    assert [path.vertices.size for band in axes.collections for path in band.get_paths()] in ([], [0])
    low, high = (line.get_ydata() for line in axes.lines if line.get_alpha())
    assert np.array_equal(low, np.minimum(STEPS, STEPS[::-1]))
    assert np.array_equal(high, np.maximum(STEPS, STEPS[::-1]))


@pytest.mark.parametrize(("heights", "bars"), [([2.0], []), ([0.0, 4.0], [[0, 4]]), ([0.0, 2.0, 4.0], [[0, 4]])])
def test_isolated_points_are_dots_with_their_intervals_as_bars(heights, bars):
    values = np.array([[1.0, 1.0, np.nan, height, np.nan] for height in heights])
    band = aggregate_curves(values, np.arange(5.0), "mean", resamples=200)
    (axes,) = plots.curves({"dqn": band}, "return", "step", what="mean", runs={"dqn": values}).axes
    points = {
        marker: [line.get_xydata().tolist() for line in axes.lines if line.get_marker() == marker] for marker in ".o"
    }
    assert points == {".": [[[3.0, height]] for height in heights], "o": [[[3.0, 2.0]]]}
    segments = [segment for one in axes.collections if one.get_linewidth() == 4 for segment in one.get_segments()]
    assert [segment[:, 1].tolist() for segment in segments if len(segment)] == bars


def test_terminal_curves_connect_only_contiguous_points():
    values = np.full((2, len(STEPS)), np.nan)
    values[0, [0, 50, 100]] = [1.0, 2.0, 3.0]
    values[1, :20], values[1, 80:] = 1.0, 3.0
    points, gap = (aggregate_curves(run[np.newaxis], STEPS, resamples=10) for run in values)
    shown = curves_in_terminal({"dqn": points}, "return", "step", Terminal())
    assert shown.count("\N{BULLET}") == 3
    assert not any(is_braille(letter) for letter in shown)
    rows = curves_in_terminal({"dqn": gap}, "return", "step", Terminal()).splitlines()
    columns = {column for row in rows for column, letter in enumerate(row) if is_braille(letter)}
    assert max(np.diff(sorted(columns))) > 40


def is_braille(letter):
    return "\N{BRAILLE PATTERN BLANK}" < letter <= "\N{BRAILLE PATTERN DOTS-12345678}"


def test_axes_of_a_nearly_constant_curve_have_no_offset_and_no_overlapping_labels():
    values = 99.9 + 1e-4 * np.sin(STEPS)[np.newaxis]
    figure = plots.curves({"only": aggregate_curves(values, STEPS + 1e7)}, "loss", "step", what="iqm")
    figure.savefig(io.BytesIO())
    (axes,) = figure.axes
    assert axes.yaxis.get_offset_text().get_text() == axes.xaxis.get_offset_text().get_text() == ""
    assert all(label.get_text().startswith("99.") for label in axes.get_yticklabels())
    boxes = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def test_terminal_curves_omit_a_spike_at_a_ragged_end():
    values = np.zeros((4, len(STEPS)))
    values[:3, 99:] = np.nan
    values[3, 99:] = 10_000.0
    band = aggregate_curves(values, STEPS, "mean", resamples=10)
    assert "10,000" not in curves_in_terminal({"dqn": band}, "return", "step", Terminal())


def test_terminal_curves_omit_points_near_the_largest_float():
    values = np.array([[-1.7e308, 1.0, 1.7e308, 2.0]])
    shown = curves_in_terminal({"dqn": aggregate_curves(values, np.arange(4.0))}, "return", "step", Terminal())
    assert shown.count("\N{BULLET}") == 2
    assert shown.endswith("dqn: 2 no CI at 3 (1 run)")


def test_groups_without_points_have_no_curve_in_a_terminal():
    band, empty = (aggregate_curves(np.full((2, len(STEPS)), value), STEPS, resamples=10) for value in (7.0, np.nan))
    shown = curves_in_terminal({"dqn": band, "ppo": empty}, "return", "step", Terminal())
    assert shown.splitlines()[-2:] == ["dqn: 7 [7, 7] at 1000 (2 runs)", "ppo: no value"]
    assert curves_in_terminal({"ppo": empty}, "return", "step", Terminal()).endswith("ppo: no value")


@pytest.mark.parametrize("name", ["curve.png", "curve.svg"])
def test_a_full_disk_leaves_the_earlier_picture(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"earlier")
    figure = plots.curves({"dqn": aggregate_curves(np.ones((2, len(STEPS))), STEPS)}, "return", "step", what="iqm")
    with full_disk(1 << 10), pytest.raises(ConfigurationError, match=f"{name} cannot be written"):
        plots.save(figure, path)
    assert [entry.read_bytes() for entry in tmp_path.iterdir()] == [b"earlier"]
