"""Kill the hub and a producer again and again, under load, and count what arrived.

Three producers (a thread of the driver and two Ray actors) log at a fixed rate while the hub's process, and every third
time one of the actors, is killed with SIGKILL. What each had acknowledged stands in a file that it writes itself.
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
from curves import metrics_for, places, problems_of_prefix, rss_mb
from producer import RANGE, Producer, figures

import trieye
from trieye.cli import main as trieye_command

WINDOW = 1000


def answered(run: trieye.Run, killed: int, deadline_s: float = 120.0) -> int:
    """Wait until another hub answers and return its process."""
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
    raise TimeoutError("the hub did not come back")


def soak(root: Path, *, kills: int, rate: int, calm_s: float, rss_limit: float) -> dict[str, Any]:
    """Run the soak and return its figures.

    Args:
        root: An empty directory.
        kills: How many processes are killed.
        rate: Events a second of each producer.
        calm_s: Seconds between a hub's first answer and its death.
        rss_limit: How much the memory of hub and driver may grow after the warm-up.
    """
    notes = root / "notes"
    notes.mkdir()
    names = ("driver", "steady", "killed")
    config = trieye.TrieyeConfig(
        app_name="soak",
        run_name="kills",
        persistence={"root_data_dir": str(root)},
        stats={"metrics": metrics_for(names, WINDOW)},
    )
    lives = 0
    began = time.monotonic()
    with trieye.Run(config) as run:
        actor = ray.remote(num_cpus=0)(Producer)
        driver = Producer(run, "driver", 0, str(notes), rate)
        steady = actor.remote(run.client(), "steady", 0, str(notes), rate)
        victim = actor.remote(run.client(), "killed", lives, str(notes), rate)
        ray.get([steady.pid.remote(), victim.pid.remote()])
        hub = int(run.health()["pid"])
        time.sleep(max(calm_s, 2.0))
        hub_before, driver_before = rss_mb(hub), rss_mb(os.getpid())
        for number in range(kills):
            time.sleep(calm_s)
            if number % 3 == 2:
                os.kill(ray.get(victim.pid.remote()), signal.SIGKILL)
                lives += 1
                victim = actor.remote(run.client(), "killed", lives, str(notes), rate)
                ray.get(victim.pid.remote())
            else:
                os.kill(hub, signal.SIGKILL)
                hub = answered(run, hub)
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
        problems = ["`trieye close` did not deliver what the run left"]
    else:
        problems = check(run_dir, notes, lives)
    total = sum(figures(notes, name, life)[1] for name in names for life in range(lives + 1 if name == "killed" else 1))
    growth = {"hub": hub_after / hub_before, "driver": driver_after / driver_before}
    return {
        "benchmark": "hub_kills",
        "kills": kills,
        "events": total,
        "events_per_s_each": round(sent["driver"] / took_s),
        "rss_growth": {who: round(value, 2) for who, value in growth.items()},
        "problems": problems,
        "met": not problems and max(growth.values()) <= rss_limit,
    }


def check(run_dir: Path, notes: Path, lives: int) -> list[str]:
    """Return what is wrong in any of the three places."""
    problems = []
    for place, curves in places(run_dir).items():
        for name, life in [("driver", 0), ("steady", 0), *(("killed", life) for life in range(lives + 1))]:
            acknowledged, sent = figures(notes, name, life)
            found = problems_of_prefix(
                curves, name, first=life * RANGE + 1, acknowledged=acknowledged, sent=sent, window=WINDOW
            )
            problems += [f"{place}, life {life}: {problem}" for problem in found]
    return problems


def main() -> int:
    """Print one JSON line; the exit code says whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rate", type=int, default=20_000, help="events a second of each producer")
    parser.add_argument(
        "--calm", type=float, default=5.0, help="seconds between an answer of the hub and the next kill"
    )
    parser.add_argument("--rss-limit", type=float, default=1.2, help="how much the memory may grow after the warm-up")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        found = soak(
            Path(root), kills=options.kills, rate=options.rate, calm_s=options.calm, rss_limit=options.rss_limit
        )
    print(json.dumps(found))
    return 0 if found["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
