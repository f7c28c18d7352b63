"""The loop of every script for trieye 0.1.5: start its actor and print one JSON line per round."""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray

import trieye
from trieye import MetricConfig, PersistenceConfig, StatsConfig, TrieyeActor, TrieyeConfig


def imported_trieye() -> str:
    """Return the file that `import trieye` loads."""
    return trieye.__file__


def start_actor(root: str) -> Any:
    """Return a responsive actor that logs to MLflow and TensorBoard, the default sinks."""
    config = TrieyeConfig(
        persistence=PersistenceConfig.model_validate({"ROOT_DATA_DIR": root}),
        stats=StatsConfig(metrics=[MetricConfig(name="loss", aggregation="mean", log_frequency_steps=1000)]),
    )
    actor_class: Any = TrieyeActor  # a Ray actor class, whose `remote` has no type
    actor = actor_class.remote(config=config)
    assert ray.get(actor.get_mlflow_run_id.remote()) is not None
    return actor


def answer_rounds(measure: Callable[[Any], dict[str, float]]) -> None:
    """For each line of stdin, start an actor, call `measure` with it, and print the returned figures."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    module = Path(ray.get(ray.remote(num_cpus=0)(imported_trieye).remote()))
    assert module.is_relative_to(sys.prefix), f"Ray workers import {module} instead of trieye 0.1.5"
    for _ in sys.stdin:
        with tempfile.TemporaryDirectory() as root:
            actor = start_actor(root)
            figures = measure(actor)
            ray.get(actor.shutdown.remote())
            ray.kill(actor)
        print(json.dumps(figures), flush=True)
    ray.shutdown()
