"""CPU time and agreement of trieye's statistics and rliable's.

Both sides alternate in one process with one thread, in an environment in `.peers/statistics` that is created on first
use: rliable 1.2 fails to import with pandas 3. The scores cover 10 seeds and 26 tasks; both sides use the same number
of resamples, which for the IQM is rliable's default. Goals: values and interval bounds within 0.01; intervals of the
IQM 20 times and of the probability of improvement 500 times as fast. The bounds of a profile of task means are counts
of tasks, which differ between random draws, so a difference of one task is allowed. Prints one JSON line.
"""

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
from peer.environments import installed

from trieye.results.aggregates import Aggregate

RLIABLE = {"rliable": ["rliable==1.2.0", "pandas<3", "arch<8"]}
AT_LEAST = {"iqm": 20.0, "probability_of_improvement": 500.0}
WITHIN = 0.01
NUM_TASKS = 26
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
Estimate = tuple[Any, Any, Any]
"""Value, lower and upper bound of its interval; numbers or arrays."""
Case = tuple[Callable[[], Estimate], Callable[[], Estimate], int]
"""The call of trieye, the call of rliable, and the number of resamples of both."""


def cases() -> dict[str, Case]:
    """Return the cases by the name of the statistic."""
    from rliable import library, metrics

    from trieye.results.statistics import aggregate, performance_profile, probability_of_improvement

    rng = np.random.default_rng(0)
    skill = rng.normal(size=NUM_TASKS)
    x, y = (np.exp(0.3 * (skill + better + rng.normal(size=(10, NUM_TASKS)))) for better in (0.5, 0.0))
    thresholds = np.linspace(0, 4, 51)

    def ours(estimate: Any) -> Estimate:
        return estimate.value, estimate.low, estimate.high

    def theirs(scores: Any, statistic: Callable[..., Any], reps: int) -> Estimate:
        np.random.seed(0)  # noqa: NPY002 - rliable always draws from the global generator
        values, intervals = library.get_interval_estimates({"x": scores}, statistic, reps=reps)
        return values["x"], *intervals["x"]

    def our_aggregate(name: Aggregate, reps: int) -> Estimate:
        return ours(aggregate(x, name, resamples=reps))

    def their_aggregate(statistic: Callable[..., Any], reps: int) -> Estimate:
        return theirs(x, lambda scores: np.array([statistic(scores)]), reps)

    def our_profile(of: Literal["runs", "task_means"]) -> Estimate:
        return ours(performance_profile(x, thresholds, of=of, resamples=2_000))

    def their_profile(distribution: Callable[..., Any]) -> Estimate:
        return theirs(x, lambda scores: distribution(scores, thresholds), 2_000)

    aggregates: dict[Aggregate, tuple[Callable[..., Any], int]] = {
        "iqm": (metrics.aggregate_iqm, 50_000),
        "mean": (metrics.aggregate_mean, 10_000),
        "median": (metrics.aggregate_median, 10_000),
        "optimality_gap": (metrics.aggregate_optimality_gap, 10_000),
    }
    return {
        **{
            name: (partial(our_aggregate, name, reps), partial(their_aggregate, statistic, reps), reps)
            for name, (statistic, reps) in aggregates.items()
        },
        "profile of runs": (
            lambda: our_profile("runs"),
            lambda: their_profile(library.score_distributions),
            2_000,
        ),
        "profile of task_means": (
            lambda: our_profile("task_means"),
            lambda: their_profile(library.average_score_distributions),
            2_000,
        ),
        "probability_of_improvement": (
            lambda: ours(probability_of_improvement(x, y, resamples=1_000)),
            lambda: theirs([x, y], metrics.probability_of_improvement, 1_000),
            1_000,
        ),
    }


def cpu_s(call: Callable[[], Estimate]) -> tuple[float, Estimate]:
    """Return the CPU time of a call in seconds, and its estimate."""
    start = time.process_time()
    estimate = call()
    return time.process_time() - start, estimate


def measure(rounds: int) -> None:
    """Measure in this process and print the figures."""
    report: dict[str, Any] = {}
    for name, (ours, theirs, resamples) in cases().items():
        ours()
        our_times = [cpu_s(ours)[0] for _ in range(rounds)]
        peer_s, expected = cpu_s(theirs)
        our_times += [cpu_s(ours)[0] for _ in range(rounds)]
        own_s = statistics.median(our_times)
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
    met = {**speeds, "values": all(is_same(name, *figures["difference"]) for name, figures in report.items())}
    goals = {**AT_LEAST, "values": WITHIN}
    print(json.dumps({"benchmark": "results_statistics", "figures": report, "goals": goals, "met": met}))


def is_same(name: str, value: float, low: float, high: float) -> bool:
    """Return True if the differences from rliable's value and interval bounds are within the goals."""
    bound_tolerance = 1.001 / NUM_TASKS if name == "profile of task_means" else WITHIN
    return value <= WITHIN and max(low, high) <= bound_tolerance


def main() -> None:
    """Start the measurement in the environment of rliable."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of trieye before and after rliable's round")
    parser.add_argument("--here", action="store_true", help="measure in this environment (used by this script)")
    options = parser.parse_args()
    if options.here:
        measure(options.rounds)
        return
    command = [str(installed("statistics", RLIABLE)), __file__, "--here", f"--rounds={options.rounds}"]
    subprocess.run(command, check=True, env={**os.environ, **ONE_THREAD})


if __name__ == "__main__":
    main()
