"""Train on two nodes of a Ray cluster, and replace a killed node.

The DQN of the project template learns CartPole from two explorers, one on each node, fully asynchronously. Without the
killed node, training must continue with the other explorer; its own explorer must restart on the new node. At the end,
the history must have every step exactly once, strictly increasing versions, and counts whose sums equal the counters of
the training.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # stubs would be one more package
from explorer_kills import AGENTS, DEADLINE_S, STALENESS, TrainingProcess, check, train_watched
from ray.cluster_utils import Cluster


def configure(root: Path, address: str, time_s: float, transport: str = "auto") -> Any:
    """Return the config of the run."""
    from my_agent.config import TrainConfig  # type: ignore[import-not-found]  # the generated project

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
    """Return the number of explorers on a node."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    return sum("ExplorerActor" in child.cmdline()[0] for child in raylet.children() if child.cmdline())


def rate_over(training: TrainingProcess, seconds: float) -> float:
    """Return environment steps per second, measured for `seconds`."""
    before, began = training.num_env_steps(), time.monotonic()
    time.sleep(seconds)
    return (training.num_env_steps() - before) / (time.monotonic() - began)


def await_condition(description: str, is_met: Callable[[], bool]) -> float:
    """Wait for a condition, and return the seconds that took."""
    began = time.monotonic()
    while not is_met():
        if time.monotonic() - began > DEADLINE_S:
            raise TimeoutError(f"timed out waiting for {description}")
        time.sleep(0.1)
    return time.monotonic() - began


def soak(root: Path, *, seconds: float, transport: str) -> dict[str, Any]:
    """Run the soak and return its figures."""
    from trieye.cli.new import answers_of, bake

    project = bake(answers_of({"project_name": "My Agent"}), root)
    sys.path.insert(0, str(project))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = cluster.add_node(num_cpus=1)
    interval_s = seconds / 4
    training = TrainingProcess(project, root, cluster.address, seconds, transport, script=__file__)
    problems: list[str] = []
    figures: dict[str, Any] = {}
    try:
        training.await_progress(500)
        await_condition(
            "an explorer on each node", lambda: (explorers_on(cluster.head_node), explorers_on(second)) == (1, 1)
        )
        figures["before"] = rate_over(training, interval_s)
        cluster.remove_node(second, allow_graceful=False)
        figures["without"] = [
            round(rate_over(training, interval_s / 5), 1) for _ in range(5)
        ]  # Ray needs a while to notice
        second = cluster.add_node(num_cpus=1)
        figures["again_after_s"] = await_condition("an explorer on the new node", lambda: explorers_on(second) == 1)
        figures["after"] = rate_over(training, interval_s)
        code = training.process.wait(seconds + DEADLINE_S)
        if code:
            problems.append(f"the training exited with {code}: {(root / 'log').read_text(errors='replace')[-2000:]}")
    except (RuntimeError, TimeoutError, subprocess.TimeoutExpired) as error:
        problems.append(f"{error}: {(root / 'log').read_text(errors='replace')[-3000:]}")
    finally:
        training.process.kill()
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
    """Print one JSON line; exit with 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0, help="duration of the training")
    parser.add_argument(
        "--transport", default="auto", choices=["auto", "collective", "checkpoint"], help="transport of weights"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        project, root, address, seconds, transport = json.loads(options.child)
        sys.path.insert(0, project)
        train_watched(configure(Path(root), address, seconds, transport), Path(root))
        return 0
    root = Path(tempfile.mkdtemp())
    try:
        figures = soak(root, seconds=options.seconds, transport=options.transport)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(json.dumps({**figures, "met": not figures["problems"]}))
    return 0 if not figures["problems"] else 1


if __name__ == "__main__":
    sys.exit(main())
