"""The callback for Hugging Face's `Trainer`: logged values, and resuming from checkpoints."""

import sqlite3
from collections import Counter
from importlib.util import find_spec

import pytest

from tests.integrations.conftest import end_program
from tests.lazy import lazily
from trieye.exceptions import ConfigurationError
from trieye.files.run_record import RunRecord
from trieye.history.history import read_history
from trieye.integrations import opening

models = lazily("tests.integrations.transformers_models")

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"),
    pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed"),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("root")


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path, root, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(opening.APP, "app")
    monkeypatch.setenv("TRIEYE_ROOT", str(root))  # of all tests, so that the store is made once


def points(name):
    table = read_history(opening.run_dir_of(name))
    return list(zip(table["metric"].to_pylist(), table["step"].to_pylist(), table["value"].to_pylist(), strict=True))


def in_mlflow(name, table):
    with sqlite3.connect(opening.run_dir_of(name).parents[1] / "mlruns/mlflow.db") as store:
        return dict(store.execute(f"SELECT key, value FROM {table} JOIN runs USING (run_uuid) WHERE name = ?", [name]))  # noqa: S608 - a table


@pytest.mark.usefixtures("mlflow")
def test_a_failed_training_resumes_from_its_checkpoint_with_one_curve():
    for at in (2, 5, None):
        hf_trainer = models.trainer("goes-on", models.FailsAtStep(at))
        try:
            hf_trainer.train(resume_from_checkpoint=models.get_last_checkpoint("out"))
        except ZeroDivisionError:
            end_program()
    hf_trainer.evaluate()
    end_program()
    counts = Counter((name, step) for name, step, _ in points("goes-on") if step < 8)
    assert max(counts.values()) == 1
    logged = {(name, step): value for name, step, value in points("goes-on")}
    expected = {}
    for row in hf_trainer.state.log_history:  # which Trainer saves with its checkpoints
        for name in ("loss", "grad_norm", "learning_rate", "epoch"):
            expected |= {(f"train/{name}", row["step"]): row[name]} if name in row else {}
        expected |= {("eval/loss", row["step"]): row["eval_loss"]} if "eval_loss" in row else {}
    assert {key: logged[key] for key in expected} == pytest.approx(expected)
    assert sorted(step for name, step, _ in points("goes-on") if name == "train/loss") == list(range(1, 9))
    assert sorted(step for name, step, _ in points("goes-on") if name == "eval/loss") == [2, 4, 6, 8]
    assert "train/train_runtime" in {name for name, *_ in points("goes-on")}
    assert in_mlflow("goes-on", "tags")["transformers/best_checkpoint"] == hf_trainer.state.best_model_checkpoint
    params = in_mlflow("goes-on", "params")
    assert (params["max_steps"], params["per_device_train_batch_size"]) == ("8", "4")
    record = RunRecord.read(opening.run_dir_of("goes-on") / "run.json")
    assert (record.attempt, record.status) == (3, "FINISHED")


@pytest.mark.long
def test_a_training_from_scratch_replaces_its_earlier_points_but_not_its_first_evaluation():
    for _ in range(2):
        hf_trainer = models.trainer("anew", max_steps=4)
        hf_trainer.evaluate()
        hf_trainer.train()
        end_program()
    losses = [step for name, step, _ in points("anew") if name == "train/loss"]
    assert losses == [1, 2, 3, 4]
    assert 0 in {step for name, step, _ in points("anew") if name == "eval/loss"}


def test_processes_other_than_the_first_open_no_run():
    hf_trainer = models.trainer("silent", max_steps=2)
    hf_trainer.is_world_process_zero = lambda: False
    hf_trainer.train()
    assert not opening.run_dir_of("silent").exists()


def test_each_trial_of_a_search_is_a_separate_run():
    hf_trainer = models.trainer("search", max_steps=2)
    (callback,) = [one for one in hf_trainer.callback_handler.callbacks if type(one) is models.RunCallback]
    of_trainer = hf_trainer.args, hf_trainer.state, hf_trainer.control
    for number in range(2):
        hf_trainer.state.trial_name = f"trial {number}"
        callback.on_train_begin(*of_trainer)
        callback.on_log(*of_trainer, {"loss": 1.0 + number})
    end_program()
    assert [points(f"search-trial_{number}") for number in range(2)] == [[("train/loss", 0, 1.0 + n)] for n in (0, 1)]


@pytest.mark.usefixtures("mlflow")
def test_metric_values_that_are_not_numbers_become_text(root):
    hf_trainer = models.trainer("texts", max_steps=2)
    hf_trainer.log({"eval_loss": 0.5, "eval_matrix": [[1, 0], [0, 1]], "eval_note": "good"})
    end_program()
    assert ("eval/loss", 0, 0.5) in points("texts")
    texts = {path.parent.name for path in root.glob("app/mlruns/**/*.md")}
    assert texts == {"matrix", "note"}


def test_an_invalid_name_is_rejected_at_once():
    with pytest.raises(ConfigurationError):
        models.RunCallback("../out")
