"""Every config file on disk composes and builds the model."""

import itertools
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from pydantic import Field

import trieye
from trieye.config import TrieyeConfig
from trieye.config.hydra.compose import compose
from trieye.config.sinks import OUR_NAMES
from trieye.replay import ReplayBuffer

CONF = Path(trieye.__file__).parent / "conf"
FILES = sorted(path.relative_to(CONF).with_suffix("") for path in CONF.rglob("*.yaml"))
OPTIONS = [path for path in FILES if len(path.parts) > 1]
LIST_GROUPS = {"metrics", "sinks"}
TRAINING_GROUPS = {"explorer", "sync"}
"""Groups of a `TrainingConfig`."""


class OwnConfig(trieye.ReplayAgentConfig):
    kind: Literal["own"] = "own"


class TrainConfig(trieye.TrainingConfig):
    agent: OwnConfig = Field(default_factory=lambda: OwnConfig(engine="a:B"))
    env: trieye.EnvConfig = Field(default_factory=lambda: trieye.EnvConfig(id="CartPole-v1"))


def _override(option: Path) -> list[str]:
    group, name = option.parts
    if group == "metric":
        slug = f"stats.metrics.{name}"
        return [f"+metric@{slug}={name}", f"{slug}.name={name}", f"{slug}.rate_numerator_event=y"]
    return [f"{group}=[{name}]" if group in LIST_GROUPS else f"{group}={name}"]


def _option_combinations() -> list[list[Path]]:
    """Return all options, combined to the fewest configs: each has an option of every group, the first all metrics."""
    names = sorted({path.parts[0] for path in OPTIONS} - TRAINING_GROUPS)
    groups = [[path for path in OPTIONS if path.parts[0] == group] for group in names]
    rows = itertools.zip_longest(*(group for group in groups if group[0].parts[0] != "metric"))
    chosen = [[path for path in row if path is not None] for row in rows]
    return [[*chosen[0], *(path for path in OPTIONS if path.parts[0] == "metric")], *chosen[1:]]


@pytest.mark.parametrize("options", _option_combinations(), ids=lambda options: " ".join(map(str, options[:3])))
def test_each_option_builds_the_config(options):
    config = compose([word for option in options for word in _override(option)])
    assert isinstance(config, TrieyeConfig)
    assert (config.persistence.keep_last, config.persistence.auto_resume_latest) == (3, False)


@pytest.mark.long
@pytest.mark.parametrize("option", sorted((CONF / "sync").glob("*.yaml")), ids=lambda path: path.stem)
def test_each_option_of_explorers_builds_a_training_config(option):
    config = compose([f"+sync={option.stem}", "+explorer=four"], config_type=TrainConfig)
    assert (config.sync.style, config.explorer.num) == (option.stem, 4)


@pytest.mark.parametrize("file", FILES, ids=str)
def test_each_file_starts_with_the_line_that_help_shows(file):
    lines = (CONF / f"{file}.yaml").read_text().splitlines()
    first = next(line for line in lines if not line.startswith("# @package"))
    assert first.startswith("# ")
    assert len(first) > 10


@pytest.mark.long
def test_only_the_chosen_sinks_are_enabled():
    assert compose(["sinks=[console]"]).sinks.enabled == ["console"]
    assert compose(["sinks=[]"]).sinks.enabled == []
    assert compose().sinks.enabled == ["mlflow", "tensorboard"]


@pytest.mark.long
@pytest.mark.parametrize("chosen", ["[mlflow,wandb]", *OUR_NAMES])
def test_sinks_have_the_alias_logger(chosen):
    sinks = compose([f"sinks={chosen}"]).sinks
    assert compose([f"logger={chosen}"]).sinks == sinks
    assert compose([f"logger={chosen}", "experiment=example"]).sinks == sinks


@pytest.mark.long
def test_an_empty_logger_leaves_the_choice_of_sinks_unchanged():
    assert compose(["logger=[]", "experiment=example"]).sinks == compose().sinks


@pytest.mark.long
def test_metric_sets_merge_and_can_be_omitted():
    names = lambda *overrides: [metric.name for metric in compose(overrides).stats.metrics]  # noqa: E731 - short
    core, replay = names("metrics=core"), names("metrics=replay")
    assert {"episode/return", "rate/env_steps_per_sec"} < set(core)
    assert "replay/size" in replay
    assert names() == core
    assert names("metrics=[core,replay]") == core + replay
    assert names("metrics=[]") == []
    assert names("~stats.metrics.step_ms") == core[:-1]


def test_each_metric_of_a_replay_buffer_is_declared():
    buffer = ReplayBuffer(100)
    buffer.metrics()
    buffer.extend({"obs": np.zeros(50), "version": np.zeros(50)})
    buffer.sample(10)
    declared = {metric.name for metric in compose(["metrics=replay"]).stats.metrics}
    assert buffer.metrics().keys() <= declared


def test_a_metric_is_added_with_a_template_and_keys_that_no_file_sets_can_be_overridden():
    added = ["+metric@stats.metrics.y=max", "stats.metrics.y.name=Ep/R", "stats.metrics.y.log_frequency_steps=7"]
    config = compose([*added, "stats.metrics.step_ms.x_axis=wall_time", "loop.objective=loss/td", "+tags.fold=3"])
    assert next(metric for metric in config.stats.metrics if metric.name == "time/step_ms").x_axis == "wall_time"
    metric = config.stats.metrics[-1]
    assert (metric.name, metric.aggregation, metric.log_frequency_steps) == ("Ep/R", "max", 7)
    assert config.loop.objective == "loss/td"
    assert config.tags == {"fold": "3"}


@pytest.mark.long
def test_presets_choose_groups_and_can_be_overridden():
    config = compose(["debug=default"])
    assert (config.runtime.kind, config.loop.steps) == ("local", 20)
    assert config.sinks.enabled == ["console"]
    config = compose(["experiment=example", "runtime=ray", "loop.steps=5"])
    assert (config.runtime.kind, config.loop.steps, config.persistence.checkpoint_save_freq_steps) == ("ray", 5, 200)
