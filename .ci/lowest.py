"""Print a pip constraint for each direct dependency: the lowest version that pyproject.toml allows."""

import re
import tomllib
from pathlib import Path

HELD = {"torch": "2.13.0"}
"""Not the lowest: the package index has older ones for CUDA only, gigabytes that no test uses."""


def lowest(pyproject: str) -> dict[str, str]:
    """Return the lower bound of each dependency, extras included, that has one."""
    project = tomllib.loads(pyproject)["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    found = (re.match(r"([\w-]+)(?:\[[\w,]+\])?>=([\w.]+)", requirement) for requirement in wanted)
    return {match[1]: match[2] for match in found if match} | HELD


if __name__ == "__main__":
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    print("\n".join(f"{name}=={version}" for name, version in sorted(lowest(text).items())))
