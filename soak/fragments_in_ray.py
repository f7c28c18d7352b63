"""Account for every environment step that explorers take in Ray, on one machine and on a cluster of two nodes.

Each training resumes the run with another number of explorers, in every style, with fragments large enough to travel
through the object store; with `--kills` explorers are killed meanwhile. `--nodes` trains on two nodes without faults.
What has to hold is what `fragments.py` says.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import fragments
import psutil
from ray.cluster_utils import Cluster

import trieye

DEADLINE_S = 300.0
NUM_ENVS, NUM_STEPS, WIDTH = 8, 64, 64


class Accounted(fragments.Rows):
    """Writes its accounts when it ends."""

    def evaluate(self) -> dict[str, float]:
        """Measure nothing: those steps would be counted, too."""
        return {"eval/return": 0.0}

    def cleanup(self) -> None:
        """Write how many steps are counted, and what was lost."""
        saved = self._row_source.state_dict()
        dropped = {
            name: value for name, value in self._row_source.metrics().items() if name.startswith("replay/dropped")
        }
        waiting = sum(report["env_steps"] for report in saved["inbox"]["reports"])
        told = {"counted": saved["env_steps"] + waiting, "lost": saved["lost"], "doubled": self._doubled}
        root = Path(self.config.persistence.root_data_dir)
        (root / "accounts.json").write_text(json.dumps({**told, "restarts": saved["restarts"], "dropped": dropped}))
        super().cleanup()


def train(root: Path, numbers: dict[str, Any]) -> None:
    """Train in this process."""
    env = {"path": str(root / "steps"), "width": WIDTH}
    config = fragments.Config.model_validate(
        {
            "agent": {"kind": "rows", "rollout_steps": NUM_STEPS},
            "env": {"id": "fragments:CountedSteps-v0", "num": NUM_ENVS, "kwargs": env, "eval_episodes": 1},
            "run_name": "counted",
            "sinks": {},
            "persistence": {"root_data_dir": str(root), "checkpoint_save_freq_steps": 10**9},
            **numbers,
        }
    )
    fragments.Steps.is_counted = False  # those of the check, in this process
    trieye.run_experiment(Accounted, config)


def explorers_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return the processes of explorers of a training, each of which has worked for a while."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if "ray::ExplorerActor" in child.cmdline()[0] and time.time() - child.create_time() > 5.0:
                found.append(child)
        except (psutil.Error, IndexError):
            continue
    return found


def run_attempt(root: Path, numbers: dict[str, Any], kills: int) -> int:
    """Train in a process of its own while some explorers are killed; return how many were."""
    with (root / "log").open("ab") as log:
        words = [sys.executable, __file__, "--child", json.dumps([str(root), numbers])]
        process = subprocess.Popen(words, stdout=log, stderr=log)
    killed, until = 0, time.monotonic() + DEADLINE_S
    try:
        while process.poll() is None:
            if time.monotonic() > until:
                raise TimeoutError("the training does not end")
            time.sleep(random.uniform(0.5, 1.5))
            victims = explorers_of(process) if killed < kills else []
            if victims:
                random.choice(victims).send_signal(signal.SIGKILL)
                killed += 1
    finally:
        process.kill()
    if process.returncode:
        raise RuntimeError(f"the training ended with {process.returncode}")
    return killed


def problems_of(root: Path, faults: int, in_flight: int) -> tuple[list[str], dict[str, Any]]:
    """Return what is wrong with the accounts of all attempts so far, and the accounts."""
    told = json.loads((root / "accounts.json").read_text())
    taken, size = (root / "steps").stat().st_size, NUM_ENVS * NUM_STEPS
    missing = taken - told["counted"]
    problems = []
    if not 0 <= missing <= told["lost"] * size:
        problems.append(f"{missing} of {taken} steps are missing, and {told['lost']} fragments are reported lost")
    if told["lost"] > faults * in_flight:
        problems.append(f"{told['lost']} fragments are reported lost after {faults} kills, with {in_flight} in flight")
    if told["doubled"]:
        problems.append(f"{told['doubled']} rows came twice")
    if any(told["dropped"].values()):
        problems.append(f"dropped: {told['dropped']}")
    return problems, {"taken": taken, "missing": missing, **told}


def resumed(root: Path, style: str, *, kills: int, env_steps: int) -> tuple[list[str], dict[str, Any]]:
    """Train with 1, 2, 4 and 8 explorers in a random order, each resuming from the one before."""
    order = random.sample([1, 2, 4, 8], 4)
    killed, problems, accounts = 0, [], {}
    for number, num in enumerate(order, start=1):
        numbers = {
            "runtime": {"kind": "ray"},
            "explorer": {"num": num, "max_restarts": 100, "restart_backoff_s": 0.1},
            "sync": {"style": style, "interval": random.choice([1, 2, 4])},
            "loop": {"axis": "env_steps", "env_steps": number * env_steps},
        }
        killed += run_attempt(root, numbers, kills)
        found, accounts = problems_of(root, killed, in_flight=2)
        problems += [f"{style}, {order[:number]}: {each}" for each in found]
    return problems, {"style": style, "explorers": order, "kills": killed, **accounts}


@contextmanager
def two_nodes() -> Iterator[str]:
    """Give the address of a cluster of two nodes, with room for one explorer each."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    try:
        yield cluster.address
    finally:
        cluster.shutdown()


