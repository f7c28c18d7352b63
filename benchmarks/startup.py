"""Startup time: `--help` and a config error against a bare Hydra program, the first environment step against imports.

Prints one JSON line. Each figure is the median of several processes; the two programs alternate.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from trieye.cli.new import answers_of, bake

_BARE = """
import hydra

@hydra.main(version_base=None, config_path="conf", config_name="train")
def train(config):
    print(config)

train()
"""
_OURS = """
import trieye
from trieye import TrieyeConfig

@trieye.main(config_path="conf", config_name="train")
def train(config: TrieyeConfig) -> float:
    return 0.0

train()
"""
_BARE_CONFIG = "seed: 0\nloop:\n  steps: 10\n"
_OUR_CONFIG = """
defaults:
  - schema
  - runtime: ray
  - persistence: default
  - stats: default
  - metrics: [core, replay]
  - sinks: [mlflow, tensorboard]
  - replay: uniform
  - loop: default
  - experiment: null
  - debug: null
  - _self_
"""
_IMPORTS = "import torch, gymnasium, hydra"
_OPTIMIZER = f"{_IMPORTS}; torch.optim.Adam([torch.zeros(1, requires_grad=True)])"  # imports torch._dynamo: about 1 s
_FIRST_STEP = """
import os
import traceback

import gymnasium
import numpy as np


class ExitsAtFirstStep(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action):
        if any("collect" in frame.name for frame in traceback.extract_stack()):  # ignores the environment checker
            os._exit(0)
        return np.zeros(4, np.float32), 0.0, False, False, {}


gymnasium.register("ExitsAtFirstStep-v0", ExitsAtFirstStep)
"""
_COMMANDS = {"help": ("--help", 0, 0), "config_error": ("loop.stps=10", 1, 2)}
_GOALS = {"help": 1.3, "config_error": 1.5, "first_step": 1.3}


def main() -> None:
    """Measure and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=7, help="processes for each figure")
    repeat = parser.parse_args().repeat
    with tempfile.TemporaryDirectory() as scratch:
        bare = _program(Path(scratch) / "bare", _BARE, _BARE_CONFIG)
        ours = _program(Path(scratch) / "ours", _OURS, _OUR_CONFIG)
        figures = {
            name: _compare([bare.name, word], bare.parent, [ours.name, word], ours.parent, codes, repeat)
            for name, (word, *codes) in _COMMANDS.items()
        }
        project = bake(answers_of({"project_name": "My Agent"}), Path(scratch))
        (project / "my_agent" / "first_step.py").write_text(_FIRST_STEP)
        words = ["runtime=local", "sinks=[tensorboard]", "env.id=my_agent.first_step:ExitsAtFirstStep-v0"]
        command = ["-m", "my_agent.train", *words]
        figures["first_step"] = _compare(["-c", _IMPORTS], project, command, project, [0, 0], repeat)
        optimizer = ["-c", _OPTIMIZER]
        figures["first_step_to_optimizer"] = _compare(optimizer, project, command, project, [0, 0], repeat)
    verdict = {
        "goal": ", ".join(f"{name} <= {goal}" for name, goal in _GOALS.items()),
        "met": all(figures[name]["ratio"] <= goal for name, goal in _GOALS.items()),
    }
    print(json.dumps({"benchmark": "startup", "unit": "s", **verdict, "repeat": repeat, **figures}))


def _program(directory: Path, code: str, config: str) -> Path:
    (directory / "conf").mkdir(parents=True)
    (directory / "conf" / "train.yaml").write_text(config)
    (directory / "train.py").write_text(code)
    return directory / "train.py"


def _compare(
    peer: list[str], peer_dir: Path, ours: list[str], our_dir: Path, codes: list[int], repeat: int
) -> dict[str, float]:
    times: dict[str, list[float]] = {"ours": [], "peer": []}
    for number in range(repeat + 1):
        for name, words, cwd, code in (("peer", peer, peer_dir, codes[0]), ("ours", ours, our_dir, codes[1])):
            seconds = _seconds(words, cwd, code)
            if number:  # the first run of each program writes bytecode
                times[name].append(seconds)
    medians = {name: round(statistics.median(values), 4) for name, values in times.items()}
    return {**medians, "ratio": round(medians["ours"] / medians["peer"], 3)}


def _seconds(words: list[str], cwd: Path, code: int) -> float:
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *words], cwd=cwd, capture_output=True, check=False, text=True)
    seconds = time.perf_counter() - start
    if done.returncode != code:
        raise RuntimeError(f"{' '.join(words)} exited with {done.returncode}: {done.stderr}")
    return seconds


if __name__ == "__main__":
    main()
