"""Each program of examples/ runs, and does what its first lines say."""

import csv
import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import trieye
from trieye.results import load

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def example(monkeypatch, tmp_path):
    """Return a function that runs a program of examples/ with overrides, and returns its result."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(tmp_path)

    def run(name, *overrides):
        module = importlib.import_module(name)
        return module.train(trieye.compose(["runtime=local", "sinks=[]", *overrides], config_type=module.Config))

    return run


def returns_of(name):
    return load(f".trieye_data/default_app/runs/{name}").series("eval/return")[0].values


def test_the_loop_resumes_with_its_random_numbers(example):
    parts = [example("loop", "run_name=parts", f"episodes={episodes}") for episodes in (150, 300)]
    assert example("loop", "run_name=whole", "episodes=300") == parts[1] > parts[0] >= 0
    q = [trieye.load_checkpoint(f".trieye_data/default_app/runs/{name}", "latest").state["state"]["q"]
         for name in ("parts", "whole")]  # fmt: skip
    np.testing.assert_array_equal(*q)


def test_the_classifier_reaches_its_target(example):
    assert example("classifier", "run_name=spirals") >= 0.99


def test_the_single_file_collects_rows_from_which_the_offline_example_learns(example):
    example("ppo", "run_name=first", "loop.env_steps=6000", "loop.evaluate_every_steps=3000", "env.eval_episodes=5")
    assert returns_of("first").max() > 60
    example("ppo", "mode=explore", "run_name=first", "loop.env_steps=3000", f"explore.output={Path.cwd()}/rows.npz")
    steps = ("loop.steps=600", "loop.evaluate_every_steps=300", "env.eval_episodes=5")
    example("offline", "mode=train", "data=rows.npz", "run_name=offline", *steps)
    assert returns_of("offline").max() > 40


def test_the_recurrent_example_trains(example):
    example("recurrent", "run_name=memory", "loop.env_steps=600", "env.eval_episodes=2")
    assert len(returns_of("memory")) == 1


def test_the_sink_receives_every_point(example, capsys):
    importlib.import_module("own_sink").main()
    with Path(".trieye_data/examples/runs/own_sink/points.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["value"]) for row in rows if row["metric"] == "loss"] == [1 / step for step in range(1, 101)]
    assert "metric,step,value,time" in capsys.readouterr().out


def test_the_sweep_of_the_plain_program_ranks_its_jobs(tmp_path):
    words = ["-m", "hydra/sweeper=trieye", "hydra/launcher=trieye", "hydra.sweeper.mode=min", "lr=0.01,0.3"]
    command = [sys.executable, str(EXAMPLES / "hydra_fit.py"), *words]
    printed = subprocess.run(command, check=True, cwd=tmp_path, capture_output=True, text=True)
    assert printed.stderr.index("lr=0.3" if "lr=0.3" in printed.stderr else "0.3") >= 0
    assert "2 done" in printed.stderr


@pytest.mark.long
def test_the_population_continues_from_its_better_trials(tmp_path):
    words = ["run_name=pbt", "tune=pbt", 'tune.space.lr="interval(1e-3, 1.0)"', "tune.num_trials=4"]
    subprocess.run([sys.executable, str(EXAMPLES / "population.py"), *words], check=True, cwd=tmp_path)
    records = list((tmp_path / ".trieye_data").rglob("run.json"))
    assert len(records) >= 4


@pytest.mark.long
def test_two_nodes_train_together(tmp_path):
    command = [sys.executable, str(EXAMPLES / "two_nodes.py"), "4000"]
    printed = subprocess.run(command, check=True, cwd=tmp_path, capture_output=True, text=True)
    assert "best return" in printed.stdout
