"""Every option on disk composes to a valid config, and mistakes are named."""

from pathlib import Path

import hydra
import pytest
import trieye

from {{ cookiecutter.slug }}.config import TrainConfig

CONF = Path(__file__).parent.parent / "conf"
FILES = [path.relative_to(CONF) for path in CONF.glob("*/*.yaml") if path.parent.name != "local"]


def compose(*overrides: str) -> TrainConfig:
    return trieye.compose(overrides, config_path=CONF, config_type=TrainConfig)


@pytest.mark.parametrize("file", sorted(FILES), ids=str)
def test_every_option_composes(file: Path):
    assert isinstance(compose(f"{file.parent}={file.stem}"), TrainConfig)


def test_the_command_line_reaches_the_config():
    config = compose("optimizer.lr=3e-4", "runtime=local", "agent.hidden=[8,8]")
    assert config.optimizer.lr == 3e-4
    assert config.runtime.kind == "local"
    assert config.agent.hidden == [8, 8]


def test_hydra_composes_the_same_configs():
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        config = hydra.compose("train", overrides=["experiment=quick", "optimizer.lr=3e-4"])
    assert config.loop.steps == compose("experiment=quick").loop.steps
    assert config.optimizer.lr == 3e-4
    assert config.agent.batch_size == compose().agent.batch_size


def test_presets_win_over_the_defaults():
    assert compose("experiment=quick").loop.steps == 500
    assert compose("experiment=quick", "loop.steps=7").loop.steps == 7


@pytest.mark.parametrize(
    ("option", "steps", "buffer"), [("default", 500, True), ("fast", 100, False), ("none", 0, False)]
)
def test_an_option_of_persistence_does_what_it_says(option: str, steps: int, buffer: bool):
    persistence = compose(f"persistence={option}").persistence
    assert (persistence.checkpoint_save_freq_steps, persistence.save_buffer) == (steps, buffer)


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("optimizer.lr=0", "optimizer.lr"),
        ("optimizer.lrr=1", "optimizer.lr"),
        ("agent=dqm", "dqn"),
        ("agent.hidden=[8,0]", "agent.hidden"),
        ("agent.hidden=[8,1000000]", "agent.hidden"),
        ("agent.epsilon_end=2", "agent.epsilon_end"),
        ("agent.epsilon_start=0.01", "epsilon_end"),
    ],
)
def test_a_mistake_is_named(override: str, named: str):
    with pytest.raises(trieye.ConfigurationError, match=named):
        compose(override)
