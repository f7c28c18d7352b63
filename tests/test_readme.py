"""What the README shows works: its commands, its code, its links."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BIN = Path(sys.executable).parent

NOT_RUN_HERE = ("make ", "pip install", "trieye ui")
"""The first two are what runs this test; the last one waits for Ctrl-C."""


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands():
    lines = [line.split("  #")[0].strip() for block in blocks("bash") for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith(NOT_RUN_HERE)]


def run(command, folder):
    starts = {"python": [], "trieye": ["-m", "trieye.cli"]}
    if command[0] in starts:
        return warm.run([*starts[command[0]], *command[1:]], folder)
    # a Ray of its own: other tests have theirs, which it would join and see end
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "RAY_ADDRESS": "local"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280, env=environment)


def records(project):
    return {path: json.loads(path.read_text()) for path in project.glob(".trieye_data/*/runs/*/run.json")}


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_the_commands_run_one_after_the_other(tmp_path):
    folder = tmp_path
    for line in commands():
        if line.startswith("cd "):
            folder = folder / line[3:]
            continue
        command = shlex.split(line)
        if ".train" in line and "--help" not in line:
            # the same command on a small budget: the lengths are the demo's business
            command += [
                "loop.steps=48",
                "loop.evaluate_every_steps=24",
                "env.eval_episodes=1",
            ]
            command += ["agent.rollout_steps=8"] if "agent=ppo" in line else ["agent.learning_starts=32"]
            command += ["runtime=local"] if "runtime" not in line else []
            # one process, which imports torch once
            command += ["hydra.launcher.isolate=worker", "hydra.launcher.num_jobs=1"] if " -m " in line else []
            if not {"run_name", "sinks", "logger", "seed"} & set(re.findall(r"\w+", line)):
                command += ["sinks=[]"]  # the others show MLflow often enough
        before = records(folder)
        done = run(command, folder)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        assert "\x1b" not in done.stdout + done.stderr, "colors are for terminals"
        if " -m seed=0,1 " in line:
            jobs = [record for path, record in records(folder).items() if path not in before]
            assert [job["status"] for job in jobs] == ["FINISHED"] * 4
            assert len({job["mlflow_run_id"] for job in jobs} - {None}) == 4
            num_swept = len(jobs)
    assert num_swept == 4


def test_a_mistake_is_one_message_and_exit_code_2(tmp_path):
    (shown,) = [line[2:] for block in blocks("text") for line in block.splitlines() if line.startswith("$ ")]
    assert run(["trieye", "new", "my_agent", "--no-input"], tmp_path).returncode == 0
    done = run(shlex.split(shown), tmp_path / "my_agent")
    assert done.returncode == 2
    assert done.stdout == ""
    said = next(block for block in blocks("text") if shown in block).split(shown)[1].strip()
    assert done.stderr.strip() == said


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.strip().splitlines()[0])
@pytest.mark.slow
def test_the_code_runs(block, tmp_path):
    script = tmp_path / "shown.py"
    script.write_text(block)
    # Ray starts its own processes, whose programs come from the file of a real interpreter
    done = run([sys.executable if "ray" in block else "python", str(script)], tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
