"""Selection of the best config and its indistinguishable configs, and sensitivity to a parameter."""

import numpy as np
import pytest

from trieye.exceptions import ConfigurationError
from trieye.results.hyperparameters import select, sensitivity
from trieye.results.statistics import aggregate

NAN = np.nan
PARAMS = [{"lr": lr, "units": units} for lr in (0.1, 0.01) for units in (32, 64)]
SCORES = [[1.0, 3.0], [5.0, 7.0], [2.0, 2.0], [0.0, NAN]]


def test_the_best_config_is_that_of_the_best_figure():
    assert select(SCORES, "mean").best == 1
    assert select(SCORES, "mean", mode="min").best == 3
    assert [each.value for each in select(SCORES, "mean").estimates] == [2, 6, 2, 0]


def test_probabilities_are_those_of_all_resamples():
    """Of two configs with two seeds each, there are 16 resamples."""
    selection = select([[1.0, 3.0], [0.0, 2.0]], "mean", resamples=40_000)
    # means 1, 2, 2, 3 against 0, 1, 1, 2: of 16 the first is greater in 11, equal in 4, smaller in 1
    assert selection.p_best == pytest.approx([(11 + 2) / 16, (1 + 2) / 16], abs=0.01)
    assert selection.p_as_good == pytest.approx([1, 5 / 16], abs=0.01)
    assert selection.not_worse == (0, 1)


def test_configs_that_are_clearly_worse_can_be_told_from_the_best():
    rng = np.random.default_rng(0)
    scores = rng.normal([[0.0], [5.0], [4.9], [1.0]], size=(4, 10))
    selection = select(scores)
    assert selection.not_worse == (1, 2)
    assert selection.p_best.sum() == pytest.approx(1)


def test_none_of_many_equal_configs_is_excluded_because_they_are_many():
    scores = np.tile(np.random.default_rng(0).normal(size=8), (50, 1))
    selection = select(scores, resamples=500)
    assert selection.p_best.max() < 0.05
    assert selection.not_worse == tuple(range(50))


def test_configs_that_always_reach_the_same_score_share_being_best():
    scores = [[0.1, 0.1, 0.1], [0.1, 0.1, 0.1], [0.1, 0.1, 0.0]]
    selection = select(scores, "mean", resamples=4000)
    all_high = (2 / 3) ** 3
    assert selection.p_best[0] == selection.p_best[1]
    assert selection.p_best[2] == pytest.approx(all_high / 3, abs=0.02)


def test_equal_scores_share_being_best_whatever_the_number_of_seeds_does_to_the_rounding():
    scores = np.full((3, 10), 0.1)
    scores[0, 3:] = scores[1, 6:] = NAN
    assert len({estimate.value for estimate in select(scores, "mean").estimates}) > 1
    assert select(scores, "mean").p_best == pytest.approx([1 / 3] * 3)


def test_a_config_with_one_seed_is_not_told_apart_and_one_without_is_no_choice():
    selection = select([[5.0, 6.0, 7.0], [1.0, NAN, NAN], [NAN, NAN, NAN], [1.0, 1.1, 1.2]], "mean")
    assert selection.not_worse == (0, 1)
    assert selection.p_best[2] == selection.p_as_good[2] == 0
    assert [each.n for each in selection.estimates] == [3, 1, 0, 3]


def test_where_the_best_has_one_seed_no_config_is_told_from_it():
    assert select([[9.0, NAN], [1.0, 1.1], [NAN, NAN]]).not_worse == (0, 1)


def test_a_smaller_loss_is_better_in_probabilities_too():
    one, other = select(SCORES[:3], "mean"), select(-np.array(SCORES[:3]), "mean", mode="min")
    assert one.best == other.best
    np.testing.assert_array_equal(one.p_best, other.p_best)


def test_each_value_shows_the_best_of_the_others_and_their_mean():
    low, high = sensitivity(SCORES, PARAMS, "lr", "mean")
    assert (low.value, low.best_config, low.best.value, low.mean.value, low.configs) == (0.01, 2, 2, 1, (2, 3))
    assert (high.value, high.best_config, high.best.value, high.mean.value, high.configs) == (0.1, 1, 6, 4, (0, 1))
    assert (low.mean.n, low.mean.n_missing, low.mean.low) == (3, 1, None)


def test_the_interval_of_the_best_is_that_of_its_runs_and_that_of_the_mean_is_narrower():
    scores = np.random.default_rng(0).normal(size=(4, 10))
    for setting in sensitivity(scores, PARAMS, "units", "mean"):
        assert setting.best == aggregate(scores[setting.best_config], "mean")
        assert setting.mean.high - setting.mean.low < setting.best.high - setting.best.low


def test_configs_without_the_parameter_are_left_out():
    settings = sensitivity(SCORES, [{"eps": 1}, {"eps": True}, {}, {"eps": 1.0}], "eps", "mean")
    assert [(setting.value, setting.configs) for setting in settings] == [(1, (0, 3)), (True, (1,))]


def test_values_that_are_no_numbers_stay_in_their_order():
    params = [{"net": [64, 64]}, {"net": "small"}, {"net": [64, 64]}, {"net": None}, {"net": "None"}]
    settings = sensitivity([*SCORES, [1.0, 2.0]], params, "net", "mean")
    assert [setting.configs for setting in settings] == [(0, 2), (1,), (3,), (4,)]


def test_a_value_whose_configs_have_no_run_has_no_best():
    (only,) = sensitivity([[NAN, NAN]], [{"lr": 1}], "lr")
    assert only.best_config is None
    assert np.isnan([only.best.value, only.mean.value]).all()


def test_a_config_without_a_run_makes_the_mean_unknown_but_not_the_best():
    (only,) = sensitivity([[NAN, NAN], [1.0, 2.0]], [{"lr": 1}, {"lr": 1}], "lr")
    assert (only.best_config, only.best.value) == (1, 1.5)
    assert np.isnan(only.mean.value)


@pytest.mark.parametrize(
    ("act", "words"),
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
def test_errors_name_the_parameter_and_what_is_allowed(act, words):
    with pytest.raises(ConfigurationError) as caught:
        act()
    assert [word for word in words if word not in str(caught.value)] == []
