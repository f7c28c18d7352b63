import subprocess
import sys

import pytest

from trieye.config.sinks import SinksConfig
from trieye.sinks import FanOut, make_sinks
from trieye.stats.point import Point
from trieye.testing import make_run


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return a function that installs a package with sinks, as far as entry points are concerned."""

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


def test_the_enabled_sinks_are_made():
    assert names(SinksConfig.all_enabled()) == ["mlflow", "tensorboard", "console"]
    assert names(SinksConfig()) == []
    assert names(SinksConfig(console={"enabled": True})) == ["console"]


def test_settings_reach_the_sinks():
    (sink,) = make_sinks(SinksConfig(tensorboard={"enabled": True, "flush_interval_s": 7.5}))
    assert sink.flush_interval_s == 7.5


def test_a_sink_of_another_package_gets_every_point(installed, tmp_path):
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
    run = make_run(tmp_path)
    fan_out = FanOut(make_sinks(SinksConfig()), run)
    fan_out.write([Point("a", 1.0, 1, 1.7e9, ()), Point("b", 1.0, 2, 1.7e9, ("mlflow",))])
    assert fan_out.close("FINISHED", 20)
    assert (run.run_dir / "mine.txt").read_text() == "a 1\nb 2\nFINISHED"


def test_a_broken_package_is_left_out_with_a_warning(installed, caplog):
    installed(
        """
class Good:
    name = "good"
class Raises:
    def __init__(self):
        raise RuntimeError("not today")
class Taken:
    name = "mlflow"
class Nameless:
    pass
""",
        "a = their_sinks:Raises",
        "b = their_sinks:Missing",
        "c = no_such_module:Sink",
        "d = their_sinks:Taken",
        "e = their_sinks:Nameless",
        "f = their_sinks:Good",
    )
    assert names(SinksConfig()) == ["good"]
    assert caplog.text.count("is left out") == 5
    assert "not today" in caplog.text


def test_making_sinks_imports_no_heavy_library():
    program = (
        "import sys; from trieye.config import SinksConfig; from trieye.sinks import make_sinks; "
        "make_sinks(SinksConfig.all_enabled()); "
        "print({'mlflow', 'torch', 'ray', 'tensorboard', 'hydra'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"
