import json
import os
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import numpy as np
import pytest

import trieye
from tests import warm
from tests.curves import mlflow_runs
from trieye.run.provenance import Commit, ProvenanceRecorder, commit_of_program

pytestmark = pytest.mark.usefixtures("git_repositories")

PROGRAM = """
import sys
import trieye

config = trieye.TrieyeConfig(
    app_name="agents",
    run_name="first",
    runtime={"kind": "local"},
    persistence={"root_data_dir": sys.argv[1]},
    sinks={name: {"enabled": name in sys.argv} for name in ("mlflow", "tensorboard", "console")},
    tags={"trieye.host": "mine"},
)
with trieye.Run(config) as run:
    run.log("loss", 1.0)
"""


def program_output(directory, *arguments, modules=warm.RUN):
    """Run the program, and return its messages about the run."""
    done = warm.run(["train.py", str(directory.parent / "root"), *arguments], directory, modules=modules)
    assert done.returncode == 0, done.stderr
    return done.stderr


def git(directory, *words):
    identity = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
    done = subprocess.run(["git", "-C", directory, *identity, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """A repository with a program and another file with an uncommitted change."""
    path = tmp_path / "project"
    path.mkdir()
    (path / "train.py").write_text(PROGRAM)
    (path / "rates.txt").write_text("0.1\n")
    (path / "conf.yaml").write_text("lr: 1\n")
    git(path, "init", "-q", "-b", "main")
    git(path, "remote", "add", "origin", "https://me:hunter2@example.org/project.git")
    git(path, "add", ".")
    git(path, "commit", "-q", "-m", "first")
    (path / "rates.txt").write_text("0.2\n")
    (path / "conf.yaml").write_text("lr: 1\napi_key: hunter2\n")
    (path / "train.py").write_text(f"{PROGRAM}\nclass Login:\n    token: str\n")
    (path / "notes.txt").write_text("not added\n")
    return path


@pytest.fixture
def record(monkeypatch, tmp_path):
    """Return a function that records an attempt of a program in a repository, and returns the file."""
    monkeypatch.setattr("trieye.run.provenance._program", lambda: None)

    def record_in(directory):
        monkeypatch.chdir(directory)
        ProvenanceRecorder(tmp_path, 1, commit_of_program()).wait()
        return tmp_path / "provenance" / "attempt-1.json"

    return record_in


@pytest.mark.long
def test_a_resume_names_edited_modules_even_without_a_repository(tmp_path):
    (project := tmp_path / "project").mkdir()
    (program := project / "train.py").write_text("import helper\n" + PROGRAM)
    (project / "helper.py").write_text("RATE = 0.1\n")
    assert "since its last attempt" not in program_output(project)
    assert "since its last attempt" not in program_output(project)
    (project / "helper.py").write_text("RATE = 0.2\n")
    program.write_text(program.read_text() + "\n# edited\n")
    assert "run 'first' changed since its last attempt: edited: train, helper\n" in program_output(project)


def test_a_resume_names_a_changed_commit(repository):
    program_output(repository)
    shas = [git(repository, "rev-parse", "HEAD")]
    git(repository, "commit", "-qam", "second")
    shas.append(git(repository, "rev-parse", "HEAD"))
    output = program_output(repository)
    assert f"changed since its last attempt: commit {shas[0][:10]} -> {shas[1][:10]}\n" in output


@pytest.mark.long
def test_a_run_records_commit_changes_command_packages_and_machine(repository, tmp_path):
    sha = git(repository, "rev-parse", "HEAD")
    secrets = [
        "--tracking=https://me:hunter2@example.org",
        "+server.api_key=hunter2",
        "--api-key",
        "hunter2",
        "+db={pwd: hunter2}",
    ]
    program_output(repository, "mlflow", *secrets, modules=warm.HEAVY)
    run_dir = tmp_path / "root" / "agents" / "runs" / "first"
    assert json.loads((run_dir / "run.json").read_text())["git_sha"] == sha

    provenance = json.loads((run_dir / "provenance" / "attempt-1.json").read_text())
    assert provenance["commit"]["sha"] == sha
    assert (provenance["commit"]["branch"], provenance["commit"]["is_dirty"]) == ("main", True)
    assert provenance["commit"]["untracked"] == ["notes.txt"]
    assert provenance["packages"]["numpy"] == np.__version__
    paths = [path for path in sys.path if "thirdparty_files" not in path]  # packages that Ray vendors
    installed = {package.metadata["Name"]: package.version for package in distributions(path=paths)}
    assert provenance["packages"].items() >= installed.items()
    assert provenance["command"][1:3] == ["train.py", str(tmp_path / "root")]
    assert provenance["machine"]["memory_bytes"] > 1 << 28
    assert "hunter2" not in "".join(path.read_text() for path in (run_dir / "provenance").iterdir())

    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(repository), str(clone))
    git(clone, "apply", str(run_dir / "provenance" / "attempt-1.patch"))
    assert (clone / "rates.txt").read_text() == "0.2\n"
    assert (clone / "conf.yaml").read_text() == "lr: 1\napi_key: ***\n"
    assert (clone / "train.py").read_text() == (repository / "train.py").read_text()

    tags = mlflow_runs(run_dir)[1][0].data.tags
    assert tags["mlflow.source.git.commit"] == sha
    assert tags["mlflow.source.name"] == "train.py"
    assert tags["trieye.uncommitted"] == "true"
    assert tags["trieye.host"] == "mine"  # a description from the user takes precedence
    assert "hunter2" not in str(tags)


def test_the_patch_is_redacted_and_applies_whatever_git_is_configured_to_show(repository, record, tmp_path):
    for key, value in (("color.ui", "always"), ("diff.external", "echo edited:"), ("diff.noprefix", "true")):
        git(repository, "config", key, value)
    patch = record(repository).with_suffix(".patch")
    assert "hunter2" not in patch.read_text()
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(repository), str(clone))
    git(clone, "apply", str(patch))
    assert (clone / "conf.yaml").read_text() == "lr: 1\napi_key: ***\n"


