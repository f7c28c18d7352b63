"""Finish the project: the CI file, the trieye that it depends on, and a git repository if one is wanted."""

import json
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

PLACEHOLDER = '\n    "trieye-requirement",\n'  # at the beginning of a line, where no answer can stand
URL = re.compile(r"(https?|ssh|git)://|git@|gh:|gl:|bb:")
HOSTS = {"gh:": "https://github.com/", "gl:": "https://gitlab.com/", "bb:": "https://bitbucket.org/"}


def requirement(template: str, repo_dir: Path, name: str = "trieye[rl]") -> str:
    """Return what the project needs: the trieye that this template came with.

    Args:
        template: Where the template came from, as the user typed it.
        repo_dir: Where it lies on this machine.
        name: trieye with the extras that it needs.
    """
    if URL.match(template):
        for short, host in HOSTS.items():
            template = template.replace(short, host, 1) if template.startswith(short) else template
        template = re.sub(r"^(https?://)[^/@]*@", r"\1", template)  # a password or token is no part of the project
        return f"{name} @ git+{template}"
    checkout = repo_dir.resolve().parent
    if is_trieye(checkout):
        return f"{name} @ {checkout.as_uri()}"
    try:
        installed = metadata.distribution("trieye")
    except metadata.PackageNotFoundError:
        return name
    if place := origin(installed.read_text("direct_url.json")):
        return f"{name} @ {place}"
    version = installed.version
    major, minor = version.split(".")[:2]
    following = f"{major}.{int(minor) + 1}" if major == "0" else str(int(major) + 1)
    return f"{name}>={version},<{following}"


def origin(direct_url: str | None) -> str | None:
    """Return from where pip installed a package, as a requirement names it; None: from an index, or it is not there.

    Args:
        direct_url: What pip wrote down about that (PEP 610), if it did.
    """
    if direct_url is None:
        return None
    held = json.loads(direct_url)
    url = re.sub(r"^(https?://)[^/@]*@", r"\1", held["url"])  # a password or token is no part of the project
    if "vcs_info" in held:
        return f"{held['vcs_info']['vcs']}+{url}@{held['vcs_info']['commit_id']}"
    is_there = not url.startswith("file:") or Path(unquote(urlsplit(url).path)).exists()
    return url if is_there else None


def is_trieye(folder: Path) -> bool:
    """Tell whether a folder is a checkout of trieye."""
    project = folder / "pyproject.toml"
    return project.is_file() and re.search(r'^name = "trieye"$', project.read_text("utf-8"), re.MULTILINE) is not None


def main() -> None:
    """Change the new project, which is the working directory."""
    answers = json.loads(r'''{{ cookiecutter | tojson }}''')
    project = Path("pyproject.toml")
    name = "trieye[rl,sb3]" if answers["algorithm"] == "sb3" else "trieye[rl]"
    needed = requirement(str(answers["_template"]), Path(answers["_repo_dir"]), name)
    project.write_text(project.read_text("utf-8").replace(PLACEHOLDER, f'\n    "{needed}",\n'), "utf-8")
    if answers["ci"] == "none":
        shutil.rmtree(".github")
    if answers["git"] == "yes":
        commit()


def commit() -> None:
    """Make a git repository of the project, with a first commit; a project without one is a project, too."""
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "Made by trieye new"]):
        try:
            done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
            said = done.stderr if done.returncode else ""
        except OSError as error:
            said = str(error)
        if said:
            print(f"the project is made, but `git {' '.join(words)}` failed: {said.strip()}", file=sys.stderr)
            return


if __name__ == "__main__":
    main()
