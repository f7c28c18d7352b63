"""Programs that run in another directory."""

import sys
from pathlib import Path

import pytest

from trieye.process.child import run_program


@pytest.mark.parametrize(
    ("directory", "inherited", "pwd"),
    [("there", "link", "there"), ("here", "link", "link"), (".", None, "."), ("here", "../here", "here")],
)
def test_a_program_has_the_pwd_of_its_directory_and_the_links_of_a_shell(
    tmp_path, monkeypatch, directory, inherited, pwd
):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PWD", raising=False)
    if inherited is not None:
        monkeypatch.setenv("PWD", inherited if ".." in inherited else str(tmp_path / inherited))
    code = "import os, pathlib; pathlib.Path('pwd').write_text(os.environ['PWD'])"
    assert run_program([sys.executable, "-S", "-c", code], directory) == 0
    assert Path(directory, "pwd").read_text() == str(tmp_path / pwd)
