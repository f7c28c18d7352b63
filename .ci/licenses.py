"""Write docs/licenses.md: the licence of each package that trieye installs, from the metadata of this environment."""

import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
HEADER = """# Licences of the installed packages

Packages that `pip install trieye` installs on Linux with Python 3.11 and the versions of constraints.txt, with the
licence that their metadata states. `.ci/licenses.py` writes this page.

| package | version | licence | in trieye-core |
|---|---|---|---|
"""


def closure(requirements: list[str], names: dict[str, set[str]]) -> dict[str, set[str]]:
    """Add the installed packages that satisfy requirements, directly or not, with the extras that are asked for."""
    for requirement in map(Requirement, requirements):
        name, extras = requirement.name.lower().replace("_", "-"), {"", *requirement.extras}
        if (new := extras - names.get(name, set())) and _is_installed(name):
            names[name] = names.get(name, set()) | extras
            inner = (Requirement(text) for text in metadata.requires(name) or [])
            wanted = [one for one in inner if any(one.marker is None or one.marker.evaluate({"extra": e}) for e in new)]
            closure([str(one).partition(";")[0] for one in wanted], names)
    return names


def _is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False  # for another platform
    return True


def licence(data: metadata.PackageMetadata) -> str:
    """Return the licence that metadata name."""
    classifiers = [text.rpartition(" :: ")[2] for text in data.get_all("Classifier") or [] if text[:7] == "License"]
    named = ", ".join(text for text in classifiers if text != "OSI Approved")
    first = (data["License"] or "").strip().partition("\n")[0] if "License" in data else ""
    return (data.get("License-Expression", "")) or named or first or "see its files"


def main() -> None:
    """Write the page."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    required, without = project["project"]["dependencies"], project["tool"]["trieye-core"]["without"]
    core = closure([text for text in required if Requirement(text).name not in without], {})
    rows = [
        f"| {data['Name']} | {data['Version']} | {licence(data)} | {'yes' if name in core else ''} |\n"
        for name in sorted(closure(required, {}))
        for data in [metadata.metadata(name)]
    ]
    (ROOT / "docs/licenses.md").write_text(HEADER + "".join(rows), "utf-8")


if __name__ == "__main__":
    main()
