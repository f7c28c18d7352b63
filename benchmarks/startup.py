"""Start-up: `--help` and a config error of a trieye program against the same of a bare Hydra program.

Prints one JSON line. Each figure is the median of several processes, the two programs taking turns.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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
_COMMANDS = {"help": ("--help", 0, 0), "config_error": ("loop.stps=10", 1, 2)}
_GOAL = 2.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=7, help="processes for each figure")
    repeat = parser.parse_args().repeat
    with tempfile.TemporaryDirectory() as scratch:
        bare = _program(Path(scratch) / "bare", _BARE, _BARE_CONFIG)
        ours = _program(Path(scratch) / "ours", _OURS, _OUR_CONFIG)
        figures = {name: _compare(bare, ours, command, repeat) for name, command in _COMMANDS.items()}
    ratio = max(figure["ratio"] for figure in figures.values())
    verdict = {"goal": f"ratio <= {_GOAL}", "met": ratio <= _GOAL}
    print(json.dumps({"benchmark": "startup", "unit": "s", "ratio": ratio, **verdict, "repeat": repeat, **figures}))


def _program(directory: Path, code: str, config: str) -> Path:
    (directory / "conf").mkdir(parents=True)
    (directory / "conf" / "train.yaml").write_text(config)
    (directory / "train.py").write_text(code)
    return directory / "train.py"


def _compare(bare: Path, ours: Path, command: tuple[str, int, int], repeat: int) -> dict[str, float]:
    argument, bare_code, our_code = command
    times: dict[str, list[float]] = {"ours": [], "peer": []}
    for number in range(repeat + 1):
        for name, program, code in (("peer", bare, bare_code), ("ours", ours, our_code)):
            seconds = _seconds(program, argument, code)
            if number:  # the first one of each writes the bytecode
                times[name].append(seconds)
    medians = {name: round(statistics.median(values), 4) for name, values in times.items()}
    return {**medians, "ratio": round(medians["ours"] / medians["peer"], 3)}


def _seconds(program: Path, argument: str, code: int) -> float:
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, program.name, argument], cwd=program.parent, capture_output=True, check=False, text=True
    )
    seconds = time.perf_counter() - start
    if done.returncode != code:
        raise RuntimeError(f"{program} {argument} exited with {done.returncode}: {done.stderr}")
    return seconds


if __name__ == "__main__":
    main()
