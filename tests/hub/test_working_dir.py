"""The files of a project that are sent to the workers of a cluster."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trieye.cli import main
from trieye.exceptions import ConfigurationError
from trieye.hub import working_dir
from trieye.hub.working_dir import project_of_program, stage

pytestmark = pytest.mark.usefixtures("git_repositories")

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


@pytest.fixture
def staged(tmp_path):
    """Return a function that stages a project and returns the names of the files in the copy."""

    def stage_copy(source):
        copy = tmp_path / "copy"
        copy.mkdir()
        description = stage(source, copy)
        names = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()}
        size = sum((copy / name).stat().st_size for name in names)
        assert description == f"{source} ({len(names)} files, {size / 1024:.0f} KiB)"
        return names

    return stage_copy


CODE = {"pyproject.toml", "my_agent/__init__.py", "my_agent/train.py", "conf/train.yaml"}


def test_hidden_files_environments_and_runs_are_not_staged(project, staged):
    assert staged(project) == {*CODE, "data/table.csv"}


def test_files_that_git_ignores_are_not_staged(project, staged):
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    (project / ".gitignore").write_text("data/\n.trieye_data/\nvenv/\n__pycache__/\n")
    assert staged(project) == CODE


def test_a_repository_whose_ignored_files_are_unknown_is_refused(project, tmp_path, monkeypatch):
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    (project / ".git" / "HEAD").unlink()
    with pytest.raises(ConfigurationError, match=r"not a git repository.*working_dir=null"):
        stage(project, tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"No such file or directory: 'git'"):
        stage(project, tmp_path)


@pytest.mark.parametrize("is_submodule", [True, False])
def test_nested_repositories_and_links_to_directories_are_staged(project, staged, is_submodule):
    for directory in (project, project / "nested"):
        subprocess.run(["git", "init", "-q", str(directory)], check=True)
    for name in ("library.py", "ignored.py"):
        (project / "nested" / name).touch()
    (project / "nested" / ".gitignore").write_text("ignored.py\n")
    (project / "my_agent" / "presets").symlink_to("../conf")
    (project / "my_agent" / "self").symlink_to("..")  # not staged: all files would be sent twice
    if is_submodule:
        identity = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
        for words in (["add", "library.py"], [*identity, "commit", "-qm", "first"]):
            subprocess.run(["git", "-C", str(project / "nested"), *words], check=True)
        subprocess.run(["git", "-C", str(project), "-c", "advice.addEmbeddedRepo=false", "add", "nested"], check=True)
    assert staged(project) == {*CODE, "nested/library.py", "my_agent/presets/train.yaml"}
    if is_submodule:  # a broken one: git lists the files of its parent
        shutil.rmtree(project / "nested" / ".git")
        (project / "nested" / ".git").mkdir()
        assert "conf/train.yaml" in map(str, working_dir.files_of(project))


def test_links_to_directories_are_staged_without_git(project, staged):
    (project / "my_agent" / "presets").symlink_to("../conf")
    assert staged(project) == {*CODE, "data/table.csv", "my_agent/presets/train.yaml"}


SECRET = [
    ".env", "conf/.env.production", ".netrc", ".git-credentials", ".ssh/id_ed25519", ".aws/credentials",
    "certs/site.pem", "deploy/service_account_ci.json", "secrets.yaml", "runs/app/runs/first/1.wal", "env/lib/big.py",
]  # fmt: skip


@pytest.mark.parametrize("is_repository", [True, False])
def test_credentials_runs_and_links_out_of_the_project_are_not_staged(project, staged, tmp_path, is_repository, capsys):
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
    sent = staged(project)
    assert sent == {*CODE, "data/table.csv", "my_agent/credentials.py", "same.yaml"}
    assert main(["cluster", "files", str(project)]) == 0
    assert {*capsys.readouterr().out.split()} == sent


def test_the_home_directory_and_its_parents_are_rejected(project, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(project / "conf"))
    for directory in (project / "conf", project, Path("/")):
        with pytest.raises(ConfigurationError, match=r"working_dir=DIR|is not sent"):
            stage(directory, tmp_path)
    assert "(2 files" in stage(project / "my_agent", tmp_path)


def test_a_tracked_but_deleted_file_is_skipped(project, staged):
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    subprocess.run(["git", "-C", str(project), "add", "my_agent/train.py"], check=True)
    (project / "my_agent/train.py").unlink()
    assert "my_agent/train.py" not in staged(project)


DRIVER = """
import json, os, sys, ray

