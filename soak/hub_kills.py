"""Kill the hub and a producer repeatedly under load, and count the delivered events.

Three producers (a thread of the driver and two Ray actors) log at a fixed rate. Every third SIGKILL ends one of the
actors, the others end the hub. Each producer records its acknowledged events in a file.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
from curves import metrics_for, problems_of_prefix, rss_mb, stored_curves
from producer import RANGE, Producer, event_counts

import trieye
from trieye.cli import main as trieye_command

WINDOW = 1000


def await_new_hub(run: trieye.Run, killed: int, deadline_s: float = 120.0) -> int:
    """Wait until a new hub answers and return its process id."""
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        try:
            pid = int(run.health()["pid"])
        except (ConnectionError, trieye.TrieyeError):
            pid = killed
        if pid != killed:
            run.flush()
            return pid
        time.sleep(0.2)
    raise TimeoutError("the hub did not restart")


def soak(root: Path, *, kills: int, rate: int, calm_s: float, rss_limit: float) -> dict[str, Any]:
    """Run the soak and return its figures.

    Args:
        root: An empty directory.
        kills: How many processes are killed.
        rate: Events per second of each producer.
        calm_s: Seconds between the first answer of a hub and the next kill.
        rss_limit: Highest ratio of the memory of hub and driver to their memory after the warm-up.
    """
    counts_dir = root / "counts"
    counts_dir.mkdir()
    names = ("driver", "steady", "killed")
    config = trieye.TrieyeConfig(
        app_name="soak",
        run_name="kills",
        persistence={"root_data_dir": str(root)},
        stats={"metrics": metrics_for(names, WINDOW)},
    )
    num_killed_producers = 0
    began = time.monotonic()
    with trieye.Run(config) as run:
        actor = ray.remote(num_cpus=0)(Producer)
        driver = Producer(run, "driver", 0, str(counts_dir), rate)
        steady = actor.remote(run.client(), "steady", 0, str(counts_dir), rate)
        victim = actor.remote(run.client(), "killed", num_killed_producers, str(counts_dir), rate)
        ray.get([steady.pid.remote(), victim.pid.remote()])
        hub = int(run.health()["pid"])
        time.sleep(max(calm_s, 2.0))
        hub_before, driver_before = rss_mb(hub), rss_mb(os.getpid())
        for number in range(kills):
            time.sleep(calm_s)
            if number % 3 == 2:
                os.kill(ray.get(victim.pid.remote()), signal.SIGKILL)
                num_killed_producers += 1
                victim = actor.remote(run.client(), "killed", num_killed_producers, str(counts_dir), rate)
                ray.get(victim.pid.remote())
            else:
                os.kill(hub, signal.SIGKILL)
                hub = await_new_hub(run, hub)
            print(f"{number + 1} of {kills} kills", file=sys.stderr)
        time.sleep(max(calm_s, 2.0))
        hub_after, driver_after = rss_mb(hub), rss_mb(os.getpid())
        sent = {
            "driver": driver.stop(),
            "steady": ray.get(steady.stop.remote()),
            "killed": ray.get(victim.stop.remote()),
        }
        took_s = time.monotonic() - began
        run_dir = run.dir
    if trieye_command(["close", str(run_dir)]):
        problems = ["`trieye close` did not deliver the remaining points"]
    else:
        problems = check(run_dir, counts_dir, num_killed_producers)
    total = sum(event_counts(counts_dir, *producer)[1] for producer in incarnations(num_killed_producers))
    growth = {"hub": hub_after / hub_before, "driver": driver_after / driver_before}
    return {
        "benchmark": "hub_kills",
        "kills": kills,
        "events": total,
        "events_per_s_each": round(sent["driver"] / took_s),
        "rss_growth": {process: round(ratio, 2) for process, ratio in growth.items()},
        "problems": problems,
        "met": not problems and max(growth.values()) <= rss_limit,
    }


def incarnations(num_killed_producers: int) -> list[tuple[str, int]]:
    """Return name and incarnation of all producers."""
    return [("driver", 0), ("steady", 0), *(("killed", number) for number in range(num_killed_producers + 1))]


def check(run_dir: Path, counts_dir: Path, num_killed_producers: int) -> list[str]:
    """Return the problems of the curves in MLflow, TensorBoard and the history."""
    problems = []
    for store, curves in stored_curves(run_dir).items():
        for name, incarnation in incarnations(num_killed_producers):
            acknowledged, sent = event_counts(counts_dir, name, incarnation)
            problems += [
                f"{store}, incarnation {incarnation}: {problem}"
                for problem in problems_of_prefix(
                    curves, name, first=incarnation * RANGE + 1, acknowledged=acknowledged, sent=sent, window=WINDOW
                )
            ]
    return problems


def main() -> int:
    """Print one JSON line; exit with 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rate", type=int, default=20_000, help="events per second of each producer")
    parser.add_argument(
        "--calm", type=float, default=5.0, help="seconds between the first answer of a hub and the next kill"
    )
    parser.add_argument(
        "--rss-limit", type=float, default=1.2, help="highest ratio of the memory to the memory after the warm-up"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        figures = soak(
            Path(root), kills=options.kills, rate=options.rate, calm_s=options.calm, rss_limit=options.rss_limit
        )
    print(json.dumps(figures))
    return 0 if figures["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
