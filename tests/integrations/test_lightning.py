"""The Lightning logger: the interface that Lightning's documentation requires, and resumed trainings."""

import pickle
import sqlite3
import subprocess
import sys
from argparse import Namespace
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.history.supersession_model import SCENARIOS
from tests.history.supersession_programs import Story
from tests.integrations.conftest import end_program
from tests.lazy import lazily
from trieye.exceptions import ConfigurationError
from trieye.files.run_record import RunRecord
from trieye.history.history import read_history
from trieye.integrations import opening

models = lazily("tests.integrations.lightning_models")

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # of Lightning


@pytest.fixture(autouse=True)
def _in_project(tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv(opening.APP, "app")


def points(name="run"):
    table = read_history(opening.run_dir_of(name))
    return list(zip(table["metric"].to_pylist(), table["step"].to_pylist(), table["value"].to_pylist(), strict=True))


def in_mlflow(table):
    with sqlite3.connect(".trieye_data/app/mlruns/mlflow.db") as store:
        return dict(store.execute(f"SELECT key, value FROM {table}"))  # noqa: S608 - a name of a table


def values_by_point(name="run"):
    return {(metric, step): value for metric, step, value in points(name)}


@pytest.mark.long
def test_fit_and_test_are_one_run_with_the_values_of_lightnings_own_logger(tmp_path):
    own = models.CSVLogger(tmp_path / "csv")
    model = models.Line()
    fitted = models.trainer([models.RunLogger("run"), own])
    fitted.fit(model, models.data(), models.data())
    fitted.test(model, models.data(), verbose=False)
    end_program()
    lines = (tmp_path / "csv/lightning_logs/version_0/metrics.csv").read_text().splitlines()
    columns = lines[0].split(",")
    expected = {}
    for line in lines[1:]:
        row = dict(zip(columns, line.split(","), strict=True))
        step = int(row.pop("step"))
        expected |= {(name, step): float(value) for name, value in row.items() if value}
    assert len(expected) > 60
    assert values_by_point() == pytest.approx(expected)
    record = RunRecord.read(opening.run_dir_of("run") / "run.json")
    assert (record.attempt, record.status) == (1, "FINISHED")


@pytest.mark.usefixtures("mlflow")
def test_parameters_of_any_kind_are_recorded():
    logger = models.RunLogger("run")
    for params in ({"a": 1, "b": {"c": [1, 2]}, "d": torch.nn.ReLU()}, Namespace(e=1), None):
        logger.log_hyperparams(params)
    end_program()
    assert in_mlflow("params").items() >= {"a": "1", "b.c": "[1, 2]", "d": "ReLU()", "e": "1"}.items()


def test_names_and_directories_follow_the_logger_interface():
    logger = models.RunLogger("run")
    assert (logger.name, logger.version) == ("run", "lightning")
    assert Path(logger.log_dir) == Path(logger.save_dir) / logger.name / str(logger.version)
    assert not Path(logger.save_dir).exists()
    assert isinstance(logger, models.Logger)
    models.trainer(logger, models.ModelCheckpoint(), epochs=1).fit(models.Line(), models.data())
    assert [path.name for path in (opening.run_dir_of("run") / "lightning/checkpoints").iterdir()]
    assert logger.experiment.dir == opening.run_dir_of("run")


@pytest.mark.parametrize("name", ["../out", "a/b", ""])
def test_an_invalid_name_is_rejected_at_once(name):
    with pytest.raises(ConfigurationError):
        models.RunLogger(name)


def test_a_prefix_precedes_metric_names():
    logger = models.RunLogger("run", prefix="mine")
    logger.log_metrics({"loss": torch.tensor(0.5)}, step=3)
    logger.log_metrics({"loss": np.float32(0.25)})
    end_program()
    assert points() == [("mine/loss", 3, 0.5), ("mine/loss", 3, 0.25)]


def test_a_logger_can_be_pickled_before_and_after_logging():
    for logged in (False, True):
        logger = models.RunLogger(f"run{logged}")
        if logged:
            logger.log_metrics({"a": 1.0}, 0)
        again = pickle.loads(pickle.dumps(models.trainer(logger)))
        again.logger.log_metrics({"a": 2.0}, 1)
        logger.log_metrics({"a": 3.0}, 2)
        end_program()
        assert (("a", 1), 2.0) in values_by_point(f"run{logged}").items()
        assert (("a", 2), 3.0) in values_by_point(f"run{logged}").items()


def test_ranks_other_than_zero_open_no_run(monkeypatch):
    from lightning.pytorch.utilities import rank_zero_only

    monkeypatch.setattr(rank_zero_only, "rank", 1)
    logger = models.RunLogger("run")
    logger.log_metrics({"a": 1.0}, 0)
    logger.log_hyperparams({"a": 1})
    logger.log_image("a", [np.zeros((4, 4), np.uint8)])
    logger.experiment.log_anything("at", all=True)
    logger.finalize("success")
    assert not opening.run_dir_of("run").exists()


def test_images_are_logged_with_captions(tmp_path):
    logger = models.RunLogger("run")
    logger.log_image("one", [torch.rand(3, 8, 8)], step=2)
    logger.log_image(
        "two", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3), np.uint8)], caption=np.array(["left", "right"])
    )
    with pytest.raises(TypeError, match="list of images"):
        logger.log_image("one", torch.rand(3, 8, 8))
    with pytest.raises(ConfigurationError, match="2 images and 1 captions"):
        logger.log_image("two", [torch.rand(3, 8, 8)] * 2, caption=["left"])
    logger.experiment.flush()
    items, _ = logger.experiment._attempt.hub._logic.files.history.read(0, 100)
    names = [item.name for item in items if hasattr(item, "name")]
    assert names == ["one", "two/0", "two/0/caption", "two/1", "two/1/caption"]


