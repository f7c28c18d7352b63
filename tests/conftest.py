"""What several parts of the tests share: configs in a temporary root, one Ray cluster, a clock that is set by hand."""

import logging
import os
import signal
import subprocess
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

# no deadline for an example: a machine that does other things too is no error
settings.register_profile("fast", deadline=None, max_examples=40)
settings.register_profile("soak", deadline=None, max_examples=1000)


def pytest_configure(config: pytest.Config) -> None:
    """Make Ctrl-C work, which a shell's job in the background ignores, and so would all that the tests start.

    And let a Ray start only what is asked for, and stores of MLflow be copies of one.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # each Ray that starts would start a worker for each core, and count what nobody looks at: 1.5 s of a core
    os.environ |= {"RAY_prestart_worker_first_driver": "0", "RAY_enable_metrics_collection": "0"}
    # idle threads of torch spin: a process for each core computes already
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if warm.TABLES not in os.environ:  # in a process of xdist it is
        directory = tempfile.TemporaryDirectory(prefix="trieye-tests-")
        config.add_cleanup(directory.cleanup)
        os.environ[warm.TABLES] = f"{directory.name}/mlflow.db"
    store._make_tables = partial(warm.copy_tables, Path(os.environ[warm.TABLES]))
    if config.getoption("--hypothesis-profile") is None:
        settings.load_profile("fast")


def pytest_collection_finish() -> None:
    """Spare the garbage collector all that the test modules import, millions of objects; see `warm.freeze`."""
    if os.environ.get("PYTEST_XDIST_WORKER"):
        warm.keep_schema()
    warm.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first: what needs Ray, in one process, and files with many slow tests.

    Processes that share the files then end at about the same time.
    """
    num_slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    with_ray = {item.path for item in items if "ray_cluster" in item.fixturenames}
    items.sort(key=lambda item: (item.path not in with_ray, -num_slow[item.path]))


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
    """Give the files that need Ray to two processes: each that has one of them starts a cluster, 7 s of a core."""
    from xdist.scheduler import LoadFileScheduling

    @cache
    def needs_ray(file):
        text = (config.rootpath / file).read_text()
        return "ray_cluster" in text or "sweep_on" in text

    class TwoClusters(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            if not needs_ray(file):
                return file
            return "ray, of the hub" if file.startswith("tests/hub/") else "ray"

    return TwoClusters(config, log) if config.option.dist == "loadfile" else None


@pytest.fixture(autouse=True, scope="session")
def _own_environment(tmp_path_factory):
    """Keep the user's key and tracking server out of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "config-home"))
        for name in ("MLFLOW_TRACKING_URI", "TRIEYE_ALLOW_PICKLE", "TRIEYE_KEY", "TRIEYE_KEY_FILE"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(autouse=True)
def _signals_are_given_back():
    """Give signals back: a loop that an error ended, or a run that is open, has them as long as it is remembered."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture(scope="module")
def warm_programs(request):
    """Let programs that `subprocess` starts be forks of a process that has imported their modules; see `warm`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", warm.POPEN[getattr(request.module, "WARM", warm.HEAVY)])
        yield


@pytest.fixture
def cold_programs(monkeypatch):
    """Let programs be interpreters that start, in a module of which others are forks."""
    monkeypatch.setattr(subprocess, "Popen", warm.Popen.__base__)


@pytest.fixture
def own_key_home(_own_environment, monkeypatch, tmp_path_factory):
    """Let the test have a key of its own, and return the directory below which it is made."""
    home = tmp_path_factory.mktemp("config")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    return home


@pytest.fixture
def make_config(tmp_path):
    """Return a function that makes a config below a temporary root, in this process, without MLflow unless asked."""

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
    """Start one Ray for all tests that need it; it sets the number of threads of its workers."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OMP_NUM_THREADS", raising=False)
        patch.setattr(
            ray._private.node.Node, "start_log_monitor", lambda _: None
        )  # the one test that needs it starts it
        ray.init(address="local", num_cpus=2, include_dashboard=False, namespace="trieye", log_to_driver=False)
    yield
    ray.shutdown()


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()
