"""docs/pyexputils.md: `trieye sweep` produces the indices and paths of its example."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm
from trieye.cli import main
from trieye.results import load

WARM = warm.RUN
PAGE = (Path(__file__).parents[2] / "docs/pyexputils.md").read_text()


def block(language):
    (text,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return text


@pytest.mark.usefixtures("warm_programs")
def test_the_worked_example_matches_the_indices_and_paths_of_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "experiments/mountain_car/sarsa.json"
    path.parent.mkdir(parents=True)
    path.write_text(block("json"))
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/train.yaml").write_text(block("yaml"))
    (tmp_path / "train.py").write_text(block("python"))
    for session in block("console").split("$ trieye ")[1:]:
        command, *expected = session.splitlines()
        assert main(shlex.split(command)) == 0
        printed = capsys.readouterr().out.splitlines()
        assert [line for line in printed if line in expected] == expected, printed
    run = "hydra/launcher=trieye", "hydra.launcher.isolate=none", "hydra.launcher.only=[7,11]"
    words = ["hydra/sweeper=trieye", "hydra.sweep.dir=sweeps/sarsa", "hydra.sweeper.seeds=2"]
    command = [sys.executable, "train.py", "-m", *words, *run, "alpha=0.5,0.25", "trace=0.9,0.99,1.0"]
    subprocess.run(command, check=True, capture_output=True)
    results = tmp_path / "results/mountain_car/sarsa"
    assert sorted(path.relative_to(results).as_posix() for path in results.rglob("return.csv")) == [
        "alpha-0.25_trace-1.0/1/return.csv",
        "alpha-0.5_trace-0.99/1/return.csv",
    ]
    runs = load("sweeps/sarsa").runs
    assert [(run.job, dict(run.varied)) for run in runs] == [
        (7, {"seed": 1, "alpha": 0.5, "trace": 0.99}),
        (11, {"seed": 1, "alpha": 0.25, "trace": 1.0}),
    ]
    assert load("sweeps/sarsa").metrics() == ["return"]
    assert json.loads((tmp_path / "sweeps/sarsa/save_paths.jsonl").read_text().splitlines()[6]).endswith("/1")
