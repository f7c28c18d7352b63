"""A default is defined once, in the model: a changed one takes effect, and no YAML file repeats one."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

import trieye
from trieye.cli.new import answers_of, bake
from trieye.config.base import models_in
from trieye.config.hydra.keys import by_tag
from trieye.config.hydra.schema import default_of, defaults_of
from trieye.config.sweeper import SweeperConfig

OWN = Path(trieye.__file__).parent / "conf"
STATED = {
    "app_name", "env.id", "loop.evaluate_every_steps", "loop.steps", "persistence.checkpoint_save_freq_steps",
    "persistence.keep_last",
}  # fmt: skip
"""Keys that a new project changes."""
DERIVED = {
    "run_name", "persistence.app_name", "persistence.run_name", "persistence.MLFLOW_TRACKING_URI", "stats.metrics",
    "stats.undeclared", "persistence.auto_resume_latest", "persistence.tensorboard_dir_name",
}  # fmt: skip
"""Keys that the program computes, and the metrics, which YAML files state."""
WINS = {"sample/uniform": {"replay.kind"}}
"""Options that state a default to override the choice of another group."""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Return a new project, which can be imported."""
    directory = bake(answers_of({"project_name": "Own defaults"}), tmp_path_factory.mktemp("defaults"))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(directory)
        yield directory


def test_a_new_project_has_the_defaults_of_its_models_except_for_these(project):
    from own_defaults.config import TrainConfig

    agents = by_tag(models_in(TrainConfig.model_fields["agent"])[0])  # other tests have agents of their own
    own_agents = {kind: agent for kind, agent in agents.items() if agent.__module__ == TrainConfig.__module__}
    assert len(own_agents) > 4
    for kind, agent_type in own_agents.items():
        words = [f"agent={kind}", "metrics=[]"]  # without metrics, composing takes half the time
        config = trieye.compose(words, config_path=project / "conf", config_type=TrainConfig)
        composed = dict(leaves(to_jsonable_python(config)))
        defaults = dict(leaves(to_jsonable_python(TrainConfig.model_construct(agent=agent_type.model_construct()))))
        differing = {".".join(path) for path, value in defaults.items() if composed.get(path) != value}
        assert differing - DERIVED == STATED - {"env.id"}, f"agent={kind}"  # env.id has no default
        assert len(defaults) > 150


def test_no_yaml_file_repeats_a_default(project):
    from own_defaults import single_file
    from own_defaults.config import TrainConfig

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


def leaves(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each value with the keys that lead to it."""
    if isinstance(values, dict) and values:
        for key, value in values.items():
            yield from leaves(value, (*path, str(key)))
    else:
        yield path, values


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
