"""Test a new project on every supported Hydra version: config tests, sweeps on pickling launchers, tab completion.

Each version is installed from the package registry into a separate folder, which comes first in the `PYTHONPATH` of the
project. A Hydra program that does not use trieye is run with each version as well.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

LAUNCHERS = ("joblib", "submitit_local")
VERSIONS = {
    "1.3": [
        "hydra-core>=1.3.8,<1.4",
        "omegaconf>=2.3,<2.4",
        "hydra-joblib-launcher<1.4",
        "hydra-submitit-launcher<1.4",
    ],
    "1.4": [
        "hydra-core>=1.4.0rc1,<1.5",
        "omegaconf>=2.4.0,<2.5",
        "hydra-joblib-launcher>=1.4.0rc1,<1.5",
        "hydra-submitit-launcher>=1.4.0rc1,<1.5",
    ],
}
TAB = "import sys; sys.argv[0] = 'my_agent-train'; from my_agent.train import train; train()"
FOREIGN = """
import hydra
from hydra.core.hydra_config import HydraConfig

@hydra.main(config_path=None)
def task(config):
    print([source.provider for source in HydraConfig.get().runtime.config_sources])

task()
"""


def installed(version: str, folder: Path) -> Path:
    """Install a Hydra version and its launchers into a folder."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--pre", "--no-deps", "--target", str(folder)]
    subprocess.run([*command, *VERSIONS[version]], check=True)
    return folder


class Project:
    """A new project whose processes import one Hydra version."""

    def __init__(self, scratch: Path, hydra: Path) -> None:
        self.path = scratch / "my_agent"
        self._env = {**os.environ, "PYTHONPATH": str(hydra), "PYTHONWARNINGS": "ignore"}
        new = ["-c", "from trieye.cli import main; main()", "new", "my_agent", "--no-input", "-o", str(scratch)]
        scratch.mkdir()
        subprocess.run([sys.executable, *new], env=self._env, check=True, capture_output=True)

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run Python in the project."""
        command, env = [sys.executable, *arguments], {**self._env, **env}
        return subprocess.run(command, cwd=self.path, env=env, capture_output=True, text=True, timeout=900, check=False)

    def sweep(self, launcher: str) -> list[str]:
        """Sweep over two seeds, and return the final states of the runs."""
        root = self.path / f"data_{launcher}"
        words = ["debug=limit", "sinks=[]", f"persistence.root_data_dir={root}", "seed=0,1"]
        done = self.run("-m", "my_agent.train", "-m", f"hydra/launcher={launcher}", *words)
        records = root.glob("my_agent/runs/*/run.json")
        ended = [json.loads(record.read_text())["status"] for record in records]
        return ended if done.returncode == 0 else [*ended, done.stderr[-2000:]]


def judge(scratch: Path, hydra: Path) -> dict[str, object]:
    """Return the outcomes of a new project on one Hydra version."""
    project = Project(scratch, hydra)
    sweeps = {launcher: project.sweep(launcher) for launcher in LAUNCHERS}
    version = project.run("-c", "import hydra; print(hydra.__version__)").stdout.strip()
    tests = project.run("-m", "pytest", "-q", "tests/test_config.py")
    tab = project.run("-c", TAB, "-sc", "query=bash", COMP_LINE="my_agent-train runtime=", COMP_POINT="23")
    foreign = project.run("-c", FOREIGN)
    return {
        "hydra": version,
        "tests": tests.stdout.strip().splitlines()[-1:],
        "sweeps": sweeps,
        "tab": tab.stdout.split(),
        "foreign": foreign.stdout.strip(),
        "met": tests.returncode == 0
        and all(ended == ["FINISHED"] * 2 for ended in sweeps.values())
        and "runtime=local" in tab.stdout
        and foreign.stdout == "['hydra', 'schema']\n",
    }


def main() -> None:
    """Test each version and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--versions", nargs="+", default=list(VERSIONS), choices=VERSIONS)
    figures = {}
    with tempfile.TemporaryDirectory() as scratch:
        for version in parser.parse_args().versions:
            hydra = installed(version, Path(scratch) / f"hydra_{version}")
            figures[version] = judge(Path(scratch) / version, hydra)
    is_met = all(each["met"] for each in figures.values())
    print(json.dumps({"soak": "hydra_versions", "met": is_met, **figures}))
    sys.exit(not is_met)


if __name__ == "__main__":
    main()
