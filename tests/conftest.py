"""Shared fixtures: configs in a temporary root, one Ray cluster, and a manual clock."""

import gc
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import trieye
from tests import warm
from trieye.process.signals import STOP_SIGNALS
from trieye.sinks.mlflow import store

# examples have no deadline: a busy machine is not an error
settings.register_profile("fast", deadline=None, max_examples=25)
settings.register_profile("soak", deadline=None, max_examples=1000)


def pytest_configure(config: pytest.Config) -> None:
    """Restore Ctrl-C, keep Ray small, share MLflow's tables, and select the profile of property tests.

    A background job of a shell ignores Ctrl-C, and so would every program that the tests start.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # otherwise Ray starts a worker per core and collects unused metrics: 1.5 s of CPU per cluster
    os.environ |= {"RAY_prestart_worker_first_driver": "0", "RAY_enable_metrics_collection": "0"}
    # argparse searches for translations of its texts: 3 ms of CPU per command
    os.environ.setdefault("LANGUAGE", "C")
    # idle threads of torch spin, and the test processes already use every core
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if warm.TABLES not in os.environ:  # the workers of xdist inherit it
        directory = tempfile.TemporaryDirectory(prefix="trieye-tests-")
        config.add_cleanup(directory.cleanup)
        os.environ[warm.TABLES] = f"{directory.name}/mlflow.db"
    store._make_tables = partial(warm.copy_tables, Path(os.environ[warm.TABLES]))
    if config.getoption("--hypothesis-profile") is None:
        settings.load_profile("fast")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect no garbage while the modules of the tests are imported, which takes 4 s of CPU in each worker."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Exempt the millions of imported objects from garbage collection; see `warm.freeze`."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        warm.keep_schema()
    warm.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest files first: files that need Ray, then files with the most slow tests.

    The worker processes then finish at about the same time.
    """
    num_slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: (not needs_ray(item.path), -num_slow[item.path]))


@cache
def needs_ray(file: Path) -> bool:
    """Return whether tests of a file need the Ray cluster."""
    text = file.read_text()
    return "ray_cluster" in text or "sweep_on" in text


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """End the Ray cluster after the last file that needs it: an idle cluster takes 2 % of a core."""
    ray = sys.modules.get("ray")
    if nextitem is not None and not needs_ray(nextitem.path) and ray is not None and ray.is_initialized():
        ray.shutdown()


@pytest.fixture(autouse=True)
def _no_log_handlers():
    """Remove the handlers that programs of a test have added to the root logger: pytest closes their streams."""
    yield
    root = logging.getLogger()
    for handler in [one for one in root.handlers if type(one) in (logging.StreamHandler, logging.FileHandler)]:
        root.removeHandler(handler)
        handler.close()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Assign the files that need Ray to two workers, since each worker starts a cluster: 7 s of CPU."""
    from xdist.scheduler import LoadFileScheduling

    class TwoClusters(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            if not needs_ray(config.rootpath / file):
                return file
            return "ray, of the hub" if file.startswith("tests/hub/") else "ray"

    return TwoClusters(config, log) if config.option.dist == "loadfile" else None


@pytest.fixture(autouse=True, scope="session")
def _own_environment(tmp_path_factory):
    """Keep the user's key and tracking server, and the state of this repository, out of the tests.

    Each of their 1500 runs would call git three times: 12 ms of CPU.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "config-home"))
        patch.setenv("GIT_DIR", os.devnull)
        for name in ("MLFLOW_TRACKING_URI", "TRIEYE_ALLOW_PICKLE", "TRIEYE_KEY", "TRIEYE_KEY_FILE", "TRIEYE_ROOT"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(autouse=True)
def _restored_signal_handlers():
    """Restore signal handlers: a failed loop or an open run keeps them until it is garbage-collected."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture(scope="module")
def warm_programs(request):
    """Make `subprocess` fork Python programs from a process that has imported their modules; see `warm`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", warm.POPEN[getattr(request.module, "WARM", warm.HEAVY)])
        yield


@pytest.fixture
def cold_programs(monkeypatch):
    """Start new interpreters in a module whose other programs are forks."""
    monkeypatch.setattr(subprocess, "Popen", warm.Popen.__base__)


@pytest.fixture(scope="module")
def git_repositories(_own_environment):
    """Let git find the repositories that tests create."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("GIT_DIR")
        yield


@pytest.fixture
def own_key_home(_own_environment, monkeypatch, tmp_path_factory):
    """Give the test a separate signing key, and return the directory that will contain it."""
    home = tmp_path_factory.mktemp("config")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    return home


@pytest.fixture
def make_config(tmp_path):
    """Return a function that creates a local config below a temporary root, by default without sinks."""

    def make(**settings: Any) -> trieye.TrieyeConfig:
        persistence = {
            "root_data_dir": str(tmp_path / "root"),
            "auto_resume_latest": False,
            **settings.pop("persistence", {}),
        }
        if settings.get("sinks"):
            off = {name: {"enabled": False} for name in ("mlflow", "tensorboard", "console")}
            settings["sinks"] = off | settings["sinks"]
        defaults: dict[str, Any] = {"app_name": "app", "run_name": "run", "runtime": {"kind": "local"}, "sinks": {}}
        return trieye.TrieyeConfig(**{**defaults, **settings, "persistence": persistence})

    return make


@pytest.fixture(scope="session")
def ray_cluster():
    """Start one Ray cluster for all tests that need it; Ray sets the number of threads of its workers."""
    import ray

    from trieye.config import RuntimeConfig
    from trieye.hub.ray_start import join_ray

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OMP_NUM_THREADS", raising=False)
        # the log monitor polls ten times a second, and no test needs the lines that it forwards
        patch.setattr(ray._private.node.Node, "start_log_monitor", lambda _: None)
        join_ray(RuntimeConfig(kind="ray", num_cpus=2, namespace="trieye"), log_to_driver=False)
    yield
    ray.shutdown()


class Clock:
    """A manual clock."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()
