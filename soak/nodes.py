"""Train across two nodes of a Ray cluster, one of which is killed and added again.

A DQN of the project template learns CartPole from two explorers, one on each node, fully asynchronously. While one node
is gone the training goes on with the other; when there is one again, its explorer is begun anew there. In the end the
history has every step once, versions that strictly grow, and counts that add up to what the training counted itself.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from explorer_kills import AGENTS, DEADLINE_S, STALENESS, Life, check, train_watched
from ray.cluster_utils import Cluster


def configure(root: Path, address: str, time_s: float, transport: str = "auto") -> Any:
    """Return the config of the run."""
    from my_agent.config import TrainConfig

    return TrainConfig(
        agent={"hidden_sizes": [32], "batch_size": 32, **AGENTS["dqn"]},
        env={"id": "CartPole-v1", "eval_episodes": 1, "num": 2},
        run_name="nodes",
        runtime={"kind": "cluster", "address": address},
        explorer={"num": 2, "num_cpus": 1.0, "fragment_steps": 32, "restart_backoff_s": 0.5, "max_restarts": 100},
        sync={"style": "fully_async", "max_staleness": STALENESS, "transport": transport},
        sinks={},
        persistence={"root_data_dir": str(root), "checkpoint_save_freq_steps": 5000},
        loop={"axis": "env_steps", "time_s": time_s, "evaluate_every_steps": 100_000_000},
    )


def explorers_on(node: Any) -> int:
    """Return how many explorers run on a node."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    return sum("ExplorerActor" in child.cmdline()[0] for child in raylet.children() if child.cmdline())


def rate_over(life: Life, seconds: float) -> float:
    """Return the environment steps in a second, over some seconds."""
    before, began = life.made(), time.monotonic()
    time.sleep(seconds)
    return (life.made() - before) / (time.monotonic() - began)


def await_that(what: str, is_so: Any) -> float:
    """Return the seconds until something is so."""
    began = time.monotonic()
    while not is_so():
        if time.monotonic() - began > DEADLINE_S:
            raise TimeoutError(f"{what} never happened")
        time.sleep(0.1)
    return time.monotonic() - began


def soak(root: Path, *, seconds: float, transport: str) -> dict[str, Any]:
    """Run the soak and return its figures."""
    from trieye.cli.new import answers_of, bake

    project = bake(answers_of({"project_name": "My Agent"}), root)
    sys.path.insert(0, str(project))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = cluster.add_node(num_cpus=1)
    span = seconds / 4
    life = Life(project, root, cluster.address, seconds, transport, script=__file__)
    problems: list[str] = []
    figures: dict[str, Any] = {}
    try:
        life.await_progress(500)
        await_that(
            "an explorer on each node", lambda: (explorers_on(cluster.head_node), explorers_on(second)) == (1, 1)
        )
        figures["before"] = rate_over(life, span)
        cluster.remove_node(second, allow_graceful=False)
        figures["without"] = [round(rate_over(life, span / 5), 1) for _ in range(5)]  # Ray needs a while to notice
        second = cluster.add_node(num_cpus=1)
        figures["again_after_s"] = await_that("an explorer on the new node", lambda: explorers_on(second) == 1)
        figures["after"] = rate_over(life, span)
        code = life.process.wait(seconds + DEADLINE_S)
        if code:
            problems.append(f"the training ended with {code}: {(root / 'log').read_text(errors='replace')[-2000:]}")
    except (RuntimeError, TimeoutError, subprocess.TimeoutExpired) as error:
        problems.append(f"{error}: {(root / 'log').read_text(errors='replace')[-3000:]}")
    finally:
        life.process.kill()
        cluster.shutdown()
    if not problems:
        figures |= check(configure(root, "auto", seconds, transport), problems)
    rates = {name: round(value, 1) if isinstance(value, float) else value for name, value in figures.items()}
    return {
        "benchmark": "nodes",
        "seconds": seconds,
        "transport": transport,
        "env_steps_per_s": rates,
        "problems": problems[:10],
    }


def main() -> int:
    """Print one JSON line; the exit code says whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0, help="of the training")
    parser.add_argument("--transport", default="auto", choices=["auto", "collective", "checkpoint"], help="of weights")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        project, root, address, seconds, transport = json.loads(options.child)
        sys.path.insert(0, project)
        train_watched(configure(Path(root), address, seconds, transport), Path(root))
        return 0
    root = Path(tempfile.mkdtemp())
    try:
        found = soak(root, seconds=options.seconds, transport=options.transport)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(json.dumps({**found, "met": not found["problems"]}))
    return 0 if not found["problems"] else 1


if __name__ == "__main__":
    sys.exit(main())
