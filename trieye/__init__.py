"""trieye: an experiment framework for reinforcement learning.

Names are imported on first use (PEP 562), so `import trieye` loads neither Ray, torch nor MLflow.
"""

import sys
from importlib import import_module
from typing import Any

if sys.platform == "win32":
    raise ImportError("trieye needs Linux or macOS; on Windows use it in WSL 2")

_HOME = {
    "Act": "trieye.training.policy",
    "ActorLogic": "trieye.compat.actor_logic",
    "ActorState": "trieye.compat.actor_state",
    "AgentConfig": "trieye.config.agent",
    "AggregationMethod": "trieye.config",
    "BufferData": "trieye.compat.serializer",
    "CheckpointData": "trieye.compat.serializer",
    "CheckpointError": "trieye.exceptions",
    "ConfigurationError": "trieye.exceptions",
    "Context": "trieye.training.policy",
    "DEFAULT_METRICS": "trieye.config",
    "DataSource": "trieye.config",
    "EnvConfig": "trieye.config.env",
    "EnvState": "trieye.snapshot.environments",
    "Experiment": "trieye.experiment.experiment",
    "LoadedTrainingState": "trieye.compat.serializer",
    "LogContext": "trieye.compat.events",
    "LogTarget": "trieye.config",
    "MetricConfig": "trieye.config",
    "Minibatch": "trieye.training.batches",
    "PathManager": "trieye.compat.path_manager",
    "PersistenceConfig": "trieye.config",
    "Policy": "trieye.training.policy",
    "ProcessingError": "trieye.exceptions",
    "RawMetricEvent": "trieye.compat.events",
    "ReplayAgentConfig": "trieye.config.agent",
    "ReplayBuffer": "trieye.replay",
    "Run": "trieye.run.run",
    "RunClient": "trieye.run.recorder",
    "RunClosedError": "trieye.exceptions",
    "RunInterrupted": "trieye.exceptions",
    "RunLockedError": "trieye.exceptions",
    "SaveHandle": "trieye.run.saves",
    "Schedule": "trieye.config.schedule",
    "Scheduled": "trieye.config.schedule",
    "SerializationError": "trieye.exceptions",
    "Serializer": "trieye.compat.serializer",
    "Spaces": "trieye.training.spaces",
    "StatsConfig": "trieye.config",
    "StatsProcessor": "trieye.compat.stats_processor",
    "StrictModel": "trieye.config.base",
    "TrainEngine": "trieye.training.engine",
    "TrainingConfig": "trieye.training.config",
    "TrieyeActor": "trieye.compat.actor",
    "TrieyeConfig": "trieye.config",
    "TrieyeError": "trieye.exceptions",
    "UntrustedPickleError": "trieye.exceptions",
    "XAxis": "trieye.config",
    "as_trainable": "trieye.tune.trainable",
    "compose": "trieye.config.hydra.compose",
    "did_you_mean": "trieye.config.base",
    "evaluate": "trieye.training.launch",
    "gae": "trieye.training.gae",
    "ignore_stop_signals": "trieye.process.signals",
    "load_checkpoint": "trieye.checkpoints.store",
    "load_policy": "trieye.training.loading",
    "main": "trieye.run.application",
    "make_env": "trieye.training.loading",
    "mean": "trieye.training.engine",
    "register": "trieye.config.hydra.registration",
    "run_experiment": "trieye.tune.launch",
    "set_lr": "trieye.training.engine",
    "train": "trieye.training.launch",
}

__all__ = [*sorted(_HOME), "__version__"]  # noqa: PLE0604 - all are strings


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from trieye.version import VERSION

        return VERSION
    if name not in _HOME:
        raise AttributeError(f"module 'trieye' has no attribute {name!r}")
    try:
        value = getattr(import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        from trieye.config.packages import explaining

        with explaining(f"trieye.{name}"):
            raise error from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOME))
