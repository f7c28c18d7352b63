"""Test that every option composes to a valid config, and that errors name the invalid key."""

from pathlib import Path

import hydra
import pytest
import trieye

from {{ cookiecutter.slug }}.config import TrainConfig

CONF = Path(__file__).parent.parent / "conf"
FILES = [path.relative_to(CONF) for path in CONF.glob("*/*.yaml") if path.parent.name != "local"]


def compose(*overrides: str, config_name: str = "train") -> TrainConfig:
    return trieye.compose(overrides, config_path=CONF, config_name=config_name, config_type=TrainConfig)


@pytest.mark.parametrize("file", sorted(FILES), ids=str)
def test_every_option_composes(file: Path):
    dataset = ["data=rows.npz"] if file.stem in {"mix", "warmup"} else []
    assert isinstance(compose(f"{file.parent}={file.stem}", *dataset), TrainConfig)


def test_overrides_reach_the_config():
    config = compose("agent=dqn", "agent.lr=3e-4", "runtime=local", "agent.hidden_sizes=[8,8]", "logger=tensorboard")
    assert config.agent.lr(0) == 3e-4
    assert config.runtime.kind == "local"
    assert config.agent.hidden_sizes == [8, 8]
    assert config.sinks.enabled == ["tensorboard"]


def test_explorers_take_two_overrides():
    config = compose("explorer.num=4", "sync=fully_async")
    assert (config.explorer.num, config.sync.style) == (4, "fully_async")
    assert compose("explorer=four").explorer.num == 4


def test_hydra_composes_the_same_config():
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        config = hydra.compose("train", overrides=["debug=limit", "seed=7"])
    assert config.loop.steps == compose("debug=limit").loop.steps == 1
    assert config.seed == 7


def test_presets_override_defaults_and_the_command_line_overrides_presets():
    config = compose("debug=default", "loop.steps=7")
    assert (config.loop.steps, config.loop.evaluate_every_steps) == (7, 10)


def test_the_eval_config_benchmarks_checkpoints():
    assert compose("run_name=first", config_name="eval").mode == "bench"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["agent=dqm"], "did you mean 'dqn'"),
        (["agent=dqn", "agent.lrr=1"], "agent.lr"),
        (["agent=dqn", "agent.lr=-1", "agent.hidden_sizes=[8,0]"], "(?s)agent.hidden_sizes.*\nagent.lr=-1: expected"),
        (["agent=dqn", "replay=sequence"], "choose uniform or prioritized"),
        (["agent=ppo", "replay=prioritized"], "has no replay"),
        (["agent=dqn", "sample=mix"], "set data=<file>"),
    ],
)
def test_an_error_names_the_key(overrides: list[str], message: str):
    with pytest.raises(trieye.ConfigurationError, match=message):
        compose(*overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["agent=dqn", "env=pendulum"], "this agent supports a Discrete space"),
        (["agent=sac", "env=cartpole"], "this agent supports a bounded Box"),
        (["agent=dqn", "env.id=CartPol-v1"], "did you mean 'CartPole-v1'"),
    ],
)
def test_check_rejects_an_environment_that_does_not_fit(overrides: list[str], message: str):
    with pytest.raises(trieye.ConfigurationError, match=message):
        compose(*overrides).check()