def test_the_patch_redacts_values_far_below_their_secret_key(repository, record):
    conf = repository / "conf.yaml"
    conf.write_text("auth:\n  passwords:\n" + "".join(f"  - hunter{number}\n" for number in range(10, 30)) + "lr: 1\n")
    git(repository, "commit", "-q", "-a", "-m", "second")
    conf.write_text(conf.read_text().replace("lr: 1", "  - hunter30\nlr: 2"))
    patch = record(repository).with_suffix(".patch").read_text()
    assert "hunter" not in patch
    assert "+lr: 2\n" in patch


def test_file_names_that_are_not_utf_8_or_look_like_headers_are_recorded(repository, record):
    (repository / "# rates.txt").write_text("a file of its own\n" * 3)
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "second")
    git(repository, "mv", "# rates.txt", "renamed.txt")
    (repository / os.fsdecode(b"caf\xe9.txt")).touch()
    commit = json.loads(record(repository).read_text())["commit"]
    assert commit["sha"] == git(repository, "rev-parse", "HEAD")
    assert commit["is_dirty"]
    assert commit["untracked"] == [r"caf\udce9.txt"]


def test_the_commit_is_none_without_git_or_a_commit(monkeypatch, tmp_path, make_config):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("trieye.run.provenance._program", lambda: None)
    assert commit_of_program() is None
    git(tmp_path, "init", "-q")
    assert commit_of_program() is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit_of_program() is None
    with trieye.Run(make_config()) as run:
        run.log("loss", 1.0)
    recorded = json.loads((run.dir / "provenance" / "attempt-1.json").read_text())
    assert recorded["commit"] is None
    assert Path(recorded["directory"]) == tmp_path


def test_the_repository_of_the_working_directory_is_the_fallback(monkeypatch, repository, tmp_path):
    monkeypatch.chdir(repository)
    monkeypatch.setattr("trieye.run.provenance._program", lambda: tmp_path / "bin" / "train")
    commit = commit_of_program()
    assert isinstance(commit, Commit)
    assert (commit.sha, Path(commit.directory)) == (git(repository, "rev-parse", "HEAD"), repository)
    git(repository, "worktree", "add", "-q", str(tmp_path / "tree"))  # its `.git` is a file
    (repository / "src").mkdir()
    (tmp_path / "linked_src").symlink_to(repository / "src")
    for directory in (repository / "src", tmp_path / "tree", tmp_path / "linked_src"):
        monkeypatch.chdir(directory)
        assert commit_of_program().sha == commit.sha, directory
    monkeypatch.chdir(repository)
    (tmp_path / "link").write_text(f"gitdir: {repository}/.git\n")
    for git_dir in (".git", repository / ".git", tmp_path / "link"):
        monkeypatch.setenv("GIT_DIR", str(git_dir))
        assert commit_of_program().sha == commit.sha, git_dir


def test_git_is_not_started_outside_a_repository(monkeypatch, tmp_path):
    git_program = tmp_path / "git"
    git_program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    git_program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("trieye.run.provenance._program", lambda: None)
    assert commit_of_program() is None
    assert not (tmp_path / "started").exists()
    (tmp_path / ".git").mkdir()
    assert commit_of_program() is None
    assert (tmp_path / "started").exists()
