"""Sphinx configuration of the documentation site: `make docs` builds it into build/docs."""

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).parent
ROOT = HERE.parent
os.environ["COLUMNS"] = "100"  # width of the help of commands
sys.path[:0] = [str(HERE), str(ROOT)]

import generated  # noqa: E402 - needs the path above
from pydantic import BaseModel  # noqa: E402
from sphinx.domains.python import PyObject  # noqa: E402

from trieye.version import VERSION  # noqa: E402

if TYPE_CHECKING:
    from sphinx.application import Sphinx

# the source directory is the root of the repository, so relative links work on GitHub and on the site
project = "trieye"
author = copyright = "The trieye authors"  # noqa: A001 - Sphinx reads this name
version = release = VERSION
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "examples/README.md"]
exclude_patterns = [
    "README.md",
    "docs/static",
    *(path.name for path in ROOT.iterdir() if path.is_dir() and path not in (HERE, ROOT / "examples")),
]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
templates_path: list[str] = []
suppress_warnings = ["ref.python"]  # names in `Attributes:` are looked up as objects, and several classes have a `name`
default_role = "code"  # docstrings quote code in single backticks

myst_heading_anchors = 4  # the anchors that GitHub gives
myst_enable_extensions = ["deflist"]
napoleon_use_ivar = True  # attributes of named tuples are members, too
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

html_theme = "furo"
pygments_dark_style = "github-dark"  # the default underlines names, like links
html_title = f"trieye {VERSION}"
html_static_path = [str(HERE / "static")]
html_css_files = ["site.css"]
html_copy_source = True  # llms.txt links the Markdown
html_use_index = False  # the search finds names
html_show_sourcelink = False

linkcheck_timeout = 20
linkcheck_retries = 2
linkcheck_rate_limit_timeout = 60
linkcheck_anchors = (
    False  # some sites add anchors by scripts; anchors of these pages are checked by tests/test_readme.py
)
linkcheck_ignore = [
    r"https?://(localhost|127\.0\.0\.1)",  # servers on the reader's machine
    r"https?://(www\.)?example\.(org|com)",  # examples
]
HIDDEN = {"model_config", "model_post_init", "spellings"}
FORWARD = f'<meta charset="utf-8"><meta http-equiv="refresh" content="0; url={root_doc}.html"><title>trieye</title>'


def fill_page(app: "Sphinx", docname: str, source: list[str]) -> None:
    """Replace the markers of a page by generated Markdown; add the navigation to the index."""
    source[0] = generated.filled(source[0])
    if docname == root_doc:
        source[0] += generated.toctrees()


def mark_code(app: "Sphinx", object_type: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Mark the indented code of a docstring as code for reStructuredText."""
    if object_type in {"attribute", "property"}:
        lines.insert(0, "")  # napoleon takes the words before a colon in the first line for a type
    for number in range(len(lines) - 1, 0, -1):
        line, before = lines[number], lines[number - 2] if number > 1 else ""
        is_indented = _indent(line) >= _indent(before) + 4 and not lines[number - 1]
        if before and is_indented:
            lines[number:number] = [f"{' ' * _indent(before)}.. code-block:: python", ""]
        elif lines[number - 1].strip() == "Example:" and not line.lstrip().startswith(">>>"):
            last = next((n for n in range(number, len(lines)) if not lines[n]), len(lines))
            code = [f"    {part}" for part in lines[number:last]]
            lines[number:last] = [f"{' ' * _indent(line)}.. code-block:: python", "", *code]


def simplify_signature(
    app: "Sphinx",
    object_type: str,
    name: str,
    obj: object,
    options: object,
    signature: str | None,
    returned: str | None,
) -> tuple[str | None, str | None]:
    """Show config models as `(**keys)`, protocols without arguments, and default factories as `...`, for Sphinx."""
    if isinstance(obj, type) and issubclass(obj, BaseModel):
        return "(**keys)", None
    if isinstance(obj, type) and getattr(obj, "_is_protocol", False):
        return "", None
    return signature and signature.replace("<factory>", "..."), returned


def skip_member(app: "Sphinx", object_type: str, name: str, obj: object, skip: bool, options: object) -> bool | None:
    """Skip members of pydantic, spellings of 0.1.5, and fields of named tuples, which `Attributes:` describes."""
    is_field = (obj.__doc__ or "").startswith("Alias for field number")
    return True if is_field or name in HIDDEN else None


def mark_short_words(app: "Sphinx", page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Mark the words of inline code that fit on a line of a phone, which site.css keeps whole."""
    if "body" in context:
        context["body"] = re.sub(
            r'<span class="pre">([^<]{1,40})</span>', r'<span class="pre short">\1</span>', context["body"]
        )


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def write_texts(app: "Sphinx", error: Exception | None) -> None:
    """Write llms.txt, and an index.html at the root of the site that forwards to the index."""
    if error is None:
        (app.outdir / "llms.txt").write_text(generated.llms(), encoding="utf-8")
        (app.outdir / "index.html").write_text(FORWARD, encoding="utf-8")


def setup(app: "Sphinx") -> dict[str, Any]:
    """Register the hooks of the site."""
    app.connect("source-read", fill_page)
    app.connect("autodoc-process-docstring", mark_code, priority=400)  # before napoleon
    app.connect("autodoc-process-signature", simplify_signature)
    app.connect("autodoc-skip-member", skip_member)
    app.connect("html-page-context", mark_short_words)
    app.connect("build-finished", write_texts)
    for field in PyObject.doc_field_types:
        field.label = "Attributes" if field.name == "variable" else field.label  # Sphinx: "Variables"
    return {"parallel_read_safe": True}
