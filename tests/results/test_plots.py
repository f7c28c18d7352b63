"""Figures: points, lines, axes and legends."""

import io
import itertools

import numpy as np
import pytest

from trieye.process.terminal import Terminal
from trieye.results import plots
from trieye.results.curves import aggregate_curves
from trieye.results.hyperparameters import sensitivity
from trieye.results.statistics import performance_profile
from trieye.results.terminal import curves as curves_in_terminal

AT = np.linspace(0.0, 1000.0, 101)


def scores_of(values, param="key"):
    """Return the settings of a parameter, each with three runs."""
    scores = [[index + 0.1 * run for run in range(3)] for index in range(len(values))]
    return sensitivity(np.array(scores), [{param: value} for value in values], param)


def drawn(figure):
    """Return the lines of a figure that join points."""
    (axes,) = figure.axes
    return [line for line in axes.lines if line.get_linestyle() not in ("None", "none")]


def test_parallel_coordinates_have_an_axis_for_each_key_and_a_line_for_each_config():
    values = [{"a.lr": 10.0**-at, "algo": "xy"[at % 2], "clip": at if at % 2 else None} for at in range(1, 9)]
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


def curves_of(*runs):
    """Return the figure of one group whose runs have a value from one place of the grid to another."""
    values = np.full((len(runs), len(AT)), np.nan)
    for number, (first, end) in enumerate(runs):
        values[number, first:end] = number
    return plots.curves({"dqn": aggregate_curves(values, AT, "mean", resamples=10)}, "return", "step", what="mean")


def span(figure):
    return [
        (at[~np.isnan(value)].min(), at[~np.isnan(value)].max())
        for at, value in (map(np.asarray, line.get_data()) for line in drawn(figure))
    ]


@pytest.mark.parametrize("values", [["relu", "tanh", "gelu"], [True, False]])
def test_categories_are_points_with_bars_and_not_joined(values):
    figure = plots.sensitivity({"a": scores_of(values), "b": scores_of(values)}, "key", "return")
    assert drawn(figure) == []
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
def test_a_parameter_is_on_the_axis_on_which_its_values_are_spread(values, scale):
    (axes,) = plots.sensitivity({"": scores_of(values)}, "key", "return").axes
    assert axes.get_xscale() == scale
    if scale != "linear":
        assert [label.get_text() for label in axes.get_xticklabels()] == [f"{value:g}" for value in values]


def test_the_best_config_and_the_mean_of_all_are_told_apart():
    params = [{"key": value, "lr": rate} for value in ("relu", "tanh") for rate in (1, 2)]
    scores = np.arange(12.0).reshape(4, 3)
    figure = plots.sensitivity({"": sensitivity(scores, params, "key")}, "key", "return")
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["best config", "mean of all"]


def test_legends_lie_outside_the_axes():
    bands = {label: aggregate_curves(np.ones((2, len(AT))), AT, "mean", resamples=10) for label in ("dqn", "ppo")}
    profile = {"dqn": performance_profile([1.0, 2.0], [0.0, 1.5], resamples=10)}
    figures = [
        plots.curves(bands, "return", "step", what="mean"),
        plots.profiles(profile, "return"),
        plots.sensitivity({"a": scores_of([1, 2, 3]), "b": scores_of([1, 2, 3])}, "key", "return"),
    ]
    for figure in figures:
        figure.savefig(io.BytesIO())
        (axes,) = figure.axes
        assert axes.get_legend() is None
        (legend,) = figure.legends
        assert legend.get_window_extent().y1 <= axes.get_window_extent().y0


def test_a_curve_shows_how_many_runs_it_has_and_where_their_number_changes():
    figure = curves_of((0, 101), (0, 101), (0, 101), (0, 60))
    (axes,) = figure.axes
    assert axes.get_legend_handles_labels()[1] == ["dqn (n=3-4)"]
    (marks,) = (line for line in axes.lines if line.get_marker() not in ("None", ""))
    assert marks.get_xdata().tolist() == [600.0]
    (whole, every) = span(figure)
    assert (whole, every) == ((0.0, 590.0), (0.0, 1000.0))


def test_a_curve_has_no_spikes_where_only_some_runs_have_begun_or_ended():
    figure = curves_of((3, 101), (0, 99), (1, 100), (2, 98))
    assert set(span(figure)) == {(30.0, 970.0)}
    assert figure.axes[0].get_legend_handles_labels()[1] == ["dqn (n=4)"]


def test_two_runs_that_cross_are_lines_rather_than_a_band_without_width():
    figure = plots.curves(
        {"dqn": aggregate_curves(np.stack([AT, AT[::-1]]), AT, "mean", resamples=100)}, "return", "step", what="mean"
    )
    (axes,) = figure.axes
    assert [path.vertices.size for band in axes.collections for path in band.get_paths()] in ([], [0])
    low, high = (line.get_ydata() for line in axes.lines if line.get_alpha())
    assert np.array_equal(low, np.minimum(AT, AT[::-1]))
    assert np.array_equal(high, np.maximum(AT, AT[::-1]))


def test_an_axis_of_one_run_has_no_offset():
    values = 99.9 + 1e-4 * np.sin(AT)[np.newaxis]
    figure = plots.curves({"only": aggregate_curves(values, AT + 1e7)}, "loss", "step", what="iqm")
    figure.savefig(io.BytesIO())
    (axes,) = figure.axes
    assert axes.yaxis.get_offset_text().get_text() == axes.xaxis.get_offset_text().get_text() == ""
    assert all(label.get_text().startswith("99.") for label in axes.get_yticklabels())
    boxes = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def test_curves_in_the_terminal_have_no_spikes_either():
    values = np.zeros((4, len(AT)))
    values[:3, 99:] = np.nan
    values[3, 99:] = 10_000.0
    band = aggregate_curves(values, AT, "mean", resamples=10)
    assert "10,000" not in curves_in_terminal({"dqn": band}, "return", "step", Terminal())
