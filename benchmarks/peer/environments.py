"""Environments of benchmarks: that of this project, with other libraries on top.

NumPy, torch and trieye itself are those of the environment that runs the benchmark, so all sides can take turns in one
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
    "rllib": ["dm_tree", "lz4", "scipy"],  # what RLlib needs besides Ray
}
SHARED = ("numpy", "torch", "ray")
"""What all sides must have in the same version."""


def installed(directory: str, peers: dict[str, list[str]]) -> Path:
    """Return the Python of an environment, which is made if it is not there; a peer that does not install is left out.

    Args:
        directory: Where it lies below `.peers`.
        peers: What each of them needs.

    Raises:
        subprocess.CalledProcessError: Not even an empty environment could be made.
    """
    place = ROOT / ".peers" / directory
    python = place / ("Scripts" if os.name == "nt" else "bin") / "python"
    wanted = json.dumps([_packages(), peers, _pins()])
    ready = place / ".ready"
    if not ready.exists() or ready.read_text() != wanted:
        print(f"installing {', '.join(peers)} into {place} (some minutes, once) ...", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        _share_packages(python)
        for name, requirements in peers.items():
            _install(python, name, requirements)
        ready.write_text(wanted)
    return python


def _share_packages(python: Path) -> None:
    ask = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    own = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip()
    lines = "\n".join(f"import site; site.addsitedir({place!r})" for place in _packages())
    Path(own, "trieye_environment.pth").write_text(lines + "\n")


def _packages() -> list[str]:
    return [place for place in sys.path if place.endswith("site-packages")]


def _pins() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line.split("==")[0] in SHARED]


def _install(python: Path, name: str, requirements: list[str]) -> None:
    constraints = python.parents[1] / "constraints.txt"
    constraints.write_text("\n".join(_pins()) + "\n")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", str(constraints)]
    done = subprocess.run([*pip, *requirements], capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{name} is left out, as it does not install: {done.stderr[-800:]}", file=sys.stderr)
