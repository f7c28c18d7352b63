"""`--help` explains groups, options, keys and flags."""

import re
import shlex
import sys
from collections.abc import Callable
from typing import get_args

import pytest
from pydantic import Field

import trieye
from trieye.config import AggregationMethod, TrieyeConfig
from trieye.config.base import StrictModel
from trieye.config.hydra.loader import ConfigSource, opened
from trieye.config.hydra.preflight import Preflight

HelpText = Callable[..., str]


class AgentConfig(StrictModel):
    lr: float = Field(default=1e-3, gt=0, le=1, description="Step size.")


class TrainConfig(TrieyeConfig):
    agent: AgentConfig = Field(default_factory=AgentConfig, description="The learning algorithm.")
    critic: AgentConfig | None = Field(default=None, description="The critic.")
    env: trieye.EnvConfig = Field(default=trieye.EnvConfig(id="CartPole-v1"), description="The environment.")


SHOWN: dict[tuple[str, ...], str] = {}
"""What was shown, by the files of the project and the arguments."""


@pytest.fixture
def help_text(project, monkeypatch, capsys):
    def show_help(*arguments: str) -> str:
        @trieye.main(config_path=str(project.conf))
        def train(config: TrainConfig) -> None:
            """Train an agent.

            This is not shown.
            """

        key = (*(path.read_text() for path in sorted(project.conf.rglob("*.yaml"))), *arguments)
        if key not in SHOWN:
            monkeypatch.setattr(sys, "argv", ["train.py", "--help", *arguments])
            train()
            printed = capsys.readouterr()
            assert printed.err == ""
            assert project.created_files() == []
            SHOWN[key] = printed.out
        return SHOWN[key]

    return show_help


def test_help_shows_each_group_with_its_options_and_marks_the_choice(help_text):
    lines = help_text().splitlines()
    runtime = lines.index("  runtime: Where the hub lives, which records the run.")
    assert lines[runtime + 1 : runtime + 4] == [
        "      cluster  The hub is a Ray actor on the cluster at runtime.address.",
        "    * local    Everything in this process, without Ray: deterministic, for small runs, tests and debugging.",
        "      ray      The hub is a Ray actor on this machine; Ray is started if it is not running.",
    ]
    assert [line.split(":")[0].strip() for line in lines if line.startswith("  ") and line[2] != " " and ": " in line][
        :8
    ] == ["runtime", "persistence", "stats", "metrics", "sinks", "replay", "loop", "experiment"]
    # a `TrieyeConfig` has no such groups
    assert not [line for line in lines if line.startswith(("  sync:", "  explorer:"))]
    assert [line for line in lines if line.startswith("  metric:")]


def test_help_marks_the_options_chosen_by_overrides(help_text):
    text = help_text("metrics=[replay]", "runtime=ray", "experiment=example")
    assert "    * replay " in text
    assert "      core " in text
    assert "    * example " in text
    assert "seed = 0 " in text


def test_help_begins_with_the_task_and_has_examples_and_flags(help_text):
    text = help_text()
    assert text.startswith("Train an agent.\n\nUsage\n")
    assert "This is not shown" not in text
    assert text.count("train.py") + text.count(" -m ") > 4
    for flag in ("--multirun", "--cfg job", "--hydra-help"):
        assert flag in text


@pytest.mark.long
def test_help_lists_the_keys_of_the_project(help_text):
    assert "  agent.*" in help_text()
    assert help_text("agent").splitlines() == ["  agent.lr = 0.001", "      a number > 0 and <= 1. Step size."]
    assert help_text("agent.lr", "agent.lr=0.5").splitlines()[0] == "  agent.lr = 0.5"


def test_help_explains_keys_without_a_value(help_text):
    assert help_text("critic").splitlines()[0] == "  critic.lr = null"


def test_help_shows_no_example_that_the_project_cannot_run(project, help_text):
    assert "experiment=example" in help_text()
    project.write("train", "defaults: [schema, _self_]\n")
    text = help_text()
    assert "experiment=example" not in text
    assert "-m seed=0,1,2" in text


