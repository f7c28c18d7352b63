import subprocess
import sys
from importlib.machinery import ModuleSpec

import pytest

from trieye.config.sinks import OUR_NAMES, SinksConfig
from trieye.exceptions import ConfigurationError
from trieye.sinks.fan_out import FanOut, make_sinks
from trieye.stats.point import Point
from trieye.testing import MemoryHistory, make_run_info


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return a function that makes a package with sinks importable, with its entry points."""

    def install(source, *entries):
        site = tmp_path / "site"
        info = site / "their_sinks-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-sinks\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[trieye.sinks]\n" + "\n".join(entries) + "\n")
        (site / "their_sinks.py").write_text(source)
        monkeypatch.syspath_prepend(site)
        monkeypatch.delitem(sys.modules, "their_sinks", raising=False)

    return install


def names(config):
    return [sink.name for sink in make_sinks(config)]


def test_only_enabled_sinks_are_created():
    assert names(SinksConfig.all_enabled()) == ["mlflow", "tensorboard", "console"]
    assert names(SinksConfig()) == []
    for name in OUR_NAMES:
        assert names(SinksConfig(**{name: {"enabled": True}})) == [name]


def test_sinks_receive_their_settings():
    (sink,) = make_sinks(SinksConfig(tensorboard={"enabled": True, "flush_interval_s": 7.5}))
    assert sink.flush_interval_s == 7.5
    for settings, interval_s in (({}, None), ({"system_metrics": True}, 10.0)):
        (sink,) = make_sinks(SinksConfig(mlflow={"enabled": True, **settings}))
        assert sink._system_metrics_interval_s == interval_s


class OnlyADirectory:
    """A finder for which `wandb` is a directory without a package, such as wandb's output directory."""

    def find_spec(self, name, path=None, target=None):
        return ModuleSpec("wandb", None, is_package=True) if name == "wandb" else None


@pytest.mark.parametrize("finders", [[], [OnlyADirectory()]], ids=["nothing", "a directory"])
def test_a_library_that_is_not_installed_is_a_config_error(monkeypatch, finders):
    if finders:
        monkeypatch.delitem(sys.modules, "wandb", raising=False)
        monkeypatch.setattr(sys, "meta_path", [*finders, *sys.meta_path])
    else:
        monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigurationError, match=r"sinks\.wandb\.enabled=true .* pip install .trieye\[wandb\]"):
        make_sinks(SinksConfig(wandb={"enabled": True}))
    assert names(SinksConfig()) == []


def test_a_sink_of_another_package_receives_all_points(installed, tmp_path):
    installed(
        """
class Mine:
    name = "mine"
    def open(self, run):
        self.path = run.run_dir / "mine.txt"
        self.path.parent.mkdir(parents=True, exist_ok=True)
    def write(self, points):
        with self.path.open("a") as file:
            file.writelines(f"{point.metric} {point.step}\\n" for point in points)
    def close(self, status):
        with self.path.open("a") as file:
            file.write(status)
""",
        "mine = their_sinks:Mine",
    )
    run = make_run_info(tmp_path)
    history = MemoryHistory([Point("a", 1.0, 1, 1.7e9, ()), Point("b", 1.0, 2, 1.7e9, ("mlflow",))])
    fan_out = FanOut(make_sinks(SinksConfig()), run, history)
    assert fan_out.close("FINISHED", 20)
    assert (run.run_dir / "mine.txt").read_text() == "a 1\nb 2\nFINISHED"


def test_broken_entry_points_are_skipped_with_a_warning(installed, caplog):
    installed(
        """
class Good:
    name, open, write, close = "good", print, print, print
class Raises:
    def __init__(self):
        raise RuntimeError("not today")
class Taken:
    name = "mlflow"
class Nameless:
    pass
class Irregular(Good):
    name, flush_interval_s, flush = "irregular", None, print
class Unwritable(Good):
    name, write = "unwritable", None
def returns_a_class():
    return Good
""",
        "a = their_sinks:Raises",
        "b = their_sinks:Missing",
        "c = no_such_module:Sink",
        "d = their_sinks:Taken",
        "e = their_sinks:Nameless",
        "g = their_sinks:Irregular",
        "h = their_sinks:Unwritable",
        "i = their_sinks:returns_a_class",
        "f = their_sinks:Good",
    )
    assert names(SinksConfig()) == ["good"]
    assert caplog.text.count("skipping sink") == 8
    for text in ("not today", "it has no write;", "it is a class; pass Good()"):
        assert text in caplog.text


def test_plugins_are_excluded_by_entry_name_or_sink_name(installed, caplog):
    installed(
        "class Mine:\n name, open, write, close = 'mine', print, print, print\nclass Other(Mine):\n name = 'other'\n",
        "mine = their_sinks:Mine",
        "entry = their_sinks:Other",
        "broken = no_such_module:Sink",
    )
    assert names(SinksConfig(exclude_plugins=["broken"])) == ["mine", "other"]
    assert names(SinksConfig(exclude_plugins=["mine", "other", "broken", "not installed here"])) == []
    assert names(SinksConfig(exclude_plugins=["mine", "entry", "broken"], console={"enabled": True})) == ["console"]
    assert caplog.text == ""
    assert names(SinksConfig(exclude_plugins=["mien", "other"])) == ["mine"]
    assert "exclude_plugins: no installed package has a sink 'mien'; did you mean 'mine'?" in caplog.text
    with pytest.raises(ValueError, match=r"mlflow is a sink of trieye; type sinks\.mlflow\.enabled=false"):
        SinksConfig(exclude_plugins=["mlflow"])


@pytest.mark.long
def test_creating_sinks_imports_neither_disabled_sinks_nor_heavy_libraries():
    program = """
import sys
from trieye.config import SinksConfig
from trieye.sinks.fan_out import make_sinks
make_sinks(SinksConfig(tensorboard={"enabled": True}))
assert "trieye.sinks.tensorboard" in sys.modules
assert not {f"trieye.sinks.{name}" for name in ("mlflow", "wandb", "console")} & set(sys.modules)
make_sinks(SinksConfig.all_enabled())
make_sinks(SinksConfig(wandb={"enabled": True}))
assert not {"mlflow", "torch", "ray", "tensorboard", "hydra", "wandb"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)
