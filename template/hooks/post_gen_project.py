"""Finish the generated project: pin or copy trieye, drop unwanted CI, optionally create a git repository."""

import json
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

PLACEHOLDER = '\n    "trieye-requirement",\n'  # a whole line, which no rendered answer can contain
URL = re.compile(r"(https?|ssh|git)://|git@|gh:|gl:|bb:")
HOSTS = {"gh:": "https://github.com/", "gl:": "https://gitlab.com/", "bb:": "https://bitbucket.org/"}


def requirement(template: str, repo_dir: Path, name: str = "trieye") -> str:
    """Return the requirement for the trieye that contains this template.

    Args:
        template: Path or URL of the template, as the user typed it.
        repo_dir: Local directory of the template's repository.
        name: trieye with the required extras.
    """
    if URL.match(template):
        for short, host in HOSTS.items():
            template = template.replace(short, host, 1) if template.startswith(short) else template
        template = re.sub(r"^(https?://)[^/@]*@", r"\1", template)  # drop credentials
        return f"{name} @ git+{template}"
    checkout = repo_dir.resolve().parent
    if is_trieye(checkout):
        return f"{name} @ {checkout.as_uri()}"
    try:
        installed = metadata.distribution("trieye")
    except metadata.PackageNotFoundError:
        return name
    if url := origin(installed.read_text("direct_url.json")):
        return f"{name} @ {url}"
    version = installed.version
    major, minor = version.split(".")[:2]
    next_minor = f"{major}.{int(minor) + 1}" if major == "0" else str(int(major) + 1)
    return f"{name}>={version},<{next_minor}"


def origin(direct_url: str | None) -> str | None:
    """Return the URL that pip recorded for a package; None if an index supplied it or its path no longer exists.

    Args:
        direct_url: Content of pip's direct_url.json (PEP 610), if present.
    """
    if direct_url is None:
        return None
    record = json.loads(direct_url)
    url = re.sub(r"^(https?://)[^/@]*@", r"\1", record["url"])  # drop credentials
    if "vcs_info" in record:
        return f"{record['vcs_info']['vcs']}+{url}@{record['vcs_info']['commit_id']}"
    is_available = not url.startswith("file:") or Path(unquote(urlsplit(url).path)).exists()
    return url if is_available else None


def is_trieye(folder: Path) -> bool:
    """Return whether a folder is a checkout of trieye."""
    project = folder / "pyproject.toml"
    return project.is_file() and re.search(r'^name = "trieye"$', project.read_text("utf-8"), re.MULTILINE) is not None


def wheel_in_project() -> str:
    """Copy the trieye that runs into the project as a wheel, so that the project can move; return its URL.

    The build backend replaces `{root:uri}` by the URL of the project.
    """
    from trieye.cli.repacking import repack

    return "{root:uri}/" + repack(Path("wheels")).as_posix()


def main() -> None:
    """Edit the new project, which is the working directory."""
    answers = json.loads(r'''{{ cookiecutter | tojson }}''')
    project = Path("pyproject.toml")
    name = "trieye[sb3]" if answers["algorithm"] == "sb3" else "trieye"
    dependency = requirement(str(answers["_template"]), Path(answers["_repo_dir"]), name)
    if " @ file://" in dependency:
        dependency = f"{name} @ {wheel_in_project()}"
    project.write_text(project.read_text("utf-8").replace(PLACEHOLDER, f'\n    "{dependency}",\n'), "utf-8")
    if answers["ci"] == "none":
        shutil.rmtree(".github")
    if answers["git"] == "yes":
        commit()


def commit() -> None:
    """Create a git repository with an initial commit; on failure, print a warning: the project works without git."""
    for arguments in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "Initial commit by trieye new"]):
        try:
            done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
            problem = done.stderr if done.returncode else ""
        except OSError as error:
            problem = str(error)
        if problem:
            print(f"project created, but `git {' '.join(arguments)}` failed: {problem.strip()}", file=sys.stderr)
            return


if __name__ == "__main__":
    main()