def names():
    return [os.path.relpath(os.path.join(parent, name)) for parent, _, names in os.walk(".") for name in names]

address, again, copy = sys.argv[1:]
addresses = []
for directory in (again, copy):
    ray.init(address=address, runtime_env={"working_dir": directory})
    addresses.append(ray.get_runtime_context().runtime_env["working_dir"])
    files = [] if directory == again else ray.get(ray.remote(names).remote())
    ray.shutdown()
print("sent", json.dumps([*addresses, files]))
"""


def sent_to_workers(again, copy):
    """Send two directories to the cluster; return both addresses, and the files of the second that a worker sees."""
    import ray

    command = [sys.executable, "-c", DRIVER, ray.get_runtime_context().gcs_address, str(again), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return next(json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("sent "))


@pytest.mark.slow
def test_ray_workers_see_the_staged_files_and_equal_files_share_an_address(project, staged, tmp_path, ray_cluster):
    (tmp_path / "key.txt").write_text("secret")
    (project / "link.txt").symlink_to(tmp_path / "key.txt")
    (project / "run.sh").write_text("true")
    (project / "run.sh").chmod(0o755)
    sent, again = staged(project), tmp_path / "again"
    for path in project.rglob("*.py"):
        path.touch()
    stage(project, again)
    same_address, address, files = sent_to_workers(again, tmp_path / "copy")
    assert {*files} == sent
    assert same_address == address
    assert (again / "run.sh").stat().st_mode & 0o777 == 0o755


def test_an_oversized_project_is_rejected_with_its_largest_files(project, tmp_path, monkeypatch):
    monkeypatch.setattr(working_dir, "MOST_BYTES", 1000)
    (project / "weights.bin").write_bytes(bytes(5000))
    with pytest.raises(ConfigurationError, match=r"its 6 files have 5 KiB.*the largest: weights.bin \(5 KiB\)"):
        stage(project, tmp_path)


@pytest.mark.parametrize("has_directory", [True, False])
def test_an_empty_or_missing_directory_is_rejected(tmp_path, has_directory):
    if has_directory:
        (tmp_path / "empty").mkdir()
    match = "the directory has no file" if has_directory else "the directory does not exist"
    with pytest.raises(ConfigurationError, match=match):
        stage(tmp_path / "empty", tmp_path)


@pytest.mark.parametrize("mark", ["pyproject.toml", "setup.py", ".git", None])
def test_the_project_is_the_nearest_directory_with_a_marker_file_or_that_of_the_script(tmp_path, monkeypatch, mark):
    program = tmp_path / "deep" / "my_agent" / "train.py"
    program.parent.mkdir(parents=True)
    program.touch()
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(program), raising=False)
    if mark is not None:
        (tmp_path / "deep" / mark).touch()
    assert project_of_program() == (program.parent if mark is None else tmp_path / "deep")


@pytest.mark.parametrize("path", ["bin/trieye", "lib/python3/site-packages/my_agent/train.py"])
def test_an_installed_program_has_no_project(monkeypatch, path):
    monkeypatch.setattr(sys.modules["__main__"], "__file__", f"{sys.prefix}/{path}", raising=False)
    assert project_of_program() is None


def test_a_program_without_a_file_has_no_project(monkeypatch):
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    assert project_of_program() is None
