"""The models of trieye 0.1.5: fields, defaults and behavior that clients rely on."""

import json
import pickle
from pathlib import Path

import pytest
from pydantic import Field, ValidationError

from trieye.config import DEFAULT_METRICS, MetricConfig, PersistenceConfig, StatsConfig, TrieyeConfig
from trieye.config.base import StrictModel
from trieye.config.explorer import ExplorerConfig
from trieye.config.fingerprint import config_hash, differences, with_program
from trieye.config.launcher import LauncherConfig
from trieye.files.run_files import RunFiles

TRAINER, WORKER, LOOP = "trainer", "worker", "loop"
ALL_SINKS = ["mlflow", "tensorboard", "console"]

# name, source, aggregation, event, context key, steps, seconds, numerator
EXPECTED = [
    *[(f"Loss/{n}", TRAINER, "mean", f"Loss/{n}", None, 10, 0.0, None)
      for n in ("Total", "Policy", "Value", "Entropy", "Mean_Abs_TD_Error")],
    ("LearningRate", TRAINER, "latest", "LearningRate", None, 10, 0.0, None),
    ("Episode/Score", WORKER, "mean", "episode_end", "score", 0, 5.0, None),
    ("Episode/Length", WORKER, "mean", "episode_end", "length", 0, 5.0, None),
    ("Episode/Triangles_Cleared", WORKER, "mean", "episode_end", "triangles_cleared", 0, 5.0, None),
    ("MCTS/Avg_Simulations_Per_Step", WORKER, "mean", "mcts_step", None, 0, 10.0, None),
    ("MCTS/Avg_Tree_Depth", WORKER, "mean", "episode_end", "avg_mcts_depth", 0, 5.0, None),
    ("RL/Step_Reward_Mean", WORKER, "mean", "step_reward", None, 0, 10.0, None),
    *[(n, LOOP, "latest", n, None, 0, 5.0, None)
      for n in ("Buffer/Size", "Progress/Total_Simulations", "Progress/Episodes_Played",
                "Progress/Weight_Updates_Total")],
    *[(n, LOOP, "latest", n, None, 0, 10.0, None) for n in ("System/Num_Active_Workers", "System/Num_Pending_Tasks")],
    ("Rate/Steps_Per_Sec", LOOP, "rate", "Rate/Steps_Per_Sec", None, 0, 5.0, "step_completed"),
    ("Rate/Episodes_Per_Sec", WORKER, "rate", "Rate/Episodes_Per_Sec", None, 0, 5.0, "episode_end"),
    ("Rate/Simulations_Per_Sec", WORKER, "rate", "Rate/Simulations_Per_Sec", None, 0, 5.0, "mcts_step"),
    ("PER/Beta", TRAINER, "latest", "PER/Beta", None, 10, 0.0, None),
]  # fmt: skip


def test_the_22_default_metrics_equal_those_of_0_1_5():
    fields = [
        (m.name, m.source, m.aggregation, m.event_key, m.context_key, m.log_frequency_steps, m.log_frequency_seconds,
         m.rate_numerator_event)
        for m in DEFAULT_METRICS
    ]  # fmt: skip
    assert len(fields) == 22
    assert fields == EXPECTED
    for metric in DEFAULT_METRICS:
        assert metric.log_to == (ALL_SINKS if metric.aggregation == "rate" else ALL_SINKS[:2])
        assert metric.x_axis == "global_step"


def test_default_metrics_can_be_extended():
    extended = DEFAULT_METRICS + [MetricConfig(name="Custom/MyValue")]  # noqa: RUF005 - as old clients write it
    assert len(StatsConfig(metrics=extended).metrics) == 23


def test_stats_are_empty_by_default():
    assert (StatsConfig().metrics, StatsConfig().processing_interval_seconds) == ([], 1.0)


def test_a_metric_has_the_defaults_of_0_1_5():
    assert MetricConfig(name="x").model_dump() == {
        "name": "x", "source": "custom", "raw_event_name": None, "aggregation": "latest", "log_frequency_steps": 1,
        "log_frequency_seconds": 0.0, "log_to": ["mlflow", "tensorboard"], "x_axis": "global_step",
        "rate_numerator_event": None, "context_key": None, "quantile": 0.5, "ema_alpha": 0.1,
    }  # fmt: skip


