"""Shift the clock by days between the attempts of a run, and check the times and intervals of its points.

Each attempt is a separate process, which shifts the clock of Python before it imports anything else.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import trieye

DAY_S = 86_400.0
SHIFTS_DAYS = (0.0, -3.0, 5.0, -400.0)
TOLERANCE_S = 30.0
SHIFTED = """
import os, time
_now, _now_ns, _by = time.time, time.time_ns, float(os.environ["SHIFT_S"])
time.time = lambda: _now() + _by
time.time_ns = lambda: _now_ns() + int(_by * 1e9)
"""


def config_of(root: Path) -> trieye.TrieyeConfig:
    """Return a config with a metric for each type of axis and interval."""
    metrics = [
        {"name": "by_step", "raw_event_name": "value", "aggregation": "count", "log_frequency_steps": 100},
        {
            "name": "by_time",
            "raw_event_name": "value",
            "aggregation": "count",
            "log_frequency_steps": 0,
            "log_frequency_seconds": 0.5,
        },
        {
            "name": "rate",
            "aggregation": "rate",
            "rate_numerator_event": "one",
            "log_frequency_steps": 0,
            "log_frequency_seconds": 0.5,
        },
        {
            "name": "age",
            "raw_event_name": "value",
            "aggregation": "latest",
            "log_frequency_steps": 100,
            "x_axis": "wall_time",
        },
    ]
    return trieye.TrieyeConfig(
        app_name="soak",
        run_name="clock",
        runtime={"kind": "local"},
        sinks={},
        persistence={"root_data_dir": str(root)},
        stats={"metrics": metrics, "processing_interval_seconds": 0.1},
    )


def attempt(root: Path, first: int, steps: int) -> None:
    """Log steps at intervals of 2 ms."""
    with trieye.Run(config_of(root)) as run:
        for step in range(first, first + steps):
            run.log({"value": float(step), "one": 1.0}, step=step)
            time.sleep(0.002)


def soak(root: Path, *, steps: int) -> dict[str, Any]:
    """Run an attempt for each shift of the clock, and return the number of points and their problems."""
    from trieye.history.history import read_history

    site = root / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SHIFTED)
    spans = []
    for number, days in enumerate(SHIFTS_DAYS):
        began = time.time() + days * DAY_S
        environment = {**os.environ, "PYTHONPATH": str(site), "SHIFT_S": str(days * DAY_S)}
        arguments = ["--child", "--root", str(root), "--first", str(number * steps + 1), "--steps", str(steps)]
        subprocess.run([sys.executable, __file__, *arguments], env=environment, check=True)
        spans.append((began, time.time() + days * DAY_S))
    rows = read_history(config_of(root).persistence.get_run_base_dir()).to_pylist()
    return {"points": len(rows), "problems": list(problems_of(rows, spans, steps))}


def problems_of(rows: list[dict[str, Any]], spans: list[tuple[float, float]], steps: int) -> list[str]:
    """Return the problems of the points of all attempts."""
    problems = []
    for row in rows:
        times = [began - TOLERANCE_S <= row["wall_time"] <= ended + TOLERANCE_S for began, ended in spans]
        if not any(times):
            problems.append(f"{row['metric']} at {row['step']}: time {row['wall_time']}")
    curves: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        curves.setdefault(row["metric"], []).append(row)
    problems += [
        f"{name}: not every event is counted exactly once"
        for name in ("by_step", "by_time")
        if sum(row["value"] for row in curves[name]) != steps * len(spans)
    ]
    ages = [row["step"] for row in curves["age"]]
    if ages != sorted(ages) or min(ages) < 0:
        problems.append(f"the steps of age decrease: {ages}")
    fewest = steps * len(spans) * 0.002 / 0.5 / 2
    most = sum(ended - began for began, ended in spans) / 0.5 + 2 * len(spans)
    problems += [
        f"{name}: {len(curves[name])} points, {fewest:.0f} to {most:.0f} expected"
        for name in ("by_time", "rate")
        if not fewest <= len(curves[name]) <= most
    ]
    rates = [row["value"] for row in curves["rate"] if row["value"]]
    # events arrive in batches, so a short last interval of an attempt contains events of the previous interval
    if not 50 <= sorted(rates)[len(rates) // 2] <= 1000:
        problems.append(f"rate: {rates}")
    return problems


def main() -> int:
    """Print one JSON line; exit with 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=2_000, help="steps of each attempt")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        attempt(options.root, options.first, options.steps)
        return 0
    with tempfile.TemporaryDirectory() as root:
        figures = soak(Path(root), steps=options.steps)
    print(json.dumps({"benchmark": "clock", **figures, "met": not figures["problems"]}))
    return 0 if not figures["problems"] else 1


if __name__ == "__main__":
    sys.exit(main())
