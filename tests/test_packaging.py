import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Return the wheel that a clone of the committed and uncommitted files gives."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name, follow_symlinks=False)
    quietly = ["-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([sys.executable, *quietly, "-w", str(target), str(source)], check=True)
    (made,) = target.glob("*.whl")
    return zipfile.ZipFile(made)


def test_a_project_that_a_wheel_made_depends_on_that_wheel(wheel, tmp_path):
    quietly = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*quietly, "--target", str(tmp_path / "site"), wheel.filename], check=True)
    paths = {"PYTHONPATH": str(tmp_path / "site"), "PYTHONSAFEPATH": "1"}
    made = [sys.executable, "-c", "import sys; from trieye.cli import main; sys.exit(main())", "new", "my_agent"]
    done = subprocess.run(
        [*made, "--no-input"], cwd=tmp_path, env={**os.environ, **paths}, capture_output=True, text=True, check=True
    )
    line = f'"trieye[rl] @ {Path(wheel.filename).as_uri()}"'
    assert line in (tmp_path / "my_agent" / "pyproject.toml").read_text()
    assert line in done.stdout


def test_the_wheel_holds_every_config_and_every_file_of_the_template(wheel):
    names = set(wheel.namelist())
    for folder in ("conf", "template"):
        files = [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        assert len(files) > 20
        for path in files:
            assert f"trieye/{path.relative_to(ROOT)}" in names


def test_the_wheel_holds_the_template_of_reports(wheel):
    name = "trieye/results/report.html.jinja"
    assert wheel.read(name) == (ROOT / name).read_bytes()


def test_the_wheel_is_typed_and_installs_nothing_beside_trieye_and_its_plugin(wheel):
    names = [name for name in wheel.namelist() if ".dist-info/" not in name]
    assert "trieye/py.typed" in names
    assert {name for name in names if not name.startswith("trieye/")} == {
        "hydra_plugins/trieye/__init__.py",
        "hydra_plugins/trieye/sweeps.py",
    }
    assert not any("__pycache__" in name for name in names)


def test_hydra_finds_the_configs_of_what_the_wheel_installs(wheel, tmp_path):
    wheel.extractall(tmp_path / "site")
    program = "import hydra_plugins.trieye as plugin, trieye; print(plugin.__file__, trieye.compose().app_name)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == [str(tmp_path / "site/hydra_plugins/trieye/__init__.py"), "default_app"], done.stderr
