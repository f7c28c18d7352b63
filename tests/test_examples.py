"""Each program of examples/ runs with the results that its docstring describes."""

import csv
import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import trieye
from trieye.results import load
from trieye.testing import SinkContract

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def example(monkeypatch, tmp_path):
    """Return a function that runs a program of examples/ with overrides, and returns its objective."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(tmp_path)

    def run(name, *overrides):
        module = importlib.import_module(name)
        result = module.train(trieye.compose(["runtime=local", "sinks=[]", *overrides], config_type=module.Config))
        return getattr(result, "objective", result)

    return run


def returns_of(name):
    return load(f".trieye_data/default_app/runs/{name}").series("eval/return")[0].values


@pytest.mark.long
def test_the_loop_resumes_with_its_random_numbers(example):
    for name, episodes in (("parts", 150), ("parts", 300), ("whole", 300)):
        example("loop", f"run_name={name}", f"episodes={episodes}", "persistence.checkpoint_save_freq_steps=50")
    runs = [load(f".trieye_data/default_app/runs/{name}") for name in ("parts", "whole")]
    values = [run.series("q/start")[0].values for run in runs]
    assert len(values[0]) == 300
    np.testing.assert_array_equal(*values)


def test_the_classifier_reaches_its_target(example):
    assert example("classifier", "run_name=spirals") >= 0.99


@pytest.mark.long
def test_the_offline_example_learns_from_rows_of_the_ppo_example(example):
    example("ppo", "run_name=first", "loop.env_steps=3000", "loop.evaluate_every_steps=1500", "env.eval_episodes=5")
    assert returns_of("first").max() > 60
    example("ppo", "mode=explore", "run_name=first", "loop.env_steps=2000", f"explore.output={Path.cwd()}/rows.npz")
    steps = ("loop.steps=300", "loop.evaluate_every_steps=150", "env.eval_episodes=5")
    example("offline", "mode=train", "data=rows.npz", "run_name=offline", *steps)
    assert returns_of("offline").max() > 40


@pytest.mark.long
def test_the_recurrent_example_trains(example):
    example("recurrent", "run_name=memory", "loop.env_steps=600", "env.eval_episodes=2")
    assert len(returns_of("memory")) == 1


def test_the_sink_receives_every_point(example, capsys):
    importlib.import_module("own_sink").main()
    with Path(".trieye_data/examples/runs/own_sink/points.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["value"]) for row in rows if row["metric"] == "loss"] == [1 / step for step in range(1, 101)]
    assert "metric,step,value,time" in capsys.readouterr().out


class TestCsvSink(SinkContract):
    """The sink of own_sink.py passes the contract of sinks that show every point once."""

    exactly_once = True

    @pytest.fixture(autouse=True)
    def _importable(self, monkeypatch):
        monkeypatch.syspath_prepend(str(EXAMPLES))

    def make_sink(self):
        return importlib.import_module("own_sink").CsvSink()

    def read_points(self, run):
        with (run.run_dir / "points.csv").open(newline="") as file:
            return [(row["metric"], float(row["value"]), int(row["step"])) for row in csv.DictReader(file)]


@pytest.mark.long
def test_the_sweep_of_the_plain_program_ranks_its_jobs(tmp_path):
    words = ["-m", "hydra/sweeper=trieye", "hydra/launcher=trieye", "hydra.sweeper.mode=min", "lr=0.01,0.3"]
    command = [sys.executable, str(EXAMPLES / "hydra_fit.py"), *words]
    printed = subprocess.run(command, check=True, cwd=tmp_path, capture_output=True, text=True)
    assert "2 done" in printed.stderr
    ranks = [line.split() for line in printed.stdout.splitlines() if line.strip().startswith(("0 ", "1 "))]
    assert [float(row[1]) for row in ranks] == [0.3, 0.01]


@pytest.mark.long
def test_the_population_example_runs_its_trials(tmp_path):
    words = ["run_name=pbt", "tune=pbt", 'tune.space.lr="interval(1e-3, 1.0)"', "tune.num_trials=4"]
    subprocess.run([sys.executable, str(EXAMPLES / "population.py"), *words], check=True, cwd=tmp_path)
    records = list((tmp_path / ".trieye_data").rglob("run.json"))
    assert len(records) >= 4


@pytest.mark.long
def test_the_example_of_two_nodes_trains(tmp_path):
    command = [sys.executable, str(EXAMPLES / "two_nodes.py"), "4000"]
    printed = subprocess.run(command, check=True, cwd=tmp_path, capture_output=True, text=True)
    assert "best return" in printed.stdout
