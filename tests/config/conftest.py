"""A small project on disk, and its command line in this process."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import trieye
from tests import warm
from trieye.config import TrieyeConfig

PRIMARY = """
# few options: composing `metrics: [core]` and the other defaults takes half as long again
defaults:
  - schema
  - runtime: local
  - persistence: null
  - stats: null
  - metrics: []
  - sinks: []
  - replay: null
  - loop: null
  - experiment: null
  - debug: null
  - _self_
app_name: tested
"""
PROGRAM = """
import sys
import trieye
from trieye import TrieyeConfig
from trieye.config.hydra.launch import launch_info

@trieye.main(config_path="conf", config_name="train")
def train(config: TrieyeConfig) -> float:
    '''Train nothing.'''
    print("config", config.run_name, config.seed, config.persistence.get_run_base_dir())
    print("launch", launch_info())
    print("heavy", sorted({"ray", "torch", "mlflow"} & set(sys.modules)))
    return float(config.seed)

if __name__ == "__main__":
    train()
"""


@dataclass
class Completed:
    """Exit code and output of a command line."""

    code: int
    out: str
    err: str


class Project:
    """A project on disk."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.conf = directory / "conf"
        self.conf.mkdir()
        self.write("train", PRIMARY)
        (directory / "train.py").write_text(PROGRAM)

    def write(self, config: str, text: str) -> None:
        path = self.conf / f"{config}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def run(self, *arguments: str, program: str = "train.py") -> Completed:
        """Run the program in a fork of a process that has already imported Hydra."""
        done = warm.run([program, *arguments], self.directory, modules=warm.LIGHT)
        return Completed(done.returncode, done.stdout, done.stderr)

    def ran(self, *arguments: str, program: str = "train.py") -> Completed:
        """Run the program; it must succeed and print nothing to stderr except the hint at parallel sweeps."""
        completed = self.run(*arguments, program=program)
        lines = [
            line for line in completed.err.splitlines() if not line.startswith("trieye: jobs run one after another")
        ]
        assert (completed.code, lines) == (0, [])
        return completed

    def created_files(self) -> list[str]:
        """Return the names of files and directories that a command created in the project."""
        return sorted(
            path.name for path in self.directory.iterdir() if path.name not in {"conf", "train.py", "__pycache__"}
        )


@pytest.fixture
def project(tmp_path, monkeypatch):
    new_project = Project(tmp_path)
    monkeypatch.chdir(tmp_path)
    return new_project


@pytest.fixture
def start(project, monkeypatch):
    """Return a function that runs a program in this process and returns the configs of its task."""

    def run_program(*arguments: str, config_type: type[TrieyeConfig] = TrieyeConfig) -> list[Any]:
        configs = []

        def train(config: TrieyeConfig) -> float:
            configs.append(config)
            return float(config.seed)

        train.__annotations__["config"] = config_type
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        trieye.main(config_path=str(project.conf))(train)()
        return configs

    return run_program


@pytest.fixture
def mistaken(project, monkeypatch, capsys):
    """Return a function that runs an invalid command line, checks exit code and output, and returns the message."""

    def run_invalid(*arguments: str, config_type: type[TrieyeConfig] = TrieyeConfig) -> str:
        calls = []

        def train(config: TrieyeConfig) -> None:
            calls.append(config)

        train.__annotations__["config"] = config_type
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        with pytest.raises(SystemExit) as exit_info:
            trieye.main(config_path=str(project.conf))(train)()
        printed = capsys.readouterr()
        assert exit_info.value.code == 2
        assert printed.out == ""
        assert printed.err.startswith("error: ")
        assert "Traceback" not in printed.err
        assert not calls
        assert project.created_files() == []
        return printed.err.removeprefix("error: ").replace("\n       ", "\n").strip()

    return run_invalid