def test_a_window_is_as_long_as_a_step_number_at_most():
    assert MetricConfig(name="x", log_frequency_steps=2**62).log_frequency_steps == 2**62
    with pytest.raises(ValidationError, match="log_frequency_steps"):
        MetricConfig(name="x", log_frequency_steps=10**23)


def test_error_messages_of_0_1_5_are_unchanged():
    with pytest.raises(
        ValidationError, match=r"Metric 'R' has aggregation 'rate' but 'rate_numerator_event' is not set\."
    ):
        MetricConfig(name="R", aggregation="rate")
    with pytest.raises(ValidationError, match="Duplicate metric names found"):
        StatsConfig(metrics=[MetricConfig(name="a"), MetricConfig(name="a")])


def test_names_of_the_whole_config_win_without_changing_the_passed_persistence():
    shared = PersistenceConfig(app_name="mine", run_name="mine")
    first = TrieyeConfig(app_name="a", run_name="one", persistence=shared)
    second = TrieyeConfig(app_name="a", run_name="two", persistence=shared)
    assert (first.persistence.app_name, first.persistence.run_name) == ("a", "one")
    assert second.persistence.run_name == "two"
    assert (shared.app_name, shared.run_name) == ("mine", "mine")


def test_names_in_a_run_differ_from_its_other_files():
    files = RunFiles(PersistenceConfig())
    named_by_keys = {files.checkpoint_dir, files.buffer_dir, files.log_dir, files.tb_log_dir, files.profile_dir}
    fixed_paths = {path for path in vars(files).values() if isinstance(path, Path)} - named_by_keys
    names = {path.name for path in fixed_paths if path.parent == files.run_base_dir}
    names |= {"provenance", "mirror", "journal.db-wal", "run.lock.holder", "bench.json"}
    assert {"run.json", "configs.json", "hub.lock"} <= names
    for name in names:
        with pytest.raises(ValidationError, match=r"log_dir_name\n.*each run has a file or directory of this name"):
            PersistenceConfig(log_dir_name=name)
    for name in names - {"configs.json"}:
        with pytest.raises(ValidationError, match=r"config_filename\n.*choose another name"):
            PersistenceConfig(config_filename=name)
    with pytest.raises(ValidationError, match=r"config_filename\n.*log_dir_name has the same value"):
        PersistenceConfig(log_dir_name="mine", config_filename="mine")
    assert PersistenceConfig(log_dir_name="mine", profile_dir_name="mine", config_filename="configs.json")


