"""`trieye metrics`: points of a run, during the training and after it."""

import csv
import signal
import time

import numpy as np
import pyarrow as pa
import pytest

import trieye
from tests.cli.conftest import config_in
from tests.forked import lines_until_killed
from tests.waiting import wait_until
from trieye.exceptions import ConfigurationError
from trieye.hub.status import read_status
from trieye.runs import metric_points, points


def log_points(run):
    for step in range(30):
        run.log({"loss/td": 1 / (step + 1), "loss/kl": 0.5, "eval/return": float(step)}, step=step)


@pytest.fixture(scope="module")
def logged_dir(tmp_path_factory):
    """The directory of a finished run."""
    with trieye.Run(config_in(tmp_path_factory.mktemp("root"))) as run:
        log_points(run)
    return run.dir


def test_points_match_what_was_logged(logged_dir):
    selected = points(logged_dir, ["loss/*"], since=28)
    assert list(selected) == ["loss/td", "loss/kl"]
    assert selected["loss/td"].steps.tolist() == [28, 29]
    assert selected["loss/td"].values.tolist() == [1 / 29, 1 / 30]
    assert selected["loss/td"].counts.tolist() == [1, 1]


def test_points_at_negative_steps_are_included(make_config, command):
    with trieye.Run(make_config()) as run:
        for step in (-20, -10, 0):
            run.log("lead", float(step), step=step)
    assert points(run.dir)["lead"].steps.tolist() == [-20, -10, 0]
    rows = csv.DictReader(command.output("metrics", run.dir, "-m", "lead", "--since", "-10", "--csv").splitlines())
    assert [row["step"] for row in rows] == ["-10", "0"]


def test_a_name_that_is_also_a_pattern_selects_only_its_metric(run):
    run.log({"loss[0]": 1.0, "loss0": 2.0}, step=1)
    run.close()
    assert list(points(run.dir, ["loss[0]"])) == ["loss[0]"]
    assert list(points(run.dir, ["loss[01]"])) == ["loss0"]


def test_reading_thousands_of_metrics_takes_seconds(run, monkeypatch):
    names = np.tile([f"layer/{number}" for number in range(4000)], 50)
    columns = {"metric": names, **dict.fromkeys(["step", "value", "wall_time", "count"], np.arange(len(names)))}
    monkeypatch.setattr(metric_points, "read_history", lambda _: pa.table(columns))
    began = time.monotonic()
    selected = points(run.dir)
    assert time.monotonic() - began < 3
    assert selected["layer/7"].steps.tolist() == list(range(7, len(names), 4000))


def test_csv_has_every_point_and_full_precision(logged_dir, command):
    rows = list(csv.DictReader(command.output("metrics", logged_dir, "--csv").splitlines()))
    assert {row["metric"] for row in rows} >= {"loss/td", "loss/kl", "eval/return"}
    values = [float(row["value"]) for row in rows if row["metric"] == "loss/td"]
    assert values == [1 / (step + 1) for step in range(30)]


def test_the_table_shows_the_last_points_and_counts_the_others(logged_dir, command):
    text = command.output("metrics", logged_dir, "-m", "eval/return")
    lines = text.splitlines()
    assert lines[0] == "eval/return"
    assert lines[2].split()[:2] == ["10", "10"]
    assert "10 earlier points" in lines[-1]
    assert command.output("metrics", logged_dir).splitlines()[0] == "agents/first"


def test_an_unknown_metric_is_an_error_with_the_closest_name(logged_dir, command):
    with pytest.raises(ConfigurationError, match=r"no metric 'loss/tt'; did you mean 'loss/td'"):
        points(logged_dir, ["loss/tt"])
    assert "no metric 'accuracy'" in command.error("metrics", logged_dir, "-m", "accuracy")


def test_a_running_run_is_readable(run):
    log_points(run)
    run.flush()
    wait_until(lambda: read_status(run.dir).get("processed", 0) == 90)
    assert set(points(run.dir, ["loss/*", "eval/return"])) == {"loss/td", "loss/kl", "eval/return"}


def test_a_killed_run_says_how_to_store_its_newest_points(make_config, command):
    config = make_config()

    def log(report):
        with trieye.Run(config) as run:
            run.log({"loss": 1.0}, step=1)
            run.flush()
            report(run.dir)
            signal.pause()

    (run_dir,) = lines_until_killed(log, 1)
    for options, expected_code in (([], 0), (["-m", "*", "--csv"], 0), (["-m", "only in the journal"], 2)):
        code, _, err = command("metrics", run_dir, *options)
        assert code == expected_code
        assert f"trieye close {config.app_name}/{config.run_name}` stores its newest points" in err
    command.output("close", run_dir)
    code, out, err = command("metrics", run_dir, "--csv")
    assert (code, err) == (0, "")
    assert ["loss", "1", "1.0"] in [line.split(",")[:3] for line in out.splitlines()]
