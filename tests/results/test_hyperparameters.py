"""Selection of the best config and its indistinguishable configs, and sensitivity to a parameter."""

import numpy as np
import pytest

from trieye.exceptions import ConfigurationError
from trieye.results.hyperparameters import select, sensitivity
from trieye.results.statistics import aggregate

NAN = np.nan
PARAMS = [{"lr": lr, "units": units} for lr in (0.1, 0.01) for units in (32, 64)]
SCORES = [[1.0, 3.0], [5.0, 7.0], [2.0, 2.0], [0.0, NAN]]


def test_the_best_config_has_the_best_estimate():
    assert select(SCORES, "mean").best == 1
    assert select(SCORES, "mean", mode="min").best == 3
    assert [estimate.value for estimate in select(SCORES, "mean").estimates] == [2, 6, 2, 0]


def test_probabilities_match_an_enumeration_of_all_resamples():
    """Two configs with two seeds each have 16 resamples."""
    selection = select([[1.0, 3.0], [0.0, 2.0]], "mean", resamples=40_000)
    # means 1, 2, 2, 3 against 0, 1, 1, 2: the first is greater in 11 of 16 pairs, equal in 4, smaller in 1
    assert selection.p_best == pytest.approx([(11 + 2) / 16, (1 + 2) / 16], abs=0.01)
    assert selection.p_as_good == pytest.approx([1, 5 / 16], abs=0.01)
    assert selection.not_worse == (0, 1)


def test_clearly_worse_configs_are_excluded():
    rng = np.random.default_rng(0)
    scores = rng.normal([[0.0], [5.0], [4.9], [1.0]], size=(4, 10))
    selection = select(scores)
    assert selection.not_worse == (1, 2)
    assert selection.p_best.sum() == pytest.approx(1)


def test_fifty_equal_configs_all_remain_candidates():
    scores = np.tile(np.random.default_rng(0).normal(size=8), (50, 1))
    selection = select(scores, resamples=500)
    assert selection.p_best.max() < 0.05
    assert selection.not_worse == tuple(range(50))


def test_configs_with_identical_scores_share_the_probability_of_being_best():
    scores = [[0.1, 0.1, 0.1], [0.1, 0.1, 0.1], [0.1, 0.1, 0.0]]
    selection = select(scores, "mean", resamples=4000)
    all_high = (2 / 3) ** 3
    assert selection.p_best[0] == selection.p_best[1]
    assert selection.p_best[2] == pytest.approx(all_high / 3, abs=0.02)


def test_rounding_breaks_no_ties_between_equal_scores_with_different_seed_counts():
    scores = np.full((3, 10), 0.1)
    scores[0, 3:] = scores[1, 6:] = NAN
    assert len({estimate.value for estimate in select(scores, "mean").estimates}) > 1
    assert select(scores, "mean").p_best == pytest.approx([1 / 3] * 3)


def test_a_config_with_one_seed_remains_a_candidate_and_one_without_scores_does_not():
    selection = select([[5.0, 6.0, 7.0], [1.0, NAN, NAN], [NAN, NAN, NAN], [1.0, 1.1, 1.2]], "mean")
    assert selection.not_worse == (0, 1)
    assert selection.p_best[2] == selection.p_as_good[2] == 0
    assert [estimate.n for estimate in selection.estimates] == [3, 1, 0, 3]


def test_no_scored_config_is_excluded_if_the_best_has_one_seed():
    assert select([[9.0, NAN], [1.0, 1.1], [NAN, NAN]]).not_worse == (0, 1)


def test_min_mode_equals_max_mode_of_negated_scores():
    maximized, minimized = select(SCORES[:3], "mean"), select(-np.array(SCORES[:3]), "mean", mode="min")
    assert maximized.best == minimized.best
    np.testing.assert_array_equal(maximized.p_best, minimized.p_best)


def test_the_best_config_has_the_lowest_optimality_gap():
    scores = [[0.2, 0.3], [0.8, 0.9]]
    selection = select(scores, "optimality_gap")
    assert (selection.best, selection.ranked, selection.p_best.tolist()) == (1, (1, 0), [0, 1])
    (setting,) = sensitivity(scores, [{"lr": 1}, {"lr": 1}], "lr", "optimality_gap")
    assert setting.best_config == 1


def test_each_value_has_its_best_config_and_the_mean_of_its_configs():
    low, high = sensitivity(SCORES, PARAMS, "lr", "mean")
    assert (low.value, low.best_config, low.best.value, low.mean.value, low.configs) == (0.01, 2, 2, 1, (2, 3))
    assert (high.value, high.best_config, high.best.value, high.mean.value, high.configs) == (0.1, 1, 6, 4, (0, 1))
    assert (low.mean.n, low.mean.n_missing, low.mean.low) == (3, 1, None)


def test_the_best_interval_uses_the_runs_of_its_config_and_the_mean_interval_is_narrower():
    scores = np.random.default_rng(0).normal(size=(4, 10))
    for setting in sensitivity(scores, PARAMS, "units", "mean"):
        assert setting.best == aggregate(scores[setting.best_config], "mean")
        assert setting.mean.high - setting.mean.low < setting.best.high - setting.best.low


def test_configs_without_the_parameter_are_omitted_and_true_differs_from_1():
    settings = sensitivity(SCORES, [{"eps": 1}, {"eps": True}, {}, {"eps": 1.0}], "eps", "mean")
    assert [(setting.value, setting.configs) for setting in settings] == [(1, (0, 3)), (True, (1,))]


def test_non_numeric_values_keep_their_order():
    params = [{"net": [64, 64]}, {"net": "small"}, {"net": [64, 64]}, {"net": None}, {"net": "None"}]
    settings = sensitivity([*SCORES, [1.0, 2.0]], params, "net", "mean")
    assert [setting.configs for setting in settings] == [(0, 2), (1,), (3,), (4,)]


def test_a_value_without_runs_has_no_best_config():
    (setting,) = sensitivity([[NAN, NAN]], [{"lr": 1}], "lr")
    assert setting.best_config is None
    assert np.isnan([setting.best.value, setting.mean.value]).all()


def test_a_config_without_runs_makes_the_mean_nan_but_not_the_best():
    (setting,) = sensitivity([[NAN, NAN], [1.0, 2.0]], [{"lr": 1}, {"lr": 1}], "lr")
    assert (setting.best_config, setting.best.value) == (1, 1.5)
    assert np.isnan(setting.mean.value)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: sensitivity(SCORES, PARAMS, "unit"), ["'unit'", "'units'", "lr"]),
        (lambda: sensitivity(SCORES, PARAMS[:3], "lr"), ["4 configs", "of 3"]),
        (lambda: select(SCORES, mode="best"), ["mode='best'", "'max'", "'min'"]),
        (lambda: select([1.0, 2.0]), ["scores of config 0", "()", "[seed, task]"]),
        (lambda: select([[NAN, NAN]]), ["none of 1 configs"]),
        (lambda: select(SCORES, "iqmm"), ["'iqmm'", "'iqm'"]),
        (lambda: select([[1.0, 2.0], [np.inf, 1.0]]), ["scores of config 1[0] is inf"]),
    ],
)
def test_errors_name_the_invalid_argument(call, words):
    with pytest.raises(ConfigurationError) as caught:
        call()
    assert [word for word in words if word not in str(caught.value)] == []
