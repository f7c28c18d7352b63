"""Hydra plugins: trieye's launcher and sweeper; every Hydra program imports them, so heavy modules load on use."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from omegaconf import OmegaConf

T = TypeVar("T")


def _refusing(call: Callable[..., T], /, *arguments: Any, **options: Any) -> T:
    """Call a method of a plugin; a configuration error ends the program with its message."""
    from trieye.config.hydra.registration import refusing

    with refusing():
        return call(*arguments, **options)


class TrieyeLauncher(Launcher):
    """Runs the jobs of a sweep in parallel."""

    def __init__(self, **options: Any) -> None:
        from trieye.sweeps.launcher import LauncherBody

        self.body = _refusing(LauncherBody, **options)

    def setup(self, **options: Any) -> None:
        """Receive the program and its config from Hydra."""
        self.body.setup(**options)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run jobs; return the outcome of each job."""
        return _refusing(self.body.launch, job_overrides, initial_job_idx)


class TrieyeSweeper(Sweeper):
    """Runs a grid or a search."""

    def __init__(self, **options: Any) -> None:
        from trieye.sweeps.sweeper import SweeperBody

        self.body = _refusing(SweeperBody, **options)

    def setup(self, **options: Any) -> None:
        """Receive the program and its config from Hydra."""
        _refusing(self.body.setup, **options)

    def sweep(self, arguments: Sequence[str]) -> Any:
        """Run all jobs; return the outcome of each job."""
        return _refusing(self.body.sweep, arguments)


# copies of the defaults in `trieye.config.launcher` and `trieye.config.sweeper`, whose import would slow all programs
LAUNCHER: dict[str, Any] = {
    "backend": None, "num_jobs": None, "num_cpus": 1.0, "num_gpus": 0.0, "memory": None, "resources": {}, "retries": 3,
    "timeout_min": None, "fail_fast": False, "isolate": "process", "address": None, "is_part": False, "only": None,
    "working_dir": "auto", "runtime_env": {}, "detach": False,
    "slurm": {
        "hours": None, "jobs_per_task": 1, "max_concurrent": 1, "signal_s": 120, "account": None, "partition": None,
        "options": {},
    },
}  # fmt: skip
SWEEPER: dict[str, Any] = {
    "kind": "grid", "params": None, "seeds": None, "zip": [], "exclude": [], "when": None,
    "budget": ["loop.steps", "loop.env_steps", "loop.time_s"], "dry_run": False, "num_trials": 20,
    "seed": 0, "mode": None, "objective": "return", "sampler": "tpe", "pruner": "none",
    "grace_steps": 0,
}  # fmt: skip

_MODULE = "hydra_plugins.trieye.sweeps"
_store = ConfigStore.instance().store
# the store of a worker process may arrive from the driver with these configs in it; Hydra 1.3 replaces them anyway
_replace: dict[str, Any] = {"replace": True} if "replace" in _store.__annotations__ else {}
for _name, _group, _options in (
    ("trieye", "hydra/launcher", {"_target_": f"{_MODULE}.TrieyeLauncher", **LAUNCHER}),
    ("trieye_ray", "hydra/launcher", {"_target_": f"{_MODULE}.TrieyeLauncher", **LAUNCHER}),  # in earlier projects
    ("trieye", "hydra/sweeper", {"_target_": f"{_MODULE}.TrieyeSweeper", **SWEEPER}),
):  # unknown keys reach the plugins, whose messages suggest the key to type
    _store(_name, OmegaConf.create(_options, flags={"struct": False}), _group, provider="trieye", **_replace)