def on_two_nodes(root: Path, style: str, address: str, *, env_steps: int) -> tuple[list[str], dict[str, Any]]:
    """Train from two explorers, one on each of two nodes."""
    numbers = {
        "runtime": {"kind": "cluster", "address": address},
        "explorer": {"num": 2, "num_cpus": 1.0},
        "sync": {"style": style, "max_staleness": 2},
        "loop": {"axis": "env_steps", "env_steps": env_steps},
    }
    began = time.monotonic()
    run_attempt(root, numbers, 0)
    problems, accounts = problems_of(root, 0, in_flight=2)
    return problems, {"style": style, "seconds": round(time.monotonic() - began, 1), **accounts}


def main() -> int:
    """Print one JSON line; the exit code says whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--nodes", type=int, default=0, help="trainings on two nodes, in place of those on one machine")
    parser.add_argument("--env-steps", type=int, default=0, help="of each training; 0 = 250 000 on nodes, else 30 000")
    parser.add_argument("--kills", type=int, default=2, help="explorers killed in each training")
    parser.add_argument("--styles", nargs="+", choices=fragments.STYLES, default=fragments.STYLES)
    parser.add_argument("--seed", type=int, default=None, help="of numbers and kills")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        root, numbers = json.loads(options.child)
        train(Path(root), numbers)
        return 0
    seed = random.randrange(2**32) if options.seed is None else options.seed
    random.seed(seed)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    problems: list[str] = []
    trainings: list[dict[str, Any]] = []
    with two_nodes() if options.nodes else nullcontext("") as address:
        for number in range(options.nodes or len(options.styles)):
            style, root = options.styles[number % len(options.styles)], Path(tempfile.mkdtemp())
            try:
                if address:
                    found, accounts = on_two_nodes(root, style, address, env_steps=options.env_steps or 250_000)
                else:
                    found, accounts = resumed(root, style, kills=options.kills, env_steps=options.env_steps or 30_000)
                trainings.append(accounts)
                print(f"{number + 1}: {accounts}", file=sys.stderr)
                problems += found
            except (RuntimeError, TimeoutError, OSError) as error:
                log = (root / "log").read_text(errors="replace")[-2000:]
                problems.append(f"{type(error).__name__}: {error}: {log}")
            finally:
                shutil.rmtree(root, ignore_errors=True)
    figures = {"benchmark": "fragments_in_ray", "seed": seed, "trainings": trainings, "problems": problems[:10]}
    print(json.dumps({**figures, "met": not problems}))
    return 0 if not problems else 1


if __name__ == "__main__":
    sys.exit(main())
