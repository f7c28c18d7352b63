"""Check the answers before anything is written; `trieye new` imports the same rules."""

import importlib.util
import json
import keyword
import re
import sys
import sysconfig
from functools import partial

TAKEN = {"conf", "hydra_plugins", "template", "test", "tests", "trieye"}
ENV_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]*")
MAX_SLUG = 40
MAX_TEXT = 300


def slug_complaint(slug: str) -> str | None:
    """Say what is wrong with the name of the package, or None."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", slug):
        return f"slug {slug!r} is no package name; use lower-case letters, digits and _, beginning with a letter, as my_agent"
    if len(slug) > MAX_SLUG:
        return f"slug {slug!r} has {len(slug)} characters; at most {MAX_SLUG} are allowed"
    if keyword.iskeyword(slug) or keyword.issoftkeyword(slug):
        return f"slug {slug!r} is a keyword of Python; try {slug}_agent"
    if slug in TAKEN or slug in sys.stdlib_module_names:
        return f"slug {slug!r} would hide a module of Python or of trieye; try {slug}_agent"
    if is_installed(slug):
        return f"slug {slug!r} would hide an installed package of that name; try {slug}_agent"
    return None


def is_installed(name: str) -> bool:
    """Tell whether site-packages holds a package of that name; a checkout that is being worked on does not count."""
    spec = importlib.util.find_spec(name)
    places = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
    libraries = tuple(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    return any(place.startswith(libraries) for place in places if place)


def env_complaint(env_id: str) -> str | None:
    """Say what is wrong with the id of the environment, or None."""
    if ENV_ID.fullmatch(env_id) and len(env_id) <= 100 and env_id[-1].isalnum():
        return None
    return f"env_id {env_id!r} is no Gymnasium id; use letters, digits and _ . : / - as in CartPole-v1 or ALE/Pong-v5"


def text_complaint(name: str, text: str) -> str | None:
    """Say what is wrong with a line of free text that answers a question, or None."""
    words = text.split()  # takes line breaks and tabs as spaces, as the template does
    bad = sorted({character for word in words for character in word if not character.isprintable()})
    if not words:
        return f"{name} is empty; write a few words"
    if len(text) > MAX_TEXT:
        return f"{name} {text[:20]!r}... has {len(text)} characters; at most {MAX_TEXT} are allowed"
    if bad:
        return f"{name} {text[:20]!r} has characters that cannot be printed: {', '.join(map(ascii, bad))}"
    return None


CHECKS = {
    "project_name": partial(text_complaint, "project_name"),
    "slug": slug_complaint,
    "description": partial(text_complaint, "description"),
    "author": partial(text_complaint, "author"),
    "env_id": env_complaint,
}


def main() -> None:
    """Check what cookiecutter was told."""
    answers = json.loads(r'''{{ cookiecutter | tojson }}''')
    problems = [problem for name, check in CHECKS.items() if (problem := check(answers[name]))]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
