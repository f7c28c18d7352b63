"""Strict models."""

import pytest
from pydantic import Field, ValidationError

from trieye.config import LoopConfig, MetricConfig, PersistenceConfig, StatsConfig, TrieyeConfig
from trieye.config.agent import AgentConfig
from trieye.config.base import nearest
from trieye.exceptions import ConfigurationError
from trieye.training.config import TrainingConfig


@pytest.mark.parametrize(
    "model", [MetricConfig, StatsConfig, PersistenceConfig, TrieyeConfig, TrainingConfig, LoopConfig]
)
def test_each_model_rejects_unknown_keys_with_the_closest_match(model):
    required = {"name": "x"} if model is MetricConfig else {}
    for name in model.model_fields.keys() - required:
        with pytest.raises(ValidationError, match=rf"unknown key '{name}x'; did you mean '{name}'\?") as raised:
            model(**required, **{f"{name}x": 1})
        assert f"{name}x" in {error["loc"][0] for error in raised.value.errors()}
    with pytest.raises(
        ValidationError, match=r"stats\.metrics\.0\.agregation\n *unknown key 'agregation'; did you mean"
    ):
        TrieyeConfig(stats={"metrics": [{"name": "x", "agregation": "mean"}]})


def test_all_unknown_keys_are_reported_at_once():
    with pytest.raises(ValidationError) as raised:
        TrieyeConfig(sed=3, lop={}, seed=-1)
    assert [error["loc"] for error in raised.value.errors()] == [("sed",), ("lop",)]


def test_a_config_is_frozen():
    class ProjectConfig(TrieyeConfig):
        seed: int = 0

    config = ProjectConfig()
    with pytest.raises(ValidationError, match="frozen"):
        config.loop.steps = 3
    for name in ("seed", "SEED", "sed", "run_name"):  # also run_name, which programs of 0.1.5 assign to a TrieyeConfig
        with pytest.raises(ValidationError, match="frozen"):
            setattr(config, name, "not a number")
    assert (config.seed, config.run_name[:4]) == (0, "run_")


def test_a_number_must_be_finite():
    with pytest.raises(ValidationError):
        MetricConfig(name="x", log_frequency_seconds=float("inf"))


def test_an_unknown_key_is_reported_with_the_keys_of_its_model():
    with pytest.raises(ValidationError, match=r"stps'; did you mean 'steps'\? \(keys: axis, .*, time_s\)"):
        LoopConfig(stps=3)
    with pytest.raises(ValidationError, match=r"runtime\n *expected keys, as in \{'kind': 'local'\}"):
        TrieyeConfig(runtime="local")


@pytest.mark.parametrize(
    ("word", "expected"), [("lokal", "local"), ("RAY", "ray"), ("clus", "cluster"), ("xyz", None), ("", None)]
)
def test_the_closest_word_has_few_typos_or_the_same_prefix(word, expected):
    assert nearest(word, ["local", "ray", "cluster"]) == expected


def test_a_field_of_a_project_cannot_replace_a_key_of_trieye():
    with pytest.raises(ConfigurationError, match=r"Mine.loop: trieye already has a key of this name"):

        class Mine(TrieyeConfig):
            loop: dict[str, int] = Field(default_factory=dict)

    class Narrower(LoopConfig):
        more: int = 1

    class Fits(TrieyeConfig):
        loop: Narrower = Field(default_factory=Narrower)
        seed: int = 7

    assert (Fits().loop.more, Fits().seed) == (1, 7)


def test_an_unknown_kind_of_action_is_named():
    with pytest.raises(
        ConfigurationError, match=r"TypoConfig.actions: unknown kind 'continous'; did you mean 'continuous'\?"
    ):

        class TypoConfig(AgentConfig):
            actions = ("continous",)
