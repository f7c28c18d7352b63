"""Old names are translated in stored files, and rejected with their new name when typed or passed.

`python tests/config/test_renames.py` writes docs/renames.md.
"""

import importlib
import re
from pathlib import Path

import pytest
from pydantic import ValidationError

import trieye
from trieye.config import TrieyeConfig
from trieye.config.hydra.keys import field_at
from trieye.config.launcher import LauncherConfig
from trieye.config.sweeper import SweeperConfig
from trieye.renames import KEYS, NAMES, TABLES, current_config, current_override, current_overrides
from trieye.training.config import TrainingConfig

PAGE = Path(__file__).parents[2] / "docs" / "renames.md"
INTRODUCTION = """# Renamed in 0.2.0

Runs and sweeps that earlier commits of 0.2.0 stored are read with their old names. A config file, an override, an
option or an attribute with an old name is an error that states the new one; for `from module import Old`, Python prints
its own ImportError. The names of trieye 0.1.5 are not affected.
`python tests/config/test_renames.py` writes this page from `trieye/renames.py`.
"""
CONFIG_RENAMES = [rename for rename in KEYS.values() if not rename.old.startswith("hydra.")]


def page_text():
    parts = [INTRODUCTION]
    for heading, table in TABLES.items():
        lines = [f"| `{item.old}` | `{item.new}` |" for item in table.values()]
        lines += [
            f"| `{item.new}={old}` | `{item.new}={new}` |"
            for item in table.values()
            for old, new in item.values.items()
        ]
        parts.append("\n".join([f"## {heading}\n", "| old | new |", "|---|---|", *lines, ""]))
    return "\n".join(parts)


def field_of(key):
    options = {"hydra.launcher": LauncherConfig, "hydra.sweeper": SweeperConfig}
    section, _, name = key.rpartition(".")
    root, path = (options[section], [name]) if section in options else (TrainingConfig, key.split("."))
    return field_at(root, path)


def nested(key, value):
    section, name = key.split(".")
    return {section: {name: value}}


def test_the_documentation_page_matches_the_tables():
    assert PAGE.read_text() == page_text(), "write it with `python tests/config/test_renames.py`"


@pytest.mark.parametrize("rename", KEYS.values(), ids=lambda rename: rename.old)
def test_the_new_key_exists_and_the_old_one_does_not(rename):
    assert field_of(rename.old) is None
    assert field_of(rename.new).description
    assert rename.new not in KEYS


@pytest.mark.long
def test_a_typed_old_key_is_an_error_with_the_new_key():
    with pytest.raises(trieye.ConfigurationError) as caught:
        trieye.compose([f"{rename.old}=3" for rename in CONFIG_RENAMES], config_type=TrainingConfig)
    expected = {f"{rename.old}=3: {rename.old} was renamed to {rename.new}" for rename in CONFIG_RENAMES}
    assert set(str(caught.value).splitlines()) == expected


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("+tune.grace=3", "+tune.grace=3: tune.grace was renamed to tune.grace_period"),
        ("tune={grace:3}", "tune.grace was renamed to tune.grace_period"),
        ("experiment=old", "experiment/old.yaml: loop.evaluate_beside was renamed to loop.background_evaluation"),
        ("-m hydra/launcher=trieye hydra.launcher.env={}", "hydra.launcher.env={}: env was renamed to runtime_env"),
        ("-m hydra/launcher=trieye_ray", "hydra/launcher=trieye_ray was renamed to hydra/launcher=trieye"),
    ],
)
def test_an_old_name_on_the_command_line_or_in_a_file_is_an_error_with_the_new_one(project, mistaken, typed, message):
    project.write("experiment/old", "# @package _global_\nloop: {evaluate_beside: true}\n")
    assert message in mistaken(*typed.split())


def test_an_old_key_in_python_is_an_error_with_the_new_key():
    with pytest.raises(ValidationError, match=r"'grace' was renamed to 'grace_period' \(value 3\)"):
        TrieyeConfig(tune={"grace": 3})
    with pytest.raises(AttributeError, match=r"TuneConfig\.grace was renamed to grace_period$"):
        TrieyeConfig().tune.grace  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        TrieyeConfig().tune.nonsense  # noqa: B018


def test_a_stored_config_gets_its_new_keys_in_the_same_order():
    old = {"explorer": {}, "explore": {}, "bench": {}, "tune": {"num_trials": 4, "grace": 2, "target": None}}
    assert list(current_config(old)["tune"].items()) == [("num_trials", 4), ("grace_period", 2), ("target", None)]
    for rename in CONFIG_RENAMES:
        section, name = rename.new.split(".")
        assert current_config({**old, **nested(rename.old, "x")})[section] == {name: "x"}, rename
    assert old["tune"]["grace"] == 2, "the argument is not changed"


def test_sections_of_a_project_with_the_name_of_a_trieye_section_are_unchanged():
    project_values = {"explorer": {"steps": 3}, "sinks": {"without": []}}
    assert current_config(project_values) == {"explorer": {"steps": 3}, "sinks": {"exclude_plugins": []}}
    assert current_overrides(["explorer.steps=3", "sinks.without=[]"], project_values) == [
        "explorer.steps=3",
        "sinks.without=[]",
    ]
    assert current_overrides(["explorer.steps=3", "sinks.without=[]"], None) == [
        "explorer.steps=3",
        "sinks.exclude_plugins=[]",
    ]


@pytest.mark.parametrize(
    ("stored", "current"),
    [
        ("tune.grace=3", "tune.grace_period=3"),
        ("++tune.grace=3", "++tune.grace_period=3"),
        ("~explorer.steps", "~explorer.fragment_steps"),
        ("explorer.steps=8,16", "explorer.fragment_steps=8,16"),
        ("tune.space.explorer.steps='8,16'", "tune.space.explorer.fragment_steps='8,16'"),
        ("hydra.sweeper.params.explorer.steps='8,16'", "hydra.sweeper.params.explorer.fragment_steps='8,16'"),
        ("hydra.launcher.env={pip: [x]}", "hydra.launcher.runtime_env={pip: [x]}"),
        ("tune=asha", "tune=asha"),
        ("hydra/launcher=trieye_ray", "hydra/launcher=trieye"),
        ("tags.note='tune.grace=3'", "tags.note='tune.grace=3'"),
    ],
)
def test_a_stored_override_gets_its_new_key(stored, current):
    config = {"explorer": {"fragment_steps": 8}, "tune": {"grace_period": 1}}
    assert current_overrides([stored], config) == [current]
    assert current_override(stored.partition("=")[0], [item.new for item in KEYS.values()]) == current.partition("=")[0]


@pytest.mark.parametrize("rename", NAMES.values(), ids=lambda rename: rename.old)
def test_an_old_class_or_function_is_an_attribute_error_with_the_new_name(rename):
    module, _, name = rename.old.rpartition(".")
    package = importlib.import_module(module)
    with pytest.raises(AttributeError, match=f"^{re.escape(rename.old)} was renamed to {re.escape(rename.new)}$"):
        getattr(package, name)
    new = rename.new.rpartition(".")[2]
    assert getattr(package, new).__doc__
    assert new in package.__all__
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        package.nonsense  # noqa: B018


if __name__ == "__main__":
    PAGE.write_text(page_text())