@pytest.mark.usefixtures("mlflow")
def test_the_best_checkpoint_is_a_tag_and_hyperparameters_of_the_module_are_parameters():
    logger, best = models.RunLogger("run", tags={"mine": "1"}), models.ModelCheckpoint(monitor="val/loss")
    models.trainer(logger, best, epochs=2).fit(models.Line(rate=0.25), models.data(), models.data())
    end_program()
    tags = in_mlflow("tags")
    assert tags["lightning/best_checkpoint"] == best.best_model_path
    assert float(tags["lightning/best_score"]) == pytest.approx(float(best.best_model_score), rel=1e-4)
    assert tags["mine"] == "1"
    assert in_mlflow("params").items() >= {"rate": "0.25", "hidden": "4"}.items()


@pytest.mark.parametrize("every", [{"every_n_train_steps": 4}, {"every_n_epochs": 1}], ids=str)
def test_a_fit_from_a_checkpoint_resumes_the_run(every):
    def program(*others, epochs=2):
        checkpoints = models.ModelCheckpoint(save_last=True, **every)
        lightning_trainer = models.trainer(
            models.RunLogger("run"), models.ResumeRun(), checkpoints, *others, epochs=epochs
        )
        torch.manual_seed(0)
        lightning_trainer.fit(models.Line(), models.data(), models.data(), ckpt_path="last")
        end_program()

    for at in (7, 16):
        with pytest.raises(ZeroDivisionError):
            program(models.FailsAtStep(at))
        end_program()
    program()
    counts = Counter((name, step) for name, step, _ in points() if name != "epoch")
    assert max(counts.values()) == 1
    assert {step for name, step in counts if name == "loss_step"} == set(range(20))
    for metric in ("val/loss", "loss_epoch"):
        assert {step for name, step in counts if name == metric} == {9, 19}
    assert RunRecord.read(opening.run_dir_of("run") / "run.json").attempt == 3


@pytest.mark.long
def test_a_restarted_program_without_the_callback_shows_each_step_once():
    for at in (15, 21):
        with pytest.raises(ZeroDivisionError):
            models.trainer(models.RunLogger("run"), models.FailsAtStep(at)).fit(models.Line(), models.data())
        end_program()
    assert {step for name, step in values_by_point() if name == "loss_step"} == set(range(20))
    assert max(Counter((name, step) for name, step, _ in points() if name != "epoch").values()) == 1


def test_a_callback_without_its_logger_is_rejected(tmp_path):
    with pytest.raises(ConfigurationError, match="CSVLogger"):
        models.trainer(models.CSVLogger(tmp_path), models.ResumeRun()).fit(models.Line(), models.data())


DDP = """
import torch, sys
sys.path.insert(0, {tests!r})
from lightning.pytorch import Trainer
from tests.integrations.lightning_models import Line, data
from trieye.integrations.lightning import RunLogger
made = Trainer(logger=RunLogger("run"), accelerator="cpu", devices=2, strategy="ddp", max_epochs=1,
    log_every_n_steps=1, enable_progress_bar=False, enable_checkpointing=False)
made.fit(Line(), data())
"""


@pytest.mark.long
def test_two_processes_log_each_value_once(tmp_path, request):
    (tmp_path / "project/program.py").write_text(DDP.format(tests=str(request.config.rootpath)))
    subprocess.run([sys.executable, "program.py"], check=True, timeout=120)
    counts = Counter((name, step) for name, step, _ in points() if name != "epoch")
    assert max(counts.values()) == 1
    assert {step for name, step in counts if name == "loss_step"} == set(range(5))


@pytest.mark.long
@pytest.mark.parametrize("number", [2, 4, 10], ids=lambda number: SCENARIOS[number].name)
def test_superseded_points_of_several_attempts_follow_the_model(tmp_path, number):
    attempts, expected = SCENARIOS[number].attempts, SCENARIOS[number].expected
    sinks = {"sinks": {"mlflow": {"enabled": False}, "tensorboard": {"enabled": False}}}
    story = Story("Lightning", "first", tmp_path / "data", attempts, killed=frozenset({0}), run_options=sinks)
    story.play()
    assert story.curves() == expected
