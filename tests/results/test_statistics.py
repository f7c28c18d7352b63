"""Aggregates, intervals, profiles and comparisons, checked against hand-computed values and their definitions."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from trieye.exceptions import ConfigurationError
from trieye.results.statistics import aggregate, difference, performance_profile, probability_of_improvement

NAN = np.nan
STATS = ["mean", "median", "iqm", "optimality_gap", "run_median"]
TABLE = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, NAN], [6.0, 60.0]])
"""Scores of four seeds in two tasks; one is missing."""

scores = st.integers(-50, 50).map(float)
tables = arrays.arrays(np.float64, st.tuples(st.integers(2, 6), st.integers(1, 4)), elements=scores)


def assert_same_estimate(first, second):
    assert (first.n, first.n_missing) == (second.n, second.n_missing)
    figures = [(estimate.value, estimate.low, estimate.high) for estimate in (first, second)]
    np.testing.assert_array_equal(*figures)


@pytest.mark.parametrize(
    ("stat", "value"),
    [
        ("mean", (3 + 30) / 2),  # the tasks' means are 3 and 30
        ("median", (3 + 30) / 2),
        # 1 2 3 6 weigh 1/8 each, 10 20 60 weigh 1/6; a quarter is trimmed at each end
        ("iqm", (3 / 8 + 6 / 8 + 10 / 6 + 20 / 12) / (1 / 2)),
        ("run_median", (6 / 8 + 10 / 8) / (1 / 4)),  # the middle 2 of 8 runs, if none was missing
        ("optimality_gap", 4 - ((1 + 2 + 3 + 4) / 4 + 4) / 2),
    ],
)
def test_aggregates_match_hand_computed_values(stat, value):
    estimate = aggregate(TABLE, stat, gamma=4.0, resamples=200)
    assert estimate.value == pytest.approx(value)
    assert (estimate.n, estimate.n_missing) == (7, 1)


@pytest.mark.parametrize(("n", "value"), [(3, 1.0), (4, 1.5), (5, 2.0), (8, 3.5)])
def test_iqm_trims_a_quarter_rounded_down_at_each_end(n, value):
    assert aggregate(np.arange(n)).value == value


def weighted_middle(columns, cut):
    """Return the mean without the weight `cut` at each end, computed in floats; all columns have the same weight."""
    weights = np.concatenate([np.full(len(column), 1 / len(column) / len(columns)) for column in columns])
    order = np.argsort(np.concatenate(columns))
    ends = np.clip(np.cumsum([0.0, *weights[order]]), cut, 1 - cut)
    return np.diff(ends) @ np.concatenate(columns)[order] / (1 - 2 * cut)


def test_tasks_with_fewer_runs_have_the_same_weight_as_other_tasks():
    rng = np.random.default_rng(0)
    for sizes in ((8, 3), (5, 1, 4), (7, 11, 13, 16, 17, 19, 23, 25, 27, 29, 31, 37, 41, 43, 47)):
        columns = [rng.normal(size=size) for size in sizes]
        table = np.full((max(sizes), len(sizes)), NAN)
        for task, column in enumerate(columns):
            table[: len(column), task] = column
        for stat, num_cut in (("iqm", table.size // 4), ("run_median", (table.size - 1) // 2)):
            expected = weighted_middle(columns, num_cut / table.size)
            assert aggregate(table, stat, resamples=1).value == pytest.approx(expected)


def test_missing_runs_of_a_task_do_not_make_equal_algorithms_differ():
    complete = np.array([[90.0, 20.0], [91.0, 21.0], [92.0, 22.0], [93.0, 23.0], [94.0, 24.0]]).repeat(2, axis=0)
    unfinished = complete.copy()
    unfinished[::2, 1] = NAN
    for stat in STATS:
        gap = difference(complete, unfinished, stat, gamma=95.0, resamples=500)
        assert gap.value == pytest.approx(0)
        assert gap.low <= 0 <= gap.high
    constant = np.tile([0.0, 0.0, 0.0, 100.0], (5, 1))
    constant[4, 0] = NAN
    assert (aggregate(constant).low, aggregate(constant).high) == (0, 0)


def test_a_huge_trimmed_score_does_not_affect_the_iqm():
    assert aggregate([0.1, 0.2, 0.3, 1e300]).value == pytest.approx(0.25, rel=1e-15)
    assert 0 < aggregate([[0.1, 0.2], [0.3, 0.4], [NAN, 1e300]]).value < 1


def middle_half(table):
    cut = table.size // 4
    return np.sort(table.ravel())[cut : table.size - cut].mean()


DEFINITIONS = {
    "mean": np.mean,
    "median": lambda table: np.median(table.mean(axis=0)),
    "iqm": middle_half,
    "optimality_gap": lambda table: 1 - np.minimum(table, 1).mean(),
    "run_median": np.median,
}


@pytest.mark.parametrize("stat", STATS)
def test_estimates_and_intervals_match_resamples_drawn_one_by_one(stat):
    rng = np.random.default_rng(1)
    table = rng.normal(size=(6, 5)) + np.arange(5)
    resampled = [DEFINITIONS[stat](table[rng.integers(0, 6, (6, 5)), np.arange(5)]) for _ in range(4000)]
    low, high = np.quantile(resampled, [0.1, 0.9])
    estimate = aggregate(table, stat, confidence=0.8, resamples=4000)
    assert estimate.value == pytest.approx(DEFINITIONS[stat](table))
    assert estimate.low == pytest.approx(low, abs=0.1 * np.std(resampled))
    assert estimate.high == pytest.approx(high, abs=0.1 * np.std(resampled))


@given(table=tables, stat=st.sampled_from(STATS), seed=st.integers(0, 9), data=st.data())
def test_estimates_are_independent_of_the_order_of_seeds(table, stat, seed, data):
    shuffled = table[data.draw(st.permutations(range(len(table))))]
    assert_same_estimate(*(aggregate(each, stat, resamples=50, seed=seed) for each in (table, shuffled)))
    assert_same_estimate(
        *(probability_of_improvement(each, table + 1, resamples=50, seed=seed) for each in (table, shuffled))
    )


def test_a_seed_reproduces_the_interval_and_another_seed_changes_it():
    table = np.random.default_rng(0).normal(size=(5, 3))
    first, repeated, other_seed = (aggregate(table, seed=seed) for seed in (7, 7, 8))
    assert_same_estimate(first, repeated)
    assert (first.low, first.high) != (other_seed.low, other_seed.high)
    assert first.value == other_seed.value


def test_a_seed_missing_in_every_task_does_not_change_the_estimate():
    table = np.random.default_rng(0).normal(size=(5, 2))
    for stat in STATS:
        with_gap = aggregate(np.vstack([table, [NAN, NAN]]), stat)
        without = aggregate(table, stat)
        assert (with_gap.value, with_gap.low, with_gap.high) == (without.value, without.low, without.high)
        assert (with_gap.n, with_gap.n_missing) == (10, 2)


@pytest.mark.parametrize(("table", "value", "n"), [([[3.0, 5.0]], 4.0, 2), ([[3.0, 5.0], [4.0, NAN]], 4.25, 3)])
def test_a_task_of_one_run_leaves_a_value_but_no_interval(table, value, n):
    estimate = aggregate(table, "mean")
    assert (estimate.value, estimate.low, estimate.high, estimate.n) == (value, None, None, n)
    assert estimate.n_missing == 2 * len(table) - n


@pytest.mark.parametrize("table", [[[1.0, NAN], [2.0, NAN]], [NAN, NAN], []])
def test_a_task_without_runs_makes_every_estimate_nan(table):
    for estimate in (aggregate(table), difference(table, table), probability_of_improvement(table, table)):
        assert np.isnan(estimate.value)
        assert (estimate.low, estimate.high) == (None, None)


def test_equal_scores_have_an_interval_of_zero_width():
    for stat in STATS:
        estimate = aggregate(np.full((7, 3), 500.0), stat, gamma=900.0)
        assert estimate.low == estimate.value == estimate.high


def test_resamples_are_never_in_memory_all_at_once():
    table = np.random.default_rng(0).normal(size=(100, 400))
    tracemalloc.start()
    assert aggregate(table, resamples=60).n == 40_000
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 60 * table.nbytes / 3


def test_probability_of_improvement_counts_ties_as_half_in_each_task():
    x = [[1.0, 5.0], [2.0, 6.0]]
    y = [[1.0, 9.0], [0.0, 9.0], [2.0, NAN]]
    # task 0: score 1 wins 1.5 and score 2 wins 2.5 of 6 pairs; task 1: no win in 4 pairs
    estimate = probability_of_improvement(x, y)
    assert estimate.value == pytest.approx((4 / 6 + 0) / 2)
    assert (estimate.n, estimate.n_missing) == (4 + 5, 1)


@given(x=tables, y=tables)
def test_probabilities_of_improvement_of_both_sides_sum_to_one(x, y):
    num_tasks = min(x.shape[1], y.shape[1])
    x, y = x[:, :num_tasks], y[:, :num_tasks]
    x_over_y, y_over_x = probability_of_improvement(x, y, resamples=50), probability_of_improvement(y, x, resamples=50)
    assert x_over_y.value + y_over_x.value == pytest.approx(1)
    if sorted(x.ravel()) != sorted(y.ravel()):
        assert (x_over_y.low, x_over_y.high) == pytest.approx((1 - y_over_x.high, 1 - y_over_x.low))
    assert 0 <= x_over_y.low <= x_over_y.high <= 1 + 1e-12
    greater = (x[:, None] > y[None]).mean(axis=(0, 1)) + 0.5 * (x[:, None] == y[None]).mean(axis=(0, 1))
    assert x_over_y.value == pytest.approx(greater.mean())


@pytest.mark.long
def test_the_interval_of_an_improvement_has_the_theoretical_width():
    """For equal distributions, U / (m n) has variance (m + n + 1) / (12 m n)."""
    rng = np.random.default_rng(0)
    estimate = probability_of_improvement(rng.normal(size=(60, 40)), rng.normal(size=(60, 40)))
    half_width = 1.96 * np.sqrt(121 / (12 * 3600) / 40)
    assert estimate.high - estimate.low == pytest.approx(2 * half_width, rel=0.08)


def test_a_difference_subtracts_the_estimates_and_combines_their_interval_widths():
    rng = np.random.default_rng(0)
    x, y = rng.normal(1, 1, (10, 4)), rng.normal(0, 1, (8, 4))
    for stat in STATS:
        estimate = difference(x, y, stat)
        x_estimate, y_estimate = aggregate(x, stat), aggregate(y, stat)
        assert estimate.value == pytest.approx(x_estimate.value - y_estimate.value)
        assert estimate.n == 72
        reverse = difference(y, x, stat)
        assert (reverse.low, reverse.high) == pytest.approx((-estimate.high, -estimate.low))
        width = np.hypot(x_estimate.high - x_estimate.low, y_estimate.high - y_estimate.low)
        assert estimate.high - estimate.low == pytest.approx(width, rel=0.15)


def test_a_profile_is_the_fraction_of_scores_above_each_threshold():
    profile = performance_profile(TABLE, [0.0, 2.0, 20.0, 60.0])
    np.testing.assert_allclose(profile.value, [1, (2 / 4 + 1) / 2, (0 + 1 / 3) / 2, 0])
    np.testing.assert_array_equal(profile.at, [0, 2, 20, 60])
    np.testing.assert_array_equal(profile.n, [7] * 4)
    np.testing.assert_array_equal(profile.n_missing, [1] * 4)


def test_a_profile_of_task_means_is_the_fraction_of_means_above_each_threshold():
    profile = performance_profile(TABLE, [2.9, 3.0, 29.0, 30.0], of="task_means")
    np.testing.assert_allclose(profile.value, [1, 0.5, 0.5, 0])


@given(table=tables, seed=st.integers(0, 9), of=st.sampled_from(["runs", "task_means"]))
def test_profiles_and_their_intervals_decrease_from_one_to_zero(table, seed, of):
    profile = performance_profile(table, np.linspace(-60, 60, 41), of=of, resamples=100, seed=seed)
    for line in (profile.value, profile.low, profile.high):
        assert line[0] == pytest.approx(1)
        assert line[-1] == 0
        assert (np.diff(line) <= 1e-12).all()
    assert (profile.low <= profile.high).all()


def test_a_profile_of_one_seed_has_no_band():
    profile = performance_profile([[1.0, 2.0]], [0.5, 1.5])
    np.testing.assert_array_equal(profile.value, [1, 0.5])
    assert np.isnan([profile.low, profile.high]).all()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: aggregate(TABLE, "igm"), ["'igm'", "'iqm'", "optimality_gap"]),
        (lambda: aggregate(TABLE, confidence=95), ["confidence=95", "0.95"]),
        (lambda: aggregate(TABLE, resamples=0), ["resamples=0"]),
        (lambda: aggregate([[1.0, 2.0], [np.inf, 3.0]]), ["scores[1, 0] is inf", "NaN"]),
        (lambda: aggregate(np.zeros((2, 3, 4))), ["scores", "(2, 3, 4)", "[seed, task]"]),
        (lambda: aggregate(["a", "b"]), ["scores", "numbers"]),
        (lambda: difference(TABLE, [1.0]), ["2 and 1 tasks", "NaN"]),
        (lambda: difference(TABLE, [[1.0, -np.inf]]), ["the scores of Y[0, 1] is -inf"]),
        (lambda: performance_profile(TABLE, 3.0), ["thresholds", "1-D array of numbers"]),
        (lambda: performance_profile(TABLE, [3.0], of="run"), ["of='run'", "task_means"]),
    ],
)
def test_errors_name_the_invalid_argument(call, words):
    with pytest.raises(ConfigurationError) as caught:
        call()
    assert [word for word in words if word not in str(caught.value)] == []


def test_statistics_import_numpy_and_no_other_large_package():
    code = "import trieye.results.statistics, trieye.results.curves, trieye.results.hyperparameters, sys"
    command = [sys.executable, "-c", f"{code}; print(*sys.modules)"]
    loaded = set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert "numpy" in loaded
    assert not {"pydantic", "pandas", "scipy", "pyarrow", "matplotlib", "torch", "ray", "mlflow"} & loaded
