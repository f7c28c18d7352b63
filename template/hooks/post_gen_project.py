"""Finish the project: the CI file, and the trieye that it depends on."""

import json
import re
import shutil
from importlib import metadata
from pathlib import Path

PLACEHOLDER = '\n    "trieye-requirement",\n'  # at the beginning of a line, where no answer can stand
URL = re.compile(r"(https?|ssh|git)://|git@|gh:|gl:|bb:")
HOSTS = {"gh:": "https://github.com/", "gl:": "https://gitlab.com/", "bb:": "https://bitbucket.org/"}


def requirement(template: str, repo_dir: Path) -> str:
    """Return what the project needs: the trieye that this template came with.

    Args:
        template: Where the template came from, as the user typed it.
        repo_dir: Where it lies on this machine.
    """
    if URL.match(template):
        for short, host in HOSTS.items():
            template = template.replace(short, host, 1) if template.startswith(short) else template
        template = re.sub(r"^(https?://)[^/@]*@", r"\1", template)  # a password or token is no part of the project
        return f"trieye[rl] @ git+{template}"
    checkout = repo_dir.resolve().parent
    if is_trieye(checkout):
        return f"trieye[rl] @ {checkout.as_uri()}"
    try:
        version = metadata.version("trieye")
    except metadata.PackageNotFoundError:
        return "trieye[rl]"
    major, minor = version.split(".")[:2]
    following = f"{major}.{int(minor) + 1}" if major == "0" else str(int(major) + 1)
    return f"trieye[rl]>={version},<{following}"


def is_trieye(folder: Path) -> bool:
    """Tell whether a folder is a checkout of trieye."""
    project = folder / "pyproject.toml"
    return project.is_file() and re.search(r'^name = "trieye"$', project.read_text("utf-8"), re.MULTILINE) is not None


def main() -> None:
    """Change the new project, which is the working directory."""
    answers = json.loads(r'''{{ cookiecutter | tojson }}''')
    project = Path("pyproject.toml")
    needed = requirement(str(answers["_template"]), Path(answers["_repo_dir"]))
    project.write_text(project.read_text("utf-8").replace(PLACEHOLDER, f'\n    "{needed}",\n'), "utf-8")
    if answers["ci"] == "none":
        shutil.rmtree(".github")


if __name__ == "__main__":
    main()
