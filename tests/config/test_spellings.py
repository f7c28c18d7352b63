"""Config models accept the upper-case spellings of trieye 0.1.5."""

import warnings
from itertools import count

import pytest
from pydantic import Field, ValidationError

from trieye.config import MetricConfig, PersistenceConfig, StatsConfig, TrieyeConfig, spellings
from trieye.training.config import TrainingConfig

DEFAULTS = {
    "ROOT_DATA_DIR": ".trieye_data",
    "APP_NAME": "default_app",
    "RUNS_DIR_NAME": "runs",
    "MLFLOW_DIR_NAME": "mlruns",
    "CHECKPOINT_SAVE_DIR_NAME": "checkpoints",
    "BUFFER_SAVE_DIR_NAME": "buffers",
    "LOG_DIR_NAME": "logs",
    "TENSORBOARD_DIR_NAME": "tensorboard",
    "PROFILE_DIR_NAME": "profile_data",
    "LATEST_CHECKPOINT_FILENAME": "latest.pkl",
    "BEST_CHECKPOINT_FILENAME": "best.pkl",
    "BUFFER_FILENAME": "buffer.pkl",
    "CONFIG_FILENAME": "configs.json",
    "SAVE_BUFFER": True,
    "BUFFER_SAVE_FREQ_STEPS": 1000,
    "CHECKPOINT_SAVE_FREQ_STEPS": 1000,
    "AUTO_RESUME_LATEST": True,
    "LOAD_CHECKPOINT_PATH": None,
    "LOAD_BUFFER_PATH": None,
}


@pytest.fixture(autouse=True)
def has_warned_already(monkeypatch):
    monkeypatch.setattr(spellings, "_uses", count(1))


@pytest.mark.parametrize("name", DEFAULTS)
def test_each_upper_case_name_is_an_argument_and_an_attribute(name):
    assert getattr(PersistenceConfig(), name) == DEFAULTS[name]
    other = {str: "other", bool: False, int: 7, type(None): "other"}[type(DEFAULTS[name])]
    config = PersistenceConfig(**{name: other})
    assert (getattr(config, name), getattr(config, name.lower())) == (other, other)
    setattr(config, name, DEFAULTS[name])
    assert getattr(config, name.lower()) == DEFAULTS[name]


def test_no_other_field_has_an_upper_case_spelling():
    table = {*DEFAULTS, "RUN_NAME", "MLFLOW_TRACKING_URI"}
    assert PersistenceConfig().RUN_NAME.startswith("run_2")
    for model in (PersistenceConfig, TrieyeConfig, StatsConfig, MetricConfig, TrainingConfig):
        upper = {name.upper(): name for name in model.model_fields}
        for name in upper.keys() - (table if model is PersistenceConfig else set()):
            assert name not in model.spellings
            with pytest.raises(ValidationError, match=rf"unknown key '{name}'; did you mean '{upper[name]}'"):
                model(**{name: 1})


def test_fields_of_a_project_have_no_upper_case_spelling():
    class Persistence(PersistenceConfig):
        extra: int = Field(default=1)

    class Config(TrieyeConfig):
        persistence: Persistence = Field(default_factory=Persistence)
        width: int = 1

    assert Persistence(RUN_NAME="x").run_name == "x"
    for make in (lambda: Persistence(EXTRA=2), lambda: Config(WIDTH=2), lambda: Config(RUN_NAME="x")):
        with pytest.raises(ValidationError, match="unknown key"):
            make()
    for config, name in ((Config(), "run_name"), (Config(), "WIDTH"), (Config().persistence, "RUN_NAME")):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(config, name, "y")


def test_fields_of_0_1_5_are_assignable_and_validated():
    config = TrieyeConfig(app_name="a")
    config.run_name = "later"
    config.persistence.RUN_NAME = "later"
    config.persistence.MLFLOW_TRACKING_URI = "sqlite:////tmp/elsewhere.db"
    config.stats.metrics = [MetricConfig(name="x")]
    config.stats.metrics[0].log_frequency_steps = 5
    assert config.persistence.get_run_base_dir().name == "later"
    assert config.persistence.MLFLOW_TRACKING_URI == "sqlite:////tmp/elsewhere.db"
    again = TrieyeConfig.model_validate(config.model_dump())
    assert (again.run_name, again.stats.metrics[0].log_frequency_steps) == ("later", 5)
    for part, name, wrong in (
        (config, "run_name", "../x"),
        (config.persistence, "SAVE_BUFFER", "perhaps"),
        (config.stats, "processing_interval_seconds", 0),
        (config.stats.metrics[0], "aggregation", "rate"),
    ):
        before = part.model_copy()
        with pytest.raises(ValidationError):
            setattr(part, name, wrong)
        assert part == before
    for part, name in ((config, "seed"), (config.persistence, "run_name"), (config.persistence, "keep_last")):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(part, name, "1")


@pytest.mark.parametrize(
    "use",
    [
        lambda: PersistenceConfig(RUN_NAME="x"),
        lambda: PersistenceConfig().RUN_NAME,
        lambda: setattr(TrieyeConfig(), "run_name", "x"),
    ],
)
def test_the_first_use_warns_at_the_line_of_the_program(use, monkeypatch):
    monkeypatch.setattr(spellings, "_uses", count())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        TrieyeConfig(run_name="a", persistence={"save_buffer": False}).model_dump()  # the new spelling
        assert caught == []
        use()
        use()
    assert [(warning.category, warning.filename) for warning in caught] == [(DeprecationWarning, __file__)]
