"""The environment of the replay benchmark: that of this project, with the replay buffers of other libraries on top.

NumPy, torch and trieye itself are those of the environment that runs the benchmark, so all sides can take turns in one
process.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DIRECTORY = ROOT / ".peers" / "replay"
PEERS = {
    "cpprb": ["cpprb==11.0.0"],
    "sb3": ["stable-baselines3==2.9.2"],
    "tianshou": ["tianshou==2.0.1"],
    "torchrl": ["torchrl==0.14.1"],
    "rllib": ["dm_tree", "lz4", "scipy"],  # what RLlib needs besides Ray
}
SHARED = ("numpy", "torch", "ray")
"""What all sides must have in the same version."""


def installed() -> Path:
    """Return the Python of the environment, which is made if it is not there; a peer that does not install is left out.

    Raises:
        subprocess.CalledProcessError: Not even an empty environment could be made.
    """
    python = DIRECTORY / ("Scripts" if os.name == "nt" else "bin") / "python"
    wanted = json.dumps([_packages(), PEERS, _pins()])
    ready = DIRECTORY / ".ready"
    if not ready.exists() or ready.read_text() != wanted:
        print(f"installing {', '.join(PEERS)} into {DIRECTORY} (some minutes, once) ...", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(DIRECTORY)], check=True)
        _share_packages(python)
        for name, requirements in PEERS.items():
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
    constraints = DIRECTORY / "constraints.txt"
    constraints.write_text("\n".join(_pins()) + "\n")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", str(constraints)]
    done = subprocess.run([*pip, *requirements], capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{name} is left out, as it does not install: {done.stderr[-800:]}", file=sys.stderr)
