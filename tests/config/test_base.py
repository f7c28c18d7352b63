"""Strict and tolerant models."""

import warnings

import pytest
from pydantic import Field, ValidationError

from trieye.config import STRICT, LoopConfig, MetricConfig, PersistenceConfig, StatsConfig, TrieyeConfig
from trieye.config.agent import AgentConfig
from trieye.config.base import nearest
from trieye.exceptions import ConfigurationError


def test_a_tolerant_model_warns_of_an_unknown_key_and_names_the_nearest():
    with pytest.warns(
        UserWarning, match="MetricConfig: unknown key 'agregation' is ignored; did you mean 'aggregation'"
    ):
        metric = MetricConfig(name="x", agregation="mean")
    assert metric.aggregation == "latest"


@pytest.mark.parametrize("model", [MetricConfig, StatsConfig, PersistenceConfig, TrieyeConfig, None])
def test_a_tolerant_model_refuses_unknown_keys_where_they_are_typed(model):
    values = {"name": "x", "nonsense": 1} if model in {MetricConfig, None} else {"nonsense": 1}
    with pytest.raises(ValidationError, match="unknown key nonsense"):  # None: inside of others
        (model or TrieyeConfig).model_validate(values if model else {"stats": {"metrics": [values]}}, context=STRICT)


def test_a_strict_model_is_frozen_and_refuses_unknown_keys_with_the_nearest():
    message = r"unknown key 'stps'; did you mean 'steps'\? \(keys: axis, .*, time_s\)"
    with pytest.raises(ValidationError, match=message):
        LoopConfig(stps=3)
    with pytest.raises(ValidationError, match=rf"loop\n *{message}"):
        TrieyeConfig(loop={"stps": 3})
    with pytest.raises(ValidationError, match=r"runtime\n *in Python a kind is written as \{'kind': 'local'\}"):
        TrieyeConfig(runtime="local")
    with pytest.raises(ValidationError, match="frozen"):
        LoopConfig().steps = 3


def test_upper_case_names_work_as_arguments_and_as_attributes():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = PersistenceConfig(ROOT_DATA_DIR="x", RUN_NAME="r", SAVE_BUFFER=False, CHECKPOINT_SAVE_FREQ_STEPS=3)
    assert (config.root_data_dir, config.ROOT_DATA_DIR) == ("x", "x")
    config.RUN_NAME = "other"
    assert (config.run_name, config.RUN_NAME) == ("other", "other")
    with pytest.raises(AttributeError):
        _ = config.NO_SUCH_NAME


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_must_be_finite(value):
    with pytest.raises(ValidationError):
        MetricConfig(name="x", log_frequency_seconds=value)


@pytest.mark.parametrize(
    ("word", "expected"), [("lokal", "local"), ("RAY", "ray"), ("clus", "cluster"), ("xyz", None), ("", None)]
)
def test_the_nearest_word_is_close_or_begins_alike(word, expected):
    assert nearest(word, ["local", "ray", "cluster"]) == expected


def test_a_field_of_a_project_does_not_take_the_place_of_another_one():
    with pytest.raises(
        ConfigurationError, match=r"Mine.loop: trieye has a key of this name already, for something else"
    ):

        class Mine(TrieyeConfig):
            loop: dict[str, int] = Field(default_factory=dict)

    class Narrower(LoopConfig):
        more: int = 1

    class Fits(TrieyeConfig):
        loop: Narrower = Field(default_factory=Narrower)
        seed: int = 7

    assert (Fits().loop.more, Fits().seed) == (1, 7)


def test_a_kind_of_action_that_is_none_is_named():
    with pytest.raises(ConfigurationError, match=r"TypoConfig.actions: 'continous' .* did you mean 'continuous'\?"):

        class TypoConfig(AgentConfig):
            actions = ("continous",)
