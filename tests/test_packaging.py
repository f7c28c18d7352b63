import email
import os
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from trieye.cli import repacking
from trieye.config import packages

pytestmark = pytest.mark.usefixtures("git_repositories")

ROOT = Path(__file__).parents[1]


DISTRIBUTIONS = runpy.run_path(str(ROOT / ".ci/distributions.py"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Return the wheel built from an sdist of the committed and uncommitted files."""
    return built("trieye", tmp_path_factory)


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """Return the wheel of `trieye-core`."""
    return built("trieye-core", tmp_path_factory)


def built(name, tmp_path_factory):
    archives = DISTRIBUTIONS["build"](name, tmp_path_factory.mktemp("dist"), isolated=False)
    return zipfile.ZipFile(next(path for path in archives if path.suffix == ".whl"))


def requirements(wheel):
    """Return the names of the packages that a wheel requires without extras, and all of its extras."""
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(wheel.read(name))
    required = [Requirement(text) for text in metadata.get_all("Requires-Dist")]
    return {one.name for one in required if one.marker is None}, set(metadata.get_all("Provides-Extra"))


@pytest.mark.long
def test_both_distributions_have_the_same_modules_and_core_requires_less(wheel, core):
    contents = [{name: one.read(name) for name in one.namelist() if ".dist-info/" not in name} for one in (wheel, core)]
    assert contents[0] == contents[1]
    (full, extras), (light, core_extras) = map(requirements, (wheel, core))
    assert full - light == set(packages._FULL)
    assert light < full
    assert core_extras == extras - {"dev"}
    assert {f"pip install 'trieye[{extra}]'" for extra in core_extras} == {
        packages.command(module) for module in packages._EXTRAS
    }


@pytest.mark.long
def test_a_project_created_by_a_wheel_contains_an_equal_wheel(wheel, tmp_path):
    quietly = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*quietly, "--target", str(tmp_path / "site"), wheel.filename], check=True)
    paths = {"PYTHONPATH": str(tmp_path / "site"), "PYTHONSAFEPATH": "1"}
    create = [sys.executable, "-c", "import sys; from trieye.cli import main; sys.exit(main())", "new", "my_agent"]
    subprocess.run([*create, "--no-input"], cwd=tmp_path, env={**os.environ, **paths}, capture_output=True, check=True)
    copy = tmp_path / "my_agent" / "wheels" / Path(wheel.filename).name
    assert f"{{root:uri}}/wheels/{copy.name}" in (tmp_path / "my_agent" / "pyproject.toml").read_text()
    with zipfile.ZipFile(copy) as copied:
        contents = [{n: one.read(n) for n in one.namelist() if ".dist-info/" not in n} for one in (wheel, copied)]
        assert contents[0] == contents[1]
    subprocess.run([*quietly, "--target", str(tmp_path / "again"), copy], check=True)  # pip checks names and metadata


def test_a_repacked_wheel_has_each_licence_that_its_metadata_names(tmp_path):
    with zipfile.ZipFile(repacking.repack(tmp_path)) as repacked:
        names = repacked.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        licences = email.message_from_bytes(repacked.read(metadata)).get_all("License-File")
    assert {metadata.replace("METADATA", f"licenses/{licence}") for licence in licences} <= set(names)


def test_a_linked_foreign_folder_is_not_repacked(tmp_path):
    (tmp_path / "link").symlink_to("/etc")
    assert not repacking._is_own(tmp_path / "link")
    assert repacking._is_own(ROOT / "trieye/conf")
    assert repacking._is_own(ROOT / "trieye/run")


def test_the_wheel_contains_all_files_of_trieye_and_no_others(wheel):
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    for folder in ("conf", "template"):
        files = [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        assert len(files) > 20
        assert {f"trieye/{path.relative_to(ROOT)}" for path in files} <= names
    assert {"trieye/py.typed", "trieye/results/report.html.jinja"} <= names
    plugin = {"hydra_plugins/trieye/__init__.py", "hydra_plugins/trieye/sweeps.py"}
    assert {name for name in names if not name.startswith("trieye/")} == plugin
    assert not any("__pycache__" in name for name in names)


def test_hydra_finds_the_configs_of_an_installed_wheel(wheel, tmp_path):
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
