"""A default is defined once, in the model: a changed one takes effect, and no YAML file repeats one."""

import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

import trieye
from tests import warm
from tests.changed_defaults import leaves
from trieye.cli.new import answers_of, bake
from trieye.config.base import models_in
from trieye.config.hydra.keys import by_tag
from trieye.config.hydra.schema import default_of, defaults_of
from trieye.config.sweeper import SweeperConfig

OWN = Path(trieye.__file__).parent / "conf"
KINDS = [
    "dqn",
    "ppo",
    "sac",
    *(pytest.param(kind, marks=pytest.mark.long) for kind in ("blank", "recurrent_ppo", "td3")),
]
STATED = {
    "app_name", "env.id", "loop.evaluate_every_steps", "loop.steps", "persistence.checkpoint_save_freq_steps",
    "persistence.keep_last",
}  # fmt: skip
"""Keys that a new project changes."""
WINS = {"sample/uniform": {"replay.kind"}}
"""Options that state a default to override the choice of another group."""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return bake(answers_of({"project_name": "My Agent"}), tmp_path_factory.mktemp("defaults"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_changed_default_of_a_new_project_takes_effect(project, kind):
    program = Path(__file__).parent / "changed_defaults.py"
    done = warm.run([str(program), f"agent={kind}"], project, modules=warm.LIGHT)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["differing"] == {}
    assert printed["num"] > 150
    assert {key for key in printed["stated"] if not key.startswith("stats.metrics.")} == STATED


def test_no_yaml_file_repeats_a_default(project, monkeypatch):
    monkeypatch.syspath_prepend(str(project))
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_agent"]:
        monkeypatch.delitem(sys.modules, name)
    from my_agent import single_file
    from my_agent.config import TrainConfig

    programs: dict[str, type[BaseModel]] = {"single_file": single_file.Config, "sb3": trieye.TrieyeConfig}
    repeated = []
    for conf in (OWN, project / "conf"):
        for file in sorted(conf.rglob("*.yaml")):
            name = str(file.relative_to(conf).with_suffix(""))
            model = programs.get(name, TrainConfig)
            for path, value in _stated(file, name):
                key = ".".join(path)
                is_reset = name not in {"train", *programs} and key in STATED - {"env.id"}
                if _has_default(model, path, value, name.rpartition("/")[2]) and not is_reset:
                    repeated += [] if key in WINS.get(name, ()) else [f"{name}: {key}={value}"]
    assert not repeated, "\n".join(repeated)


def _stated(file: Path, name: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    text = file.read_text()
    values = {key: value for key, value in (yaml.safe_load(text) or {}).items() if key != "defaults"}
    group, _, option = name.rpartition("/")
    path = [group] if group else []
    first = text.partition("\n")[0].removeprefix("# @package ")
    if text.startswith("# @package"):
        path = [] if first == "_global_" else first.split(".")
    if group == "metric":
        path = ["stats", "metrics", option]
    yield from leaves(values, tuple(path)) if values else ()


@cache
def _defaults(model: type[BaseModel]) -> dict[str, Any]:
    return defaults_of(model, {})


def _has_default(model: type[BaseModel], path: tuple[str, ...], value: Any, option: str) -> bool:
    """Return whether the value at a path equals the default of the model."""
    if path[:2] == ("hydra", "sweeper"):
        return path[2] != "params" and default_of(SweeperConfig.model_fields[path[2]]) == value
    default: Any = dict(_defaults(model))
    if path[0] == "agent":
        if len(path) > 2:  # a schedule is stated as a whole
            return False
        info = model.model_fields["agent"]
        kinds = by_tag(models_in(info)[0])
        kind = kinds[max((name for name in kinds if option.startswith(name)), key=len)]
        default["agent"] = {name: default_of(info) for name, info in kind.model_fields.items()}
    if path[:2] == ("stats", "metrics"):
        fields = models_in(trieye.StatsConfig.model_fields["metrics"])[0][0].model_fields
        return len(path) > 3 and default_of(fields[path[3]]) == value
    for name in path:
        if not isinstance(default, dict) or name not in default:
            return False
        default = default[name]
    return bool(default == value)
