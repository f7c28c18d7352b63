"""`trieye.compose` and the decorator `trieye.main`."""

import os
import pickle
import traceback
from pathlib import Path

import hydra
import pytest
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from pydantic import Field

import trieye
from trieye.config import TrieyeConfig
from trieye.config.base import StrictModel
from trieye.config.hydra import loader, registration
from trieye.config.hydra.compose import compose
from trieye.config.hydra.launch import launch_info
from trieye.config.hydra.loader import VERSION_BASE
from trieye.config.hydra.main import config_type_of
from trieye.exceptions import ConfigurationError

COMPOSING = """
import hydra
import trieye
from hydra.core.hydra_config import HydraConfig

class Other(trieye.TrieyeConfig):
    other: int = 5

@trieye.main()
def train(config: trieye.TrieyeConfig) -> None:
    other = trieye.compose(["runtime=local"], config_type=Other).other
    print("job", HydraConfig.get().job.num, config.seed, other, HydraConfig.get().job.name)

train()
"""


class AgentConfig(StrictModel):
    lr: float = Field(default=1e-3, gt=0)
    layers: list[int] = Field(default=[64, 64])


class TrainConfig(TrieyeConfig):
    agent: AgentConfig = AgentConfig(lr=0.5)
    steps: int


def test_the_config_of_a_project_is_composed_with_its_own_type(project):
    project.write("train", (project.conf / "train.yaml").read_text() + "steps: 7\n")
    config = compose(["agent.layers=[3]"], config_path=project.conf, config_type=TrainConfig)
    assert isinstance(config, TrainConfig)
    assert (config.steps, config.agent, config.app_name) == (7, AgentConfig(lr=0.5, layers=[3]), "tested")
    assert config.runtime.kind == "local"


def test_a_missing_required_key_says_how_to_set_it(project):
    with pytest.raises(ConfigurationError, match=r"^steps has no value; set it with steps=<value>"):
        compose(config_path=project.conf, config_type=TrainConfig)
    with pytest.raises(ConfigurationError, match=r"^agent\.lr has no value; .*\nsteps has no value"):
        compose(["agent.lr=???"], config_path=project.conf, config_type=TrainConfig)
    with pytest.raises(ConfigurationError, match=r"^agent\.layers\[1\] has no value"):
        compose(["agent.layers=[1,???]", "steps=1"], config_path=project.conf, config_type=TrainConfig)


