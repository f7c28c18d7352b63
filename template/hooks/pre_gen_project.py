"""Validate the answers before any file is written; `trieye new` applies the same checks."""

import importlib.util
import json
import keyword
import re
import sys
import sysconfig
from functools import partial

FOLDERS = {"build", "conf", "dist", "multirun", "outputs", "tests", "wheels"}
"""Folders of a project, of its runs and builds; .gitignore names some of them."""
RESERVED = {*FOLDERS, "hydra_plugins", "template", "test", "trieye"}
ENV_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]*")
MAX_SLUG = 40
MAX_TEXT = 300


def slug_complaint(slug: str) -> str | None:
    """Return an error message for an invalid package name, or None."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", slug):
        return f"slug {slug!r} is not a valid package name; use lower-case letters, digits and _, starting with a letter"
    if len(slug) > MAX_SLUG:
        return f"slug {slug!r} has {len(slug)} characters; at most {MAX_SLUG} are allowed"
    if keyword.iskeyword(slug) or keyword.issoftkeyword(slug):
        return f"slug {slug!r} is a Python keyword; try {slug}_agent"
    if slug in RESERVED or slug in sys.stdlib_module_names:
        return f"slug {slug!r} would shadow a module of Python or trieye, or a folder of the project; try {slug}_agent"
    if is_installed(slug):
        return f"slug {slug!r} would shadow the installed package of that name; try {slug}_agent"
    return None


def is_installed(name: str) -> bool:
    """Return whether site-packages contains this package; checkouts and editable installs do not count."""
    spec = importlib.util.find_spec(name)
    paths = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
    libraries = tuple(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    return any(path.startswith(libraries) for path in paths if path)


def env_complaint(env_id: str) -> str | None:
    """Return an error message for an invalid environment id, or None."""
    if ENV_ID.fullmatch(env_id) and len(env_id) <= 100 and env_id[-1].isalnum():
        return None
    return f"env_id {env_id!r} is not a Gymnasium id; use letters, digits and _ . : / -, as in CartPole-v1 or ALE/Pong-v5"


def text_complaint(name: str, text: str) -> str | None:
    """Return an error message for an invalid free-text answer, or None."""
    words = text.split()  # line breaks and tabs count as spaces, as in the template
    unprintable = sorted({character for word in words for character in word if not character.isprintable()})
    if not words:
        return f"{name} is empty; enter at least one word"
    if len(text) > MAX_TEXT:
        return f"{name} {text[:20]!r}... has {len(text)} characters; at most {MAX_TEXT} are allowed"
    if unprintable:
        return f"{name} {text[:20]!r} contains unprintable characters: {', '.join(map(ascii, unprintable))}"
    return None


CHECKS = {
    "project_name": partial(text_complaint, "project_name"),
    "slug": slug_complaint,
    "description": partial(text_complaint, "description"),
    "author": partial(text_complaint, "author"),
    "env_id": env_complaint,
}


def main() -> None:
    """Validate the answers and exit with status 1 if one is invalid."""
    answers = json.loads(r'''{{ cookiecutter | tojson }}''')
    problems = [problem for name, check in CHECKS.items() if (problem := check(answers[name]))]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