@pytest.mark.parametrize("uri", [None, "sqlite:////tmp/elsewhere.db", "http://localhost:1"])
def test_a_dumped_config_validates_to_the_same_config(uri, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    config = TrieyeConfig(app_name="a", persistence=PersistenceConfig(mlflow_tracking_uri=uri))
    for mode in ("python", "json"):
        again = TrieyeConfig.model_validate(config.model_dump(mode=mode))
        assert again == config
        assert again.persistence.MLFLOW_TRACKING_URI == config.persistence.MLFLOW_TRACKING_URI
        assert again.persistence.mlflow_tracking_uri == uri


@pytest.mark.filterwarnings("ignore:upper-case config keys:DeprecationWarning")
def test_a_stored_config_loads_without_keys_that_its_program_added(tmp_path):
    class Config(TrieyeConfig):
        width: int = 1

    config = Config(app_name="a", stats={"metrics": [{"name": "x"}]}, width=3)
    stored = {**config.model_dump(mode="json"), "model": {"layers": 2}, "run_config": {"width": "of the program"}}
    (tmp_path / "configs.json").write_text(json.dumps(stored))
    assert Config.of_run(tmp_path) == config
    assert TrieyeConfig.of_run(tmp_path) == config.trieye
    stored["persistence"] = {"ROOT_DATA_DIR": "data", "SAVE_BUFFER": False}  # as 0.1.5 stored it
    (tmp_path / "configs.json").write_text(json.dumps(stored))
    assert not Config.of_run(tmp_path).persistence.save_buffer


def test_a_dump_with_another_directory_moves_its_mlflow_store(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    dump = PersistenceConfig(app_name="a").model_dump()
    moved = PersistenceConfig.model_validate({**dump, "root_data_dir": str(tmp_path), "app_name": "b"})
    assert moved.mlflow_tracking_uri is None
    assert f"sqlite:///{tmp_path}/b/mlruns/mlflow.db" == moved.MLFLOW_TRACKING_URI


def test_the_tracking_uri_of_the_environment_is_read_when_the_config_is_created(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://driver:1")
    sent = pickle.dumps(TrieyeConfig(app_name="a"))
    explicit = PersistenceConfig(mlflow_tracking_uri="http://chosen:1")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://actor:1")
    assert pickle.loads(sent).persistence.MLFLOW_TRACKING_URI == "http://driver:1"
    assert explicit.MLFLOW_TRACKING_URI == "http://chosen:1"
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    made_without = PersistenceConfig()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://actor:1")
    assert made_without.MLFLOW_TRACKING_URI == "http://actor:1"


def test_a_boolean_is_rejected_as_a_number():
    for wrong in ({"seed": True}, {"loop": {"steps": True}}, {"stats": {"processing_interval_seconds": True}}):
        with pytest.raises(ValidationError, match="'true'"):
            TrieyeConfig.model_validate(wrong)
    assert TrieyeConfig(print_config=True, persistence=PersistenceConfig(save_buffer=False)).print_config


def test_a_relative_root_is_resolved_when_the_config_is_created(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = PersistenceConfig(app_name="a")
    monkeypatch.chdir("/")
    assert config.get_app_root_dir() == tmp_path / ".trieye_data" / "a"
    elsewhere = config.anchored(Path("/elsewhere"))
    assert elsewhere.get_app_root_dir() == Path("/elsewhere/.trieye_data/a")


@pytest.mark.parametrize(
    "name", ["../x", "a/b", "/a", "a\0b", "a\nb", "", "x" * 300, ".hidden", "a..b", "a ", "\ud800"]
)
def test_an_unsafe_name_is_rejected(name):
    for field in ("run_name", "app_name"):
        with pytest.raises(ValidationError, match=field):
            TrieyeConfig(**{field: name})
    copied = PersistenceConfig().model_copy(update={"run_name": name})  # does not validate
    with pytest.raises(ValueError, match="run_name"):
        copied.get_run_base_dir()


class AgentConfig(StrictModel):
    """The config of an agent with sets."""

    columns: set[int] = Field(description="Columns.")
    layers: dict[str, list[frozenset[int]]] = Field(description="Connected units of each layer.")


class AgentsConfig(TrieyeConfig):
    """The config of an experiment with sets."""

    agent: AgentConfig = Field(description="The agent.")


def test_equal_sets_are_recorded_in_one_order():
    first, second = (
        AgentsConfig(run_name="a", agent={"columns": order, "layers": {"hidden": [order, [1]]}})
        for order in ([0, 8], [8, 0])  # with equal hashes modulo 8, like texts of some processes
    )
    assert first == second
    assert list(first.agent.columns) != list(second.agent.columns)
    assert with_program(first) == with_program(second)
    assert differences(with_program(first), second) == []
    assert config_hash(AgentsConfig, with_program(first)) == config_hash(AgentsConfig, with_program(second))


@pytest.mark.parametrize("name", ["run_20260101_000000", "été", "東京-1", "a b", "lr=0.1,seed=3", "x" * 200, "3"])
def test_a_safe_name_is_accepted(name):
    assert TrieyeConfig(run_name=name).run_name == name


@pytest.mark.parametrize("config_type", [ExplorerConfig, LauncherConfig])
def test_resources_that_ray_would_reject_are_named(config_type):
    assert config_type(resources={"collector": 0.5}).resources == {"collector": 0.5}
    messages = {"CPU": "'CPU' is not a custom resource.*num_cpus", "": "''", "a": "'a' is 1e-05; expected"}
    for name, message in messages.items():
        with pytest.raises(ValidationError, match=message):
            config_type(resources={name: 1e-5 if name == "a" else 1})


@pytest.mark.parametrize(
    ("sinks", "enabled"),
    [
        ({"mlflow": {"system_metrics": True}}, ["mlflow", "tensorboard", "console"]),
        ({"tensorboard": {"enabled": False}}, ["mlflow", "console"]),
        ({"log_config": False}, ["mlflow", "tensorboard", "console"]),
        ({"wandb": {"enabled": True}}, ["mlflow", "tensorboard", "console", "wandb"]),
        ({}, []),
    ],
)
def test_a_sink_stays_enabled_in_python_unless_disabled(sinks, enabled):
    config = TrieyeConfig(sinks=sinks)
    assert config.sinks.enabled == enabled
    assert TrieyeConfig.model_validate(config.model_dump()).sinks == config.sinks
