"""Account for every environment step of explorers in Ray, on one machine and on a cluster of two nodes.

Each training resumes the run with another number of explorers, in every style, with fragments that are large enough for
the object store, while `--kills` explorers are killed. `--nodes` trains on two nodes without faults. The conditions are
listed in `fragments.py`.
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
import psutil  # type: ignore[import-untyped]  # stubs would be one more package
from ray.cluster_utils import Cluster

import trieye

DEADLINE_S = 300.0
NUM_ENVS, NUM_STEPS, WIDTH = 8, 64, 64


class Accounted(fragments.Rows):
    """Writes its counters to `accounts.json` at the end."""

    def evaluate(self) -> dict[str, float]:
        """Skip the evaluation, because the environments would count its steps."""
        return {"eval/return": 0.0}

    def cleanup(self) -> None:
        """Write the numbers of counted steps and lost fragments."""
        saved = self._row_source.state_dict()
        dropped = {
            name: value for name, value in self._row_source.metrics().items() if name.startswith("replay/dropped")
        }
        num_queued = sum(report["env_steps"] for report in saved["inbox"]["reports"])
        accounts = {"counted": saved["env_steps"] + num_queued, "lost": saved["lost"], "repeated": self._num_repeated}
        root = Path(self.config.persistence.root_data_dir)
        (root / "accounts.json").write_text(json.dumps({**accounts, "restarts": saved["restarts"], "dropped": dropped}))
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
    fragments.Steps.is_counted = False  # the environment checker runs in this process
    trieye.run_experiment(Accounted, config)


def explorers_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return the processes of explorers that are older than 5 s."""
    explorers = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if "ray::ExplorerActor" in child.cmdline()[0] and time.time() - child.create_time() > 5.0:
                explorers.append(child)
        except (psutil.Error, IndexError):
            continue
    return explorers


def run_attempt(root: Path, numbers: dict[str, Any], kills: int) -> int:
    """Train in a separate process, kill up to `kills` explorers, and return how many were killed."""
    with (root / "log").open("ab") as log:
        words = [sys.executable, __file__, "--child", json.dumps([str(root), numbers])]
        process = subprocess.Popen(words, stdout=log, stderr=log)
    killed, until = 0, time.monotonic() + DEADLINE_S
    try:
        while process.poll() is None:
            if time.monotonic() > until:
                raise TimeoutError("the training did not exit in time")
            time.sleep(random.uniform(0.5, 1.5))
            victims = explorers_of(process) if killed < kills else []
            if victims:
                random.choice(victims).send_signal(signal.SIGKILL)
                killed += 1
    finally:
        process.kill()
    if process.returncode:
        raise RuntimeError(f"the training exited with {process.returncode}")
    return killed


def problems_of(root: Path, faults: int, in_flight: int) -> tuple[list[str], dict[str, Any]]:
    """Return the problems of the counters of all attempts so far, and the counters."""
    accounts = json.loads((root / "accounts.json").read_text())
    num_taken, size = (root / "steps").stat().st_size, NUM_ENVS * NUM_STEPS
    missing = num_taken - accounts["counted"]
    problems = []
    if not 0 <= missing <= accounts["lost"] * size:
        problems.append(
            f"{missing} of {num_taken} steps are missing, and {accounts['lost']} fragments are reported lost"
        )
    if accounts["lost"] > faults * in_flight:
        problems.append(
            f"{accounts['lost']} fragments are reported lost after {faults} kills, with {in_flight} in flight"
        )
    if accounts["repeated"]:
        problems.append(f"{accounts['repeated']} rows arrived twice")
    if any(accounts["dropped"].values()):
        problems.append(f"dropped: {accounts['dropped']}")
    return problems, {"taken": num_taken, "missing": missing, **accounts}


def resumed(root: Path, style: str, *, kills: int, env_steps: int) -> tuple[list[str], dict[str, Any]]:
    """Train with 1, 2, 4 and 8 explorers in a random order; each attempt resumes from its predecessor."""
    order = random.sample([1, 2, 4, 8], 4)
    num_killed = 0
    problems: list[str] = []
    accounts: dict[str, Any] = {}
    for number, num in enumerate(order, start=1):
        numbers = {
            "runtime": {"kind": "ray"},
            "explorer": {"num": num, "max_restarts": 100, "restart_backoff_s": 0.1},
            "sync": {"style": style, "interval": random.choice([1, 2, 4])},
            "loop": {"axis": "env_steps", "env_steps": number * env_steps},
        }
        num_killed += run_attempt(root, numbers, kills)
        own_problems, accounts = problems_of(root, num_killed, in_flight=2)
        problems += [f"{style}, {order[:number]}: {problem}" for problem in own_problems]
    return problems, {"style": style, "explorers": order, "kills": num_killed, **accounts}


@contextmanager
def two_nodes() -> Iterator[str]:
    """Yield the address of a cluster of two nodes with one CPU each."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    try:
        yield cluster.address
    finally:
        cluster.shutdown()


def on_two_nodes(root: Path, style: str, address: str, *, env_steps: int) -> tuple[list[str], dict[str, Any]]:
    """Train with two explorers, one on each of two nodes."""
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
    """Print one JSON line; exit with 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--nodes", type=int, default=0, help="number of trainings on two nodes instead of one machine")
    parser.add_argument("--env-steps", type=int, default=0, help="of each training; 0: 250000 on nodes, else 30000")
    parser.add_argument("--kills", type=int, default=2, help="explorers killed in each training")
    parser.add_argument("--styles", nargs="+", choices=fragments.STYLES, default=fragments.STYLES)
    parser.add_argument("--seed", type=int, default=None, help="seed of numbers and kills")
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
                    own_problems, accounts = on_two_nodes(root, style, address, env_steps=options.env_steps or 250_000)
                else:
                    own_problems, accounts = resumed(
                        root, style, kills=options.kills, env_steps=options.env_steps or 30_000
                    )
                trainings.append(accounts)
                print(f"{number + 1}: {accounts}", file=sys.stderr)
                problems += own_problems
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
