"""trieye: the experiment framework for reinforcement learning.

Names are loaded on first use (PEP 562): `import trieye` loads neither ray, torch nor mlflow.
"""

import sys
from importlib import import_module
from typing import Any

if sys.platform == "win32":
    raise ImportError("trieye needs Linux or macOS; on Windows use it in WSL 2")

_HOME = {
    "ActorLogic": "trieye.hub.logic",
    "ActorState": "trieye.hub.fold",
    "AggregationMethod": "trieye.config",
    "BufferData": "trieye.checkpoints.serializer",
    "CheckpointData": "trieye.checkpoints.serializer",
    "CheckpointError": "trieye.exceptions",
    "ConfigurationError": "trieye.exceptions",
    "DEFAULT_METRICS": "trieye.config",
    "DataSource": "trieye.config",
    "EnvState": "trieye.snapshot.environments",
    "Experiment": "trieye.experiment.experiment",
    "LoadedTrainingState": "trieye.checkpoints.serializer",
    "LogContext": "trieye.hub.processor",
    "LogTarget": "trieye.config",
    "MetricConfig": "trieye.config",
    "PathManager": "trieye.checkpoints.path_manager",
    "PersistenceConfig": "trieye.config",
    "ProcessingError": "trieye.exceptions",
    "RawMetricEvent": "trieye.hub.processor",
    "ReplayBuffer": "trieye.replay",
    "Run": "trieye.run.run",
    "RunClient": "trieye.run.recorder",
    "RunClosedError": "trieye.exceptions",
    "RunInterrupted": "trieye.exceptions",
    "RunLockedError": "trieye.exceptions",
    "SaveHandle": "trieye.run.saves",
    "SerializationError": "trieye.exceptions",
    "Serializer": "trieye.checkpoints.serializer",
    "StatsConfig": "trieye.config",
    "StrictModel": "trieye.config.base",
    "StatsProcessor": "trieye.hub.processor",
    "TrieyeActor": "trieye.hub.actor",
    "TrieyeConfig": "trieye.config",
    "TrieyeError": "trieye.exceptions",
    "UntrustedPickleError": "trieye.exceptions",
    "XAxis": "trieye.config",
    "compose": "trieye.config.hydra.compose",
    "did_you_mean": "trieye.config.base",
    "load_checkpoint": "trieye.checkpoints.store",
    "main": "trieye.run.application",
    "register": "trieye.config.hydra.registration",
    "run_experiment": "trieye.experiment.experiment",
}

__all__ = [*sorted(_HOME), "__version__"]  # noqa: PLE0604 - all are strings


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("trieye")
    if name not in _HOME:
        raise AttributeError(f"module 'trieye' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOME))