def test_a_relative_config_path_is_relative_to_the_file_of_the_caller(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    relative = os.path.relpath(Path(trieye.__file__).parent / "conf", Path(__file__).parent)
    assert compose(["metrics=[]"], config_path=relative, config_name="trieye").app_name == "default_app"


def test_a_relative_config_path_without_a_file_is_relative_to_the_working_directory(project):
    namespace: dict[str, object] = {"compose": compose}
    exec("config = compose(config_path='conf')", namespace)  # noqa: S102 - as a notebook does
    assert namespace["config"].app_name == "tested"


def test_composing_leaves_the_global_state_of_hydra_unchanged(project):
    compose(config_path=project.conf)
    assert not GlobalHydra.instance().is_initialized()
    assert not HydraConfig.initialized()
    assert launch_info() is None


def test_configs_without_a_run_name_are_different_runs(project):
    configs = [trieye.compose(config_path=project.conf), *(TrieyeConfig() for _ in range(3))]
    assert len({config.run_name for config in configs}) == len(configs)
    for config in configs:
        copies = pickle.loads(pickle.dumps(config)), TrieyeConfig.model_validate(config.model_dump())
        assert {copy.run_name for copy in copies} == {config.persistence.run_name} == {config.run_name}


@pytest.mark.long
def test_each_job_of_a_sweep_can_compose_another_config(project):
    (project.directory / "train.py").write_text(COMPOSING)
    completed = project.run("-m", "seed=1,2", "runtime=glob(l*)")  # Hydra itself lists the options of trieye
    assert completed.code == 0, completed.err
    assert [line for line in completed.out.splitlines() if line.startswith("job")] == [
        "job 0 1 5 train",
        "job 1 2 5 train",
    ]


@pytest.fixture
def registered(monkeypatch):
    """Restore the registration after a test."""
    monkeypatch.setattr(registration, "current", None)
    yield
    ConfigStore.instance().repo.pop("schema.yaml", None)


@pytest.mark.long
def test_hydra_itself_composes_configs_of_a_registered_type(project, registered):
    trieye.register(TrainConfig)
    with hydra.initialize_config_dir(str(project.conf), **VERSION_BASE):
        before = hydra.compose("train", ["metrics=[core,replay]", "agent.lr=2"])
        typed = trieye.compose(["seed=3"], config_path=project.conf, config_name="train")
        after = hydra.compose("train", ["steps=7"])
    assert before.agent == {"lr": 2, "layers": [64, 64]}
    assert set(before.stats.metrics) > set(after.stats.metrics)
    assert typed.seed == 3
    assert (after.steps, after.agent.lr) == (7, 0.5)


def test_only_a_trieye_config_can_be_registered(registered):
    with pytest.raises(ConfigurationError, match=r"AgentConfig.*use trieye\.TrieyeConfig or a subclass"):
        trieye.register(AgentConfig)


def test_a_project_can_extend_its_primary_config_and_override_files_of_trieye(project):
    project.write("other", "defaults:\n  - train\n  - _self_\nseed: 5\n")
    project.write("runtime/ray", "# mine\nnum_cpus: 3\n")
    config = compose(["sinks=[mlflow]", "runtime=ray"], config_path=project.conf, config_name="other")
    assert (config.seed, config.app_name, config.sinks.mlflow.enabled) == (5, "tested", True)
    assert config.runtime.num_cpus == 3


def test_a_default_can_name_the_choices_of_other_groups(project, monkeypatch):
    maps, create = [], loader._map_of_choices
    monkeypatch.setattr(loader, "_map_of_choices", lambda *args: maps.append(create(*args)) or maps[-1])
    assert compose(["runtime=local"], config_path=project.conf).tags == {}
    assert maps == []  # each would take 1 ms
    project.write("pair/local_first", "# @package _global_\ntags: {pair: chosen}\n")
    project.write("other", "defaults:\n  - train\n  - pair: ${runtime}_first\n  - _self_\n")
    assert compose(["runtime=local"], config_path=project.conf, config_name="other").tags == {"pair": "chosen"}
    assert [each.runtime for each in maps] == ["local"]


def test_values_of_hydra_are_interpolated_and_paths_are_relative_to_the_working_directory(project):
    words = ["app_name=${hydra:job.name}_${seed}", "+tags.cwd=${hydra:runtime.cwd}"]
    paths = ["persistence.load_checkpoint_path=ckpt", "persistence.root_data_dir=data"]
    config = compose([*words, *paths], config_path=project.conf)
    assert config.tags["cwd"] == str(project.directory)
    assert config.persistence.load_checkpoint_path == str(project.directory / "ckpt")
    assert config.persistence.get_app_root_dir() == project.directory / "data" / "app_0"


def test_the_config_type_is_read_from_the_annotation():
    def annotated(config: TrainConfig) -> None: ...

    def in_quotes(config: "TrainConfig") -> None: ...

    def bare(config) -> None: ...

    def wrong(config: dict) -> None: ...

    def empty() -> None: ...

    def for_type_checkers(config: "Unknown") -> None: ...  # noqa: F821

    assert [config_type_of(task) for task in (annotated, in_quotes)] == [TrainConfig, TrainConfig]
    with pytest.raises(
        ConfigurationError, match=r"bare: parameter config is not annotated; write bare\(config: TrainConfig\)"
    ):
        config_type_of(bare)
    with pytest.raises(
        ConfigurationError, match=r"wrong: parameter config is annotated with <class 'dict'>; write wrong"
    ):
        config_type_of(wrong)
    with pytest.raises(ConfigurationError, match=r"config is annotated with 'Unknown'"):
        config_type_of(for_type_checkers)
    with pytest.raises(ConfigurationError, match="empty takes no parameter"):
        config_type_of(empty)


def test_a_config_path_may_be_a_package(monkeypatch):
    assert compose(["metrics=[]"], config_path="pkg://trieye.conf", config_name="trieye").seed == 0
    with pytest.raises(ConfigurationError, match=r"^config_path=pkg://no\.such: "):
        compose(config_path="pkg://no.such")


def test_a_missing_config_directory_says_how_to_create_it(tmp_path):
    message = rf"^config_path={tmp_path}/conf: no such directory; create it with train\.yaml, .*'pkg://trieye\.conf'"
    with pytest.raises(ConfigurationError, match=message):
        compose(config_path=tmp_path / "conf")


def test_the_decorator_without_parentheses_is_rejected_at_once():
    with pytest.raises(ConfigurationError, match=r"@trieye.main above train: write @trieye.main\(\)"):

        @trieye.main
        def train(config: TrainConfig) -> None: ...


def test_an_invalid_override_shows_no_frames_of_hydra():
    with pytest.raises(ConfigurationError, match=r"^runtime=lokal: .*did you mean 'local'") as caught:
        compose(["runtime=lokal"])
    text = "".join(traceback.format_exception(caught.value))
    assert "/hydra/_internal/" not in text
    assert len(text.splitlines()) < 20
