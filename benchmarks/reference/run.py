"""Run the sweeps of the reference tables, and store their curves in `data/` when a cell is complete.

A table is a file of `tables/`. Each of its cells has two sides, trieye's template and stable-baselines3, with equal
environments, budgets and hyperparameters; each side is a sweep over seeds, which the same command resumes after Ctrl-C
or a kill. A side whose file in `data/` exists is repeated only with --again, and compared with that file.

    .venv/bin/python benchmarks/reference/run.py            # all tables, in order
    .venv/bin/python benchmarks/reference/run.py classic --cell ppo_cartpole
    .venv/bin/python benchmarks/reference/run.py --speed    # steps per second of each side, and the hours that remain
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from trieye.process.child import run_program
from trieye.results import Results, load
from trieye.results.statistics import Estimate, aggregate

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
HERE = Path(__file__).parent
DATA, TABLES = HERE / "data", HERE / "tables"
WORK = ROOT / ".reference"
SLUG = "my_agent"
PROGRAMS = {"trieye": "train", "sb3": "sb3"}
METRICS = "eval/return,eval/mean_reward"
"""Metric of the evaluations of each program."""

PACKAGES = {
    "sb3": ["stable-baselines3==2.9.2"],
    "mujoco": ["gymnasium[mujoco]", "mujoco<4"],
    "box2d": ["gymnasium[box2d]"],
    "atari": ["gymnasium[atari]", "opencv-python-headless"],
    "minatar": ["minatar"],
}
THOUSAND = 1000
SPEED_SHARE, SPEED_STEPS = 0.02, 2000
"""Share of the budget, and lowest number of steps, of a speed measurement."""

ENVIRON = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}  # the networks for stable-baselines3


@dataclass(frozen=True)
class Side:
    """One library in one cell of a table.

    Attributes:
        table: Name of the table.
        cell: Name of the cell.
        library: `trieye` or `sb3`.
        words: Overrides of its program.
        seeds: Number of seeds, starting from 0.
        steps: Environment steps of a run.
    """

    table: str
    cell: str
    library: str
    words: tuple[str, ...]
    seeds: int
    steps: int

    @property
    def data(self) -> Path:
        """File of the curves of all seeds."""
        return DATA / self.table / f"{self.cell}-{self.library}.parquet"

    @property
    def directory(self) -> Path:
        """Directory of the sweep."""
        return WORK / "sweeps" / self.table / self.cell / self.library

    def command(self, python: Path, *words: str) -> list[str]:
        """Return the command of the program, with one thread and one CPU per job."""
        typed = [*self.words, "runtime=local", "sinks=[]", "progress_bar=false"]
        return [str(python), "-m", f"{SLUG}.{PROGRAMS[self.library]}", *typed, *words]


def sides(names: list[str], cells: list[str], libraries: list[str]) -> Iterator[Side]:
    """Yield the sides of the named tables; no cells: all cells."""
    for path in (TABLES / f"{name}.yaml" for name in names):
        table = yaml.safe_load(path.read_text())
        for name, cell in table["cells"].items():
            if cells and name not in cells:
                continue
            for library in libraries:
                if library not in cell:
                    continue
                shared = {"loop.steps": cell["steps"], "loop.evaluate_every_steps": cell["evaluate_every"]}
                shared["persistence.checkpoint_save_freq_steps"] = (
                    cell["steps"] // 4
                )  # a kill repeats at most a quarter
                tags = {"tags.algorithm": cell["algorithm"], "tags.library": library}
                words = [f"env={cell['env']}", *_words(table.get("shared", {}) | cell.get("shared", {}) | shared)]
                words += [*_words(cell[library]), *(f"+{word}" for word in _words(tags))]
                yield Side(path.stem, name, library, tuple(words), cell.get("seeds", table["seeds"]), cell["steps"])


def _words(values: dict[str, Any]) -> list[str]:
    return [f"{key}={_word(value)}" for key, value in values.items()]


def _word(value: Any) -> str:
    """Return a value in the grammar of Hydra."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}: {_word(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_word, value)) + "]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def environment() -> Path:
    """Return the Python of the environment with all libraries, which is created if it is missing."""
    from peer.environments import installed

    return installed("reference", PACKAGES)


def project(python: Path) -> Path:
    """Return the directory of a project from the template, which is generated if it is missing or outdated."""
    directory = WORK / "project" / SLUG
    changed_at = max(path.stat().st_mtime for path in (ROOT / "template").rglob("*") if path.is_file())
    if not directory.exists() or directory.stat().st_mtime < changed_at:
        shutil.rmtree(directory, ignore_errors=True)
        new = [str(python), "-m", "trieye.cli", "new", SLUG, "--no-input", "-o", str(directory.parent)]
        subprocess.run(new, check=True, stdout=subprocess.DEVNULL)
    return directory


