"""What of a project is sent to the workers of a cluster."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from trieye.cli import main
from trieye.exceptions import ConfigurationError
from trieye.hub import shipment
from trieye.hub.shipment import pack, project_of_program

FILES = {
    "pyproject.toml": "[project]",
    "my_agent/__init__.py": "",
    "my_agent/train.py": "x = 1",
    "conf/train.yaml": "a: 1",
    "data/table.csv": "1,2",
    ".gitignore": "data/\n.trieye_data/\n",
    ".trieye_data/app/runs/first/run.json": "{}",
    "my_agent/__pycache__/train.pyc": "x",
    "venv/pyvenv.cfg": "",
    "venv/lib/big.py": "x",
    "multirun/2026/sweep.json": "{}",
}


@pytest.fixture
def project(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "project"


def names_in(packed):
    with zipfile.ZipFile(packed.archive) as archive:
        return set(archive.namelist())


CODE = {"pyproject.toml", "my_agent/__init__.py", "my_agent/train.py", "conf/train.yaml"}


def test_of_a_directory_hidden_ones_environments_and_runs_stay_here(project, tmp_path):
    packed = pack(project, tmp_path)
    assert names_in(packed) == {*CODE, "data/table.csv", ".gitignore"}
    assert packed.num_files == len(names_in(packed))
    assert packed.num_bytes == packed.archive.stat().st_size
    assert str(packed) == f"{project} (6 files, {packed.num_bytes / 1024:.0f} KiB)"


def test_of_a_repository_what_git_ignores_stays_here(project, tmp_path):
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    (project / ".gitignore").write_text("data/\n.trieye_data/\nvenv/\n__pycache__/\n")
    assert names_in(pack(project, tmp_path)) == {*CODE, ".gitignore"}


SECRET = [
    ".env", "conf/.env.production", ".netrc", ".git-credentials", ".ssh/id_ed25519", ".aws/credentials",
    "certs/site.pem", "deploy/service_account_ci.json", "secrets.yaml", "runs/app/runs/first/1.wal", "env/lib/big.py",
]  # fmt: skip


@pytest.mark.parametrize("is_repository", [True, False])
def test_credentials_runs_and_targets_of_links_out_of_the_project_stay_here(project, tmp_path, is_repository, capsys):
    for name in [*SECRET, "runs/app/runs/first/run.lock", "env/pyvenv.cfg", "my_agent/credentials.py"]:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("secret")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "key.txt").write_text("secret")
    (project / "link.txt").symlink_to(tmp_path / "outside" / "key.txt")
    (project / "linked").symlink_to(tmp_path / "outside")
    (project / "dotenv.txt").symlink_to(".env")
    (project / "same.yaml").symlink_to("conf/train.yaml")
    (project / "swapped").mkdir()
    (project / "swapped" / "key.txt").write_text("harmless")
    if is_repository:
        (project / ".gitignore").unlink()
        subprocess.run(["git", "init", "-q", str(project)], check=True)
        subprocess.run(["git", "-C", str(project), "add", "-fA"], check=True)
    (project / "swapped" / "key.txt").unlink()
    (project / "swapped").rmdir()
    (project / "swapped").symlink_to(tmp_path / "outside")
    sent = names_in(pack(project, tmp_path)) - {".gitignore"}
    assert sent == {*CODE, "data/table.csv", "my_agent/credentials.py", "same.yaml"}
    assert main(["cluster", "files", str(project)]) == 0
    assert {*capsys.readouterr().out.split()} - {".gitignore"} == sent


def test_the_home_directory_what_contains_it_and_the_root_are_refused(project, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(project / "conf"))
    for directory in (project / "conf", project, Path("/")):
        with pytest.raises(ConfigurationError, match=r"working_dir=DIR|is not sent"):
            pack(directory, tmp_path)
    assert pack(project / "my_agent", tmp_path).num_files == 2


def test_a_file_that_git_tracks_and_that_is_gone_is_not_missed(project, tmp_path):
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    subprocess.run(["git", "-C", str(project), "add", "my_agent/train.py"], check=True)
    (project / "my_agent/train.py").unlink()
    assert "my_agent/train.py" not in names_in(pack(project, tmp_path))


def test_the_same_files_give_the_same_bytes(project, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    first = pack(project, one).archive.read_bytes()
    for path in project.rglob("*.py"):
        path.touch()
    assert pack(project, two).archive.read_bytes() == first
    (project / "my_agent/train.py").write_text("x = 2")
    assert pack(project, two).archive.read_bytes() != first


def test_far_too_much_is_refused_with_the_largest_files(project, tmp_path, monkeypatch):
    monkeypatch.setattr(shipment, "MOST_BYTES", 1000)
    (project / "weights.bin").write_bytes(bytes(5000))
    with pytest.raises(ConfigurationError, match=r"its 7 files have 5 KiB.*the largest: weights.bin \(5 KiB\)"):
        pack(project, tmp_path)


@pytest.mark.parametrize("has_directory", [True, False])
def test_nothing_to_send_is_refused(tmp_path, has_directory):
    if has_directory:
        (tmp_path / "empty").mkdir()
    match = "there is no file in it" if has_directory else "there is no such directory"
    with pytest.raises(ConfigurationError, match=match):
        pack(tmp_path / "empty", tmp_path)


@pytest.mark.parametrize("mark", ["pyproject.toml", "setup.py", ".git"])
def test_the_project_is_the_nearest_directory_that_says_so(tmp_path, monkeypatch, mark):
    program = tmp_path / "deep" / "my_agent" / "train.py"
    program.parent.mkdir(parents=True)
    program.touch()
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(program), raising=False)
    (tmp_path / "deep" / mark).touch()
    assert project_of_program() == tmp_path / "deep"


def test_a_lone_script_sends_its_directory(tmp_path, monkeypatch):
    program = tmp_path / "train.py"
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(program), raising=False)
    assert project_of_program() == tmp_path


@pytest.mark.parametrize("place", ["bin/trieye", "lib/python3/site-packages/my_agent/train.py"])
def test_of_what_is_installed_nothing_is_sent(monkeypatch, place):
    monkeypatch.setattr(sys.modules["__main__"], "__file__", f"{sys.prefix}/{place}", raising=False)
    assert project_of_program() is None


def test_without_a_file_nothing_is_sent(monkeypatch):
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    assert project_of_program() is None
