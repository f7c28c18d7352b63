"""Virtual environments of the benchmarks: the current environment plus peer libraries.

They share NumPy, torch and trieye with the environment that runs the benchmark, so all sides can alternate in one
process.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SB3 = {"sb3": ["stable-baselines3==2.9.2"]}
REPLAY = {
    "cpprb": ["cpprb==11.0.0"],
    **SB3,
    "tianshou": ["tianshou==2.0.1"],
    "torchrl": ["torchrl==0.14.1"],
    "rllib": ["dm_tree", "lz4", "scipy"],  # dependencies of RLlib that Ray does not install
}
SHARED = ("numpy", "torch", "ray")
"""Packages that must have the same version on all sides."""


def installed(directory: str, peers: dict[str, list[str]]) -> Path:
    """Return the Python of an environment; create the environment if it is missing or outdated.

    Peers that fail to install are skipped.

    Args:
        directory: Directory of the environment in `.peers`.
        peers: Requirements of each peer.

    Raises:
        subprocess.CalledProcessError: The empty environment could not be created.
    """
    environment = ROOT / ".peers" / directory
    python = environment / ("Scripts" if os.name == "nt" else "bin") / "python"
    spec = json.dumps([_packages(), peers, _pins()])
    ready = environment / ".ready"
    if not ready.exists() or ready.read_text() != spec:
        print(f"installing {', '.join(peers)} into {environment} (once, takes a few minutes) ...", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(environment)], check=True)
        _share_packages(python)
        for name, requirements in peers.items():
            _install(python, name, requirements)
        ready.write_text(spec)
    return python


def _share_packages(python: Path) -> None:
    query = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site_packages = subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip()
    lines = "\n".join(f"import site; site.addsitedir({directory!r})" for directory in _packages())
    Path(site_packages, "trieye_environment.pth").write_text(lines + "\n")


def _packages() -> list[str]:
    """Return the packages of the current environment without those of an environment of peers that runs this."""
    peers = str(ROOT / ".peers")
    return [path for path in sys.path if path.endswith("site-packages") and not path.startswith(peers)]


def _pins() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line.split("==")[0] in SHARED]


def _install(python: Path, name: str, requirements: list[str]) -> None:
    constraints = python.parents[1] / "constraints.txt"
    constraints.write_text("\n".join(_pins()) + "\n")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", str(constraints)]
    done = subprocess.run([*pip, *requirements], capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"skipping {name}, which failed to install: {done.stderr[-800:]}", file=sys.stderr)