def run(side: Side, python: Path) -> None:
    """Run or resume the sweep of a side, and store its curves."""
    words = [
        "-m", f"seed=range(0,{side.seeds})", "hydra/sweeper=trieye", "hydra/launcher=trieye",
        "hydra.launcher.backend=local", f"hydra.sweep.dir={side.directory}",
        f"run_name={side.table}_{side.cell}_{side.library}_seed${{seed}}",
        f"persistence.root_data_dir={WORK / 'data'}",
    ]  # fmt: skip
    print(f"== {side.table}: {side.cell}, {side.library}", flush=True)
    os.environ.update(ENVIRON)
    if code := run_program(side.command(python, *words), project(python)):
        sys.exit(code)  # the sweep has said why
    part = side.data.with_suffix(".part.parquet")
    export = [str(python), "-m", "trieye.cli", "results", "export", str(side.directory), "-o", str(part)]
    logged = METRICS.split(",")[side.library == "sb3"]
    subprocess.run([*export, "--metric", logged], check=True, cwd=WORK)
    results = load(part)
    text = f"{side.table}: {side.cell}, {side.library}: {figure(aggregate(scores(results)))}, {len(results)} seeds"
    if side.data.exists():
        text += f"; {equal_values(load(side.data), results)} of the curves that it replaces"
    part.replace(side.data)
    print(text, flush=True)


def scores(results: Results) -> NDArray[np.float64]:
    """Return the score of each run, the mean of the last 10 % of its evaluations."""
    values = results.values(METRICS.split(",")).ravel()
    return values[~np.isnan(values)]


def figure(estimate: Estimate) -> str:
    """Return a figure with its interval."""
    return f"{_digits(estimate.value)} [{_digits(estimate.low)}, {_digits(estimate.high)}]"


def _digits(number: float | None) -> str:
    """Format a number with three digits, or all digits of thousands."""
    return "-" if number is None else f"{number:,.0f}" if abs(number) >= THOUSAND else f"{number:.3g}"


def equal_values(before: Results, after: Results) -> str:
    """Return how many evaluations of two results are equal, by seed and step."""
    values_before, values_after = map(_values, (before, after))
    num_equal = sum(values_before.get(key) == value for key, value in values_after.items())
    return f"{num_equal} of {len(values_before)} evaluations equal those"


def _values(results: Results) -> dict[tuple[str, int], float]:
    series = zip(results.runs, results.series(METRICS.split(",")), strict=True)
    return {
        (run.params["seed"], step): value
        for run, curve in series
        for step, value in zip(curve.steps.tolist(), curve.values.tolist(), strict=True)
    }


def speed(side: Side, python: Path) -> dict[str, Any]:
    """Return the steps per second between the first two evaluations of one seed, and the CPU hours of all seeds."""
    steps = max(int(side.steps * SPEED_SHARE), SPEED_STEPS)
    name = f"speed_{side.cell}_{side.library}_{time.time_ns()}"
    words = [f"loop.steps={2 * steps}", f"loop.evaluate_every_steps={steps}", "env.eval_episodes=1", f"run_name={name}"]
    subprocess.run(
        side.command(python, *words, f"persistence.root_data_dir={WORK / 'speed'}"), check=True, cwd=project(python),
        capture_output=True, env=ENVIRON,
    )  # fmt: skip
    series = load(WORK / "speed" / SLUG / "runs" / name).series(METRICS.split(","))[0]
    rate = float((series.steps[-1] - series.steps[-2]) / (series.times[-1] - series.times[-2]))
    hours = round(side.steps * side.seeds / rate / 3600, 2)
    named = {"table": side.table, "cell": side.cell, "library": side.library}
    return {**named, "steps_per_s": round(rate), "cpu_hours": hours}


def table_names() -> list[str]:
    """Return the names of all tables."""
    return sorted(path.stem for path in TABLES.glob("*.yaml"))


def table_name(text: str) -> str:
    """Return the name of a table; raise `argparse.ArgumentTypeError` for another text."""
    if text not in table_names():
        raise argparse.ArgumentTypeError(f"{text!r} is not among {', '.join(table_names())}")
    return text


def main() -> None:
    """Run the sides that have no data yet, or measure their speed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", type=table_name, metavar="TABLE", help="tables to run (default: all)")
    parser.add_argument("--cell", nargs="*", default=[], help="cells to run (default: all)")
    parser.add_argument("--library", nargs="*", default=[*PROGRAMS], choices=PROGRAMS, help="sides (default: all)")
    parser.add_argument("--speed", action="store_true", help="measure the speed only")
    parser.add_argument("--again", action="store_true", help="run sides that have data already, and replace it")
    options = parser.parse_args()
    names = options.tables or table_names()
    selected = list(sides(names, options.cell, options.library))
    unknown_cells = set(options.cell) - {side.cell for side in selected}
    if unknown_cells or not selected:
        cells = dict.fromkeys(side.cell for side in sides(names, [], options.library))
        parser.error(f"--cell {' '.join(sorted(unknown_cells))}: not among {', '.join(cells)}")
    python = environment()
    missing = [side for side in selected if options.again or not side.data.exists()]
    for side in missing:
        if options.speed:
            print(json.dumps(speed(side, python)), flush=True)
        else:
            side.data.parent.mkdir(parents=True, exist_ok=True)
            run(side, python)


if __name__ == "__main__":
    main()
