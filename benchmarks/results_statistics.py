"""Statistics of results beside rliable's: the same values, and how much CPU time each takes.

Both sides take turns in one process with one thread, of an environment in `.peers/statistics` that is made on first
use: rliable 1.2 does not import with pandas 3. Scores of 10 seeds and 26 tasks; both sides make as many resamples, in
IQM as many as rliable makes by default. Goals: values and both ends of intervals within 0.01; the interval of an IQM
20 times and that of a probability of improvement 500 times as fast. The ends of a profile of task means are counts of
tasks, so that other draws move them by a whole task at some threshold: one is allowed. Prints one JSON line.
"""

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from peer.environments import installed

RLIABLE = {"rliable": ["rliable==1.2.0", "pandas<3", "arch<8"]}
AT_LEAST = {"iqm": 20.0, "probability_of_improvement": 500.0}
WITHIN = 0.01
NUM_TASKS = 26
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
Figures = tuple[Any, Any, Any]
"""Value, lower and upper end, or arrays of them."""


def cases() -> dict[str, tuple[Callable[[], Figures], Callable[[], Figures], int]]:
    """Return by name what trieye does, what rliable does, and with how many resamples."""
    from rliable import library, metrics

    from trieye.results.statistics import aggregate, performance_profile, probability_of_improvement

    rng = np.random.default_rng(0)
    skill = rng.normal(size=NUM_TASKS)
    x, y = (np.exp(0.3 * (skill + better + rng.normal(size=(10, NUM_TASKS)))) for better in (0.5, 0.0))
    thresholds = np.linspace(0, 4, 51)

    def ours(estimate: Any) -> Figures:
        return estimate.value, estimate.low, estimate.high

    def theirs(scores: Any, figure: Callable[..., Any], reps: int) -> Figures:
        np.random.seed(0)  # noqa: NPY002 - rliable draws from the global generator, whatever it is given
        values, intervals = library.get_interval_estimates({"x": scores}, figure, reps=reps)
        return values["x"], *intervals["x"]

    def their_profile(figure: Callable[..., Any]) -> Callable[[], Figures]:
        return lambda: theirs(x, lambda scores: figure(scores, thresholds), 2_000)

    simple = {
        "iqm": (metrics.aggregate_iqm, 50_000),
        "mean": (metrics.aggregate_mean, 10_000),
        "median": (metrics.aggregate_median, 10_000),
        "optimality_gap": (metrics.aggregate_optimality_gap, 10_000),
    }
    found: dict[str, tuple[Callable[[], Figures], Callable[[], Figures], int]] = {
        stat: (
            lambda stat=stat, reps=reps: ours(aggregate(x, stat, resamples=reps)),
            lambda figure=figure, reps=reps: theirs(x, lambda scores: np.array([figure(scores)]), reps),
            reps,
        )
        for stat, (figure, reps) in simple.items()
    }
    for of, figure in (("runs", library.score_distributions), ("task_means", library.average_score_distributions)):
        own = lambda of=of: ours(performance_profile(x, thresholds, of=of, resamples=2_000))  # noqa: E731
        found[f"profile of {of}"] = own, their_profile(figure), 2_000
    found["probability_of_improvement"] = (
        lambda: ours(probability_of_improvement(x, y, resamples=1_000)),
        lambda: theirs([x, y], metrics.probability_of_improvement, 1_000),
        1_000,
    )
    return found


def cpu_s(act: Callable[[], Figures]) -> tuple[float, Figures]:
    """Return the CPU seconds of a call and what it returns."""
    began = time.process_time()
    figures = act()
    return time.process_time() - began, figures


def measure(rounds: int) -> None:
    """Measure in this process and print the figures."""
    report: dict[str, Any] = {}
    for name, (ours, theirs, resamples) in cases().items():
        ours()
        own = [cpu_s(ours)[0] for _ in range(rounds)]
        peer_s, expected = cpu_s(theirs)
        own += [cpu_s(ours)[0] for _ in range(rounds)]
        own_s = statistics.median(own)
        report[name] = {
            "resamples": resamples,
            "trieye_cpu_s": round(own_s, 5),
            "rliable_cpu_s": round(peer_s, 3),
            "times_as_fast": round(peer_s / own_s, 1),
            "difference": [
                float(f"{np.abs(np.subtract(*pair)).max():.2g}") for pair in zip(ours(), expected, strict=True)
            ],
        }
    speeds = {name: report[name]["times_as_fast"] >= goal for name, goal in AT_LEAST.items()}
    met = {**speeds, "values": all(is_same(name, *each["difference"]) for name, each in report.items())}
    goals = {**AT_LEAST, "values": WITHIN}
    print(json.dumps({"benchmark": "results_statistics", "figures": report, "goals": goals, "met": met}))


def is_same(name: str, value: float, low: float, high: float) -> bool:
    """Tell whether differences to rliable's value and ends are small enough."""
    end = 1.001 / NUM_TASKS if name == "profile of task_means" else WITHIN
    return value <= WITHIN and max(low, high) <= end


def main() -> None:
    """Measure in the environment of rliable."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="turns of trieye before, and as many after, rliable's")
    parser.add_argument("--here", action="store_true", help="measure in this environment; this script starts itself so")
    options = parser.parse_args()
    if options.here:
        measure(options.rounds)
        return
    command = [installed("statistics", RLIABLE), __file__, "--here", f"--rounds={options.rounds}"]
    subprocess.run(command, check=True, env={**os.environ, **ONE_THREAD})


if __name__ == "__main__":
    main()
