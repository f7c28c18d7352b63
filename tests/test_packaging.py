import os
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
            os.system(f"cp -P '{ROOT / name}' '{source / name}'")  # noqa: S605 - keeps the symlinks
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(target), str(source)], check=True
    )
    (made,) = target.glob("*.whl")
    return zipfile.ZipFile(made)


def test_the_wheel_holds_every_config_and_every_file_of_the_template(wheel):
    names = set(wheel.namelist())
    for folder in ("conf", "template"):
        files = [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        assert len(files) > 20
        for path in files:
            assert f"trieye/{path.relative_to(ROOT)}" in names


def test_the_wheel_is_typed_and_installs_nothing_beside_trieye(wheel):
    names = wheel.namelist()
    assert "trieye/py.typed" in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"trieye"}
    assert not any("__pycache__" in name for name in names)