@pytest.mark.long
def test_every_example_of_help_composes(project, help_text):
    text = help_text()
    lines = text[text.index("Usage") : text.index("Groups:")].splitlines()[3:]
    examples = [line for line in lines if line.startswith("  ") and line[2] != " "]
    flag = next(line for line in text.splitlines() if line.startswith("  -m, --multirun"))
    examples.append(flag.rpartition(": ")[2])
    assert len(examples) == 6
    for example in examples:
        arguments = shlex.split(example)
        overrides = [word for word in arguments if "=" in word or word.startswith("~")]
        assert overrides
        with opened(ConfigSource(str(project.conf), "train"), TrainConfig, run_name="r") as loader:
            Preflight(loader, TrainConfig).compose(overrides, multirun="-m" in arguments)


def test_help_explains_the_keys_of_a_metric(help_text):
    text = help_text("stats.metrics")
    options = ", ".join(get_args(AggregationMethod))
    assert f"  stats.metrics.<name>.aggregation\n      one of {options}. " in text
    assert "metrics=[] declares no metric, so stats.undeclared applies to every event" in help_text("metrics")


def test_help_explains_the_keys_of_a_wrapper(help_text):
    lines = help_text("env.wrappers.stack").splitlines()
    assert "  env.wrappers = {}" in lines
    assert [line for line in lines if line.startswith("  env.wrappers.<name>.")] == [
        f"  env.wrappers.<name>.{key}" for key in ("name", "kwargs", "training_only")
    ]
    assert "env.wrappers.<name>.kwargs\n" in (text := help_text("env.wrappers.stack.kwargs.size"))
    assert "env.wrappers.<name>.name\n" not in text


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        ("metics", r"unknown key or group 'metics'; did you mean 'metrics'\? \(keys and groups: agent, .*, stats, "),
        ("hydra.sweeper.prunr", r"unknown key 'prunr' in hydra.sweeper; did you mean 'pruner'\?"),
        ("stats.metrics.a.nme", r"unknown key 'nme' in stats.metrics.a; did you mean 'name'\?"),
    ],
)
def test_help_about_an_unknown_key_lists_the_keys_beside_it(help_text, capsys, topic, message):
    with pytest.raises(SystemExit):
        help_text(topic, "hydra/sweeper=trieye")
    assert re.match(f"error: --help {topic}: {message}", capsys.readouterr().err)


@pytest.mark.long
def test_help_explains_the_keys_of_the_selected_launcher_and_sweeper(help_text):
    text = help_text("hydra.sweeper", "hydra/sweeper=trieye")
    assert text == help_text("hydra/sweeper", "hydra/sweeper=trieye")
    assert "  hydra.sweeper.num_trials = 20\n" in text
    (key, about) = help_text("hydra.launcher.num_jobs", "hydra/launcher=trieye").splitlines()
    assert key == "  hydra.launcher.num_jobs = null"
    assert about.startswith("      an integer >= 1 or null.")
    with pytest.raises(SystemExit):
        help_text("hydra.sweeper")  # Hydra's own has other keys


@pytest.mark.long
def test_help_explains_a_group_but_not_keys_set_by_another_key(help_text):
    assert "persistence.run_name" not in help_text("persistence")
    lines = help_text("loop").splitlines()
    assert lines[0].startswith("  loop: ")
    assert "  loop.steps = null" in lines
    assert "      an integer >= 1 or null. Stop after this many steps, in units of `axis`; null = never." in lines


def test_a_group_is_explained_by_the_comment_in_the_defaults_list(project, help_text):
    primary = (project.conf / "train.yaml").read_text()
    project.write("train", primary.replace("- runtime: local", "- runtime: local   # my own words"))
    assert "  runtime: my own words\n" in help_text()


def test_an_option_of_the_project_is_listed_with_its_first_comment(project, help_text):
    project.write("experiment/mine", "# @package _global_\n# All my settings.\n# More.\nseed: 3\n")
    assert "mine     All my settings.\n" in help_text()


def test_every_field_of_the_config_is_described():
    def undescribed(model: type, prefix: str = "") -> list[str]:
        from trieye.config.base import models_in

        names = []
        for name, info in model.model_fields.items():
            names += [] if info.description else [prefix + name]
            for inner in models_in(info)[0]:
                names += undescribed(inner, f"{prefix}{name}.")
        return names

    assert undescribed(TrieyeConfig) == []
