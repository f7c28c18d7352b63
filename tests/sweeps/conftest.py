"""Jobs of a sweep without a program: a task, a launcher and overrides."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hydra import initialize_config_dir
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn
from hydra.types import HydraContext, RunMode
from hydra.version import VersionBase

from trieye.config.hydra import registration
from trieye.config.hydra.loader import VERSION_BASE
from trieye.sweeps import fork_client, launcher
from trieye.sweeps.jobs import JobRecord

_composed_configs: dict[tuple[str, ...], Any] = {}
"""Configs by their text and choices of groups: a composition takes 0.1 s, a copy 0.02 s."""


class Sweep:
    """A sweep in a directory, which can be started again and again."""

    def __init__(self, directory: Path, backend: str | None = None) -> None:
        self.directory, self.backend = directory, backend
        self.values = "what: nothing\ncpus: 1\n"

    def launch(self, task: Any, jobs: Sequence[str], *options: str) -> list[JobReturn]:
        """Run jobs with one override each, and return their outcomes."""
        with self._composed("hydra.launcher.isolate=worker", *options) as (config, context):
            plugin = Plugins.instance().instantiate_launcher(hydra_context=context, task_function=task, config=config)
            return list(plugin.launch([[job] for job in jobs], initial_job_idx=0))

    def search(self, task: Any, *words: str) -> list[tuple[str, ...]]:
        """Run a search or a grid in this process, one job at a time, and return the overrides of each job."""
        options = [word for word in words if word.lstrip("+").startswith(("hydra.", "hydra/"))]
        is_ours = "hydra/launcher=basic" not in options
        own = ["hydra/sweeper=trieye", *(["hydra.launcher.isolate=none"] if is_ours else [])]
        with self._composed(*own, *options) as (config, context):
            sweeper = Plugins.instance().instantiate_sweeper(hydra_context=context, task_function=task, config=config)
            done = sweeper.sweep([word for word in words if word not in options])
        return [tuple(self.record(job.index).overrides) for job in done]

    @contextmanager
    def _composed(self, *options: str) -> Iterator[tuple[Any, HydraContext]]:
        conf = self.directory.with_name("conf")
        conf.mkdir(exist_ok=True)
        (conf / "config.yaml").write_text(self.values)
        plugin = [] if any(word.startswith("hydra/launcher=") for word in options) else ["hydra/launcher=trieye"]
        own = [f"hydra.launcher.backend={self.backend}"] if self.backend is not None else []
        words = [*plugin, f"hydra.sweep.dir={self.directory}", *own, *options]
        groups = [word for word in words if "/" in word.partition("=")[0]]
        with initialize_config_dir(str(conf), **VERSION_BASE):
            hydra = GlobalHydra.instance().hydra
            key = (self.values, *groups)
            if key not in _composed_configs:
                _composed_configs[key] = hydra.compose_config(
                    "config", groups, run_mode=RunMode.MULTIRUN, with_log_configuration=False
                )
            config = deepcopy(_composed_configs[key])
            config.hydra.runtime.cwd = str(Path.cwd())
            config.hydra.overrides.hydra = words
            overrides = OverridesParser.create().parse_overrides([word for word in words if word not in groups])
            hydra.config_loader._apply_overrides_to_config(overrides, config)
            with pytest.MonkeyPatch.context() as patch:
                # the config of a job without overrides equals that of the sweep, and composing it takes 0.1 s
                patch.setattr(launcher, "shared_base", lambda _, config: deepcopy(config))
                yield config, HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks())

    def record(self, index: int) -> JobRecord:
        """Return the record of a job."""
        record = JobRecord.read(self.directory / str(index))
        assert record is not None
        return record

    def states(self, num: int) -> list[str | None]:
        """Return the state of each job; None if it never began."""
        records = [JobRecord.read(self.directory / str(index)) for index in range(num)]
        return [record and record.state for record in records]


@pytest.fixture(scope="session", autouse=True)
def _plugins():
    """Import the plugins of Hydra before a test saves its state: Hydra 1.4 imports them once in a process."""
    Plugins.instance()


@pytest.fixture(scope="session", autouse=True)
def _small_fork_servers():
    """Let fork servers import only their own modules; they would import the libraries of all earlier tests as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fork_client, "_installed_modules", list)
        yield


@pytest.fixture(autouse=True)
def _no_registered_config(monkeypatch):
    """Ignore the config that an earlier test of this process registered: errors would end the program."""
    monkeypatch.setattr(registration, "current", None)


@pytest.fixture
def as_in_a_fresh_process(hydra_restore_singletons):
    """Forget which version Hydra is to behave like, as other tests of this process have said."""
    state = Singleton.get_state()
    state["instances"].pop(VersionBase, None)
    Singleton.set_state(state)


@pytest.fixture
def sweep(tmp_path, hydra_restore_singletons):
    return Sweep(tmp_path / "sweep")


@pytest.fixture(params=["ray", "local"])
def sweep_on(request, tmp_path, hydra_restore_singletons):
    """Return a sweep on each backend."""
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    return Sweep(tmp_path / "sweep", request.param)
