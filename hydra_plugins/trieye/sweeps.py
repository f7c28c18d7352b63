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


_MODULE = "hydra_plugins.trieye.sweeps"
_store = ConfigStore.instance().store
# the store of a worker process may arrive from the driver with these configs in it; Hydra 1.3 replaces them anyway
_replace: dict[str, Any] = {"replace": True} if "replace" in _store.__annotations__ else {}
for _name, _group, _class in (
    ("trieye", "hydra/launcher", TrieyeLauncher),
    ("trieye_ray", "hydra/launcher", TrieyeLauncher),  # refused with its new name
    ("trieye", "hydra/sweeper", TrieyeSweeper),
):  # the models of the plugins have the keys and defaults, and their messages suggest the key to type
    _options = OmegaConf.create({"_target_": f"{_MODULE}.{_class.__name__}"}, flags={"struct": False})
    _store(_name, _options, _group, provider="trieye", **_replace)
