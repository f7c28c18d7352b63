"""Points shown after several attempts, compared with the reference model."""

import pytest

import trieye
from tests.history.supersession_model import SCENARIOS, curves
from tests.history.supersession_programs import Story
from trieye.history.history import read_history
from trieye.integrations import opening
from trieye.integrations.tensorboard import SummaryWriter


@pytest.fixture(autouse=True)
def _own_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(opening.APP, "app")
    monkeypatch.setenv("TRIEYE_ROOT", str(tmp_path / "data"))
    yield
    for adopted in list(opening.AdoptedRun._open.values()):
        adopted.close()


NO_SINKS = {"sinks": {"mlflow": {"enabled": False}, "tensorboard": {"enabled": False}}}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_reference_model_shows_the_curves_of_each_scenario(scenario):
    assert curves(scenario.attempts) == scenario.expected


def shown_by(logger, scenario, tmp_path):
    """Return the curves after the first attempt was killed and the others ended normally."""
    story = Story(logger, "first", tmp_path / "data", scenario.attempts, killed=frozenset({0}), run_options=NO_SINKS)
    story.play()
    return story.curves()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_restarted_program_shows_the_curves_of_each_scenario(tmp_path, scenario):
    logger = "Run" if any(attempt.checkpoint for attempt in scenario.attempts) else "SummaryWriter"
    assert shown_by(logger, scenario, tmp_path) == scenario.expected


@pytest.mark.parametrize("logger", ["Run", "wandb"])
@pytest.mark.parametrize("number", [3, 6], ids=lambda number: SCENARIOS[number].name)
def test_every_logger_shows_the_same_curves(tmp_path, logger, number):
    assert shown_by(logger, SCENARIOS[number], tmp_path) == SCENARIOS[number].expected


def test_a_run_opened_twice_in_one_process_shows_each_step_once(tmp_path):
    opening.AdoptedRun.join("first", **NO_SINKS)
    writers = []
    for value in (1.0, 2.0):
        writers.append(SummaryWriter("runs/first"))  # the cell of a notebook, executed again
        for step in range(10):
            writers[-1].add_scalar("loss", value, step)
    for writer in writers:
        writer.close()
    table = read_history(tmp_path / "data/app/runs/first")
    assert table["step"].to_pylist() == list(range(10))
    assert set(table["value"].to_pylist()) == {2.0}


def test_windows_are_superseded_like_points_without_a_restore(make_config):
    stats = {"metrics": [{"name": "loss", "aggregation": "mean", "log_frequency_steps": 10}]}
    for value, steps in ((1.0, range(1, 96)), (2.0, range(51, 81))):
        with trieye.Run(make_config(stats=stats)) as run:
            for step in steps:
                run.log("loss", value, step=step)
    table = read_history(run.dir, ["loss"])
    shown = sorted(zip(table["step"].to_pylist(), table["value"].to_pylist(), strict=True))
    assert shown == [(10 * k, 1.0 if k < 6 else 2.0) for k in range(1, 9)]
