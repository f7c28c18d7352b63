"""Finish the generated project: pin or copy trieye, optionally create a git repository.

The folder may contain files of the user (`--overwrite`): nothing here deletes or commits them.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
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
        for folder in (".github/workflows", ".github"):
            with suppress(OSError):  # it contains files of the user
                Path(folder).rmdir()
    if answers["git"] == "yes":
        commit(generated_files(answers))


def generated_files(answers: dict[str, str]) -> Iterator[str]:
    """Yield the paths of the files that the template and this hook wrote."""
    # a relative path of the template starts at the directory of the command
    for root in Path(os.environ.get("PWD", ""), answers["_repo_dir"]).glob("*cookiecutter.slug*"):
        for path in root.rglob("*"):
            yield re.sub(r"\{+cookiecutter\.(\w+)\}+", lambda key: answers[key[1]], path.relative_to(root).as_posix())
    yield from (path.as_posix() for path in Path("wheels").glob("trieye-*.whl"))


def commit(files: Iterable[str]) -> None:
    """Create a git repository with an initial commit; on failure, print a warning: the project works without git.

    Args:
        files: The files to commit; others belong to the user.
    """
    repository, problem = git("rev-parse", "--show-toplevel")
    if not problem:
        print(f"project created, but not committed: it is in the git repository {repository.strip()}", file=sys.stderr)
        return
    _, problem = git("init", "--quiet")
    untracked, problem = git("ls-files", "--others", "--exclude-standard", "-z") if not problem else ("", problem)
    own = set(files).intersection(untracked.split("\0"))
    for arguments in (["add", "--", *sorted(own)], ["commit", "--quiet", "-m", "Initial commit by trieye new"]):
        problem = problem or git(*arguments)[1]
    if problem:
        print(f"project created, but {problem}", file=sys.stderr)


def git(*arguments: str) -> tuple[str, str]:
    """Run a git command; return its output, and an error message if it failed."""
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, errors="replace", check=False)
        output, error = done.stdout, done.stderr.strip() or f"exit code {done.returncode}" if done.returncode else ""
    except OSError as failure:
        output, error = "", str(failure)
    return output, f"`git {' '.join(arguments[:2])}` failed: {error}" if error else ""


if __name__ == "__main__":
    main()
