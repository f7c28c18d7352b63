"""What the scripts that run in the peer's environment have in common: its actor, and a line of JSON for every round."""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray

import trieye
from trieye import MetricConfig, PersistenceConfig, StatsConfig, TrieyeActor, TrieyeConfig


@ray.remote(num_cpus=0)
def home_in_a_worker() -> str:
    """Return where Ray's processes find trieye."""
    return trieye.__file__


def start_actor(root: str) -> Any:
    """Return an actor that answers and logs to MLflow and TensorBoard, as it does by default."""
    config = TrieyeConfig(
        persistence=PersistenceConfig(ROOT_DATA_DIR=root),
        stats=StatsConfig(metrics=[MetricConfig(name="loss", aggregation="mean", log_frequency_steps=1000)]),
    )
    actor = TrieyeActor.remote(config=config)
    assert ray.get(actor.get_mlflow_run_id.remote()) is not None
    return actor


def answer_rounds(measure: Callable[[Any], dict[str, float]]) -> None:
    """Start an actor and print what `measure` finds out about it, once for each line of the input."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    home = Path(ray.get(home_in_a_worker.remote()))
    assert home.is_relative_to(sys.prefix), f"measuring {home} instead of the peer"
    for _ in sys.stdin:
        with tempfile.TemporaryDirectory() as root:
            actor = start_actor(root)
            figures = measure(actor)
            ray.get(actor.shutdown.remote())
            ray.kill(actor)
        print(json.dumps(figures), flush=True)
    ray.shutdown()
