"""Run the tests of docs/private_apis.md, and print for each private API whether its library still has it.

`make canary` calls this with the newest versions. The exit code is 1 if a test failed or did not run.
"""

import importlib.metadata
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import private_apis  # noqa: E402 - of the tests, not installed

FAILED, SKIPPED, PASSED, NOT_RUN = "FAILED", "skipped", "ok", "NOT RUN"
_WORST_FIRST = (FAILED, PASSED, SKIPPED)


def outcomes(tests: list[str]) -> dict[str, str]:
    """Run tests, warnings allowed, and return the worst outcome of each over its parameters."""
    cases = defaultdict(set)
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        options = ["-q", "-p", "no:cacheprovider", "-o", "filterwarnings=default", "-m", "", f"--junitxml={report}"]
        subprocess.run([sys.executable, "-m", "pytest", *options, *tests], cwd=ROOT, check=False)
        for case in ET.parse(report).iter("testcase") if report.exists() else ():  # noqa: S314 - just written
            kinds = {child.tag for child in case}
            outcome = FAILED if kinds & {"failure", "error"} else SKIPPED if "skipped" in kinds else PASSED
            path = f"{case.get('classname', '').replace('.', '/')}.py".removeprefix("tests/")
            cases[f"{path}::{case.get('name', '').partition('[')[0]}"].add(outcome)
    return {test: next(outcome for outcome in _WORST_FIRST if outcome in kinds) for test, kinds in cases.items()}


def version_of(api: str) -> str:
    """Return name and version of the distribution of an API; Python's for the standard library."""
    top = api.partition(".")[0]
    if top in sys.stdlib_module_names:
        return f"Python {sys.version.split()[0]}"
    names = importlib.metadata.packages_distributions().get(top, [top])
    name = top if top in names else names[0]
    return f"{name} {importlib.metadata.version(name)}"


def main() -> int:
    """Print a line for each row of the table, and return the exit code."""
    rows = private_apis.table()
    results = outcomes(sorted({f"tests/{row.test}" for row in rows}))
    lines = [(results.get(row.test, NOT_RUN), version_of(row.api), row.api, row.module, row.test) for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    for line in lines:
        print("  ".join(f"{text:<{width}}" for text, width in zip(line, [*widths, 0], strict=True)))
    num_bad = sum(line[0] in {FAILED, NOT_RUN} for line in lines)
    print(f"{len(lines)} private APIs, {num_bad} whose test failed or did not run")
    return 1 if num_bad else 0


if __name__ == "__main__":
    sys.exit(main())
