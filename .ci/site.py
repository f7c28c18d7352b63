"""Add a build of the documentation to a site of several versions, and list all versions in its index.html.

`python .ci/site.py build/docs site 0.2.0` replaces site/0.2.0/ by build/docs, and writes site/index.html.
"""

import shutil
import sys
from pathlib import Path

from packaging.version import InvalidVersion, Version

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>trieye</title>
<style>:root {{ color-scheme: light dark }}
body {{ font: 1.1rem/1.6 sans-serif; margin: 3rem auto; max-width: 30rem }}</style>
</head><body><h1>trieye</h1><p>Documentation of each version, newest first:</p><ul>
{entries}
</ul></body></html>
"""


def versions_in(site: Path) -> list[Version]:
    """Return the versions of a site, newest first."""
    versions = []
    for folder in site.iterdir():
        try:
            versions += [Version(folder.name)] if folder.is_dir() else []
        except InvalidVersion:
            continue
    return sorted(versions, reverse=True)


def add(build: Path, site: Path, name: str) -> None:
    """Copy a build to the folder of its version, and write the index.

    Args:
        build: Output of `make docs`.
        site: Root of the site; created if missing.
        name: The version.
    """
    folder = site / str(Version(name))
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(build, folder)
    entries = "\n".join(f'<li><a href="{version}/">{version}</a></li>' for version in versions_in(site))
    (site / "index.html").write_text(PAGE.format(entries=entries), encoding="utf-8")
    (site / ".nojekyll").touch()  # GitHub Pages would omit folders that begin with an underscore, such as _static


if __name__ == "__main__":
    add(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
