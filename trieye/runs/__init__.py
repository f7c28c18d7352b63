"""Stored runs as a Python API: find, verify, remove, prune, close, rebuild, fork, rerun and diff.

A run is given as a `StoredRun`, as its directory, or as its name: `run` or `app/run`. Importing this package loads
nothing heavy. Runs of other programs are imported by `trieye.integrations.importing`; policies are exported by
`trieye.training.run_export`.
"""

from importlib import import_module
from typing import Any

from trieye.renames import no_attribute

_MODULES = {
    "attempt_rows": ("AttemptRow", "attempts"),
    "checkpoint_rows": ("CheckpointRow", "checkpoints"),
    "comparing": ("RunDiff", "diff"),
    "delivery": ("DeliveryResult", "close", "rebuild", "restore_attempt"),
    "diagnosis": ("Diagnosis", "diagnose"),
    "finding": ("find", "get", "ordered", "run_directory", "select"),
    "metric_points": ("MetricPoints", "points"),
    "removal": ("PruneResult", "Removal", "claim", "prune", "remove"),
    "restarting": ("RestartPlan", "fork", "plan_fork", "plan_rerun", "rerun"),
    "stored_run": ("StoredRun",),
    "verification": ("RunCheck", "verify"),
}
_HOME = {name: f"trieye.runs.{module}" for module, names in _MODULES.items() for name in names}
__all__ = sorted(_HOME)  # noqa: PLE0605 - a list of strings


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise no_attribute(__name__, name)
    return getattr(import_module(_HOME[name]), name)
