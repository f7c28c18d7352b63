"""Require every regression test to fail on the parent of the commit that fixed its defect.

A fixing commit names its tests in trailers, one line each: the item of the issue, then the test.

    Regression-test: 33-A1 tests/cli/test_removal.py::test_name

A test that was added after its fix names the fixing commit as well, which also corrects an earlier trailer.

The parent of the fixing commit is checked out with the tests of the commit that has the trailer. Each test must fail
there because of the behaviour: failed imports, missing names and errors in fixtures do not count.

    python soak/regressions.py                  every test
    python soak/regressions.py 33-A1 33-B       the tests of items with one of these prefixes
    python soak/regressions.py --table 33       a Markdown table of items, tests and commits; runs nothing
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[1]
TRAILER = "Regression-test"
TEST_AND_COMMIT = re.compile(r"^(.*?)(?: ([0-9a-f]{7,40}))?$")
NOT_BEHAVIOUR = re.compile(r"(ImportError|ModuleNotFoundError|NameError|AttributeError: module|fixture '.*' not found)")


@dataclass(frozen=True)
class Regression:
    """A test of one item of an issue, the commit that fixed it, and the commit that contains the test."""

    item: str
    test: str
    commit: str
    tests_of: str

    @property
    def summary(self) -> str:
        """The first line of the message of the fixing commit."""
        return git("show", "--no-patch", "--format=%s", self.commit).strip()


def git(*words: str, cwd: Path = ROOT) -> str:
    """Return the output of git."""
    return subprocess.run(["git", *words], cwd=cwd, check=True, capture_output=True, text=True).stdout


def regressions(items: Sequence[str]) -> list[Regression]:
    """Return the regressions that the trailers of the history name, oldest commit first."""
    fields = f"%h%x00%(trailers:key={TRAILER},valueonly,separator=%x01)%x00"
    log = git("log", "--reverse", "--topo-order", "--no-merges", f"--format={fields}").split("\0\n")
    by_test: dict[tuple[str, str], Regression] = {}
    for commit, trailers in (entry.split("\0")[:2] for entry in log if entry):
        for line in filter(None, trailers.split("\x01")):
            item, rest = line.split(maxsplit=1)
            test, fixing = TEST_AND_COMMIT.findall(rest.strip())[0]
            if items and not item.startswith(tuple(items)):
                continue
            if fixing:
                by_test[item, test] = Regression(item, test, fixing, commit)
            else:
                by_test.setdefault((item, test), Regression(item, test, commit, commit))
    return list(by_test.values())


def outcomes(report: Path) -> Iterator[tuple[str, str, str]]:
    """Yield name, outcome and message of each test of a JUnit report, one per parametrised case."""
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest wrote this report
        result = next((child for child in case if child.tag in {"failure", "error", "skipped"}), None)
        outcome, message = ("passed", "") if result is None else (result.tag, result.get("message") or "")
        yield case.get("name", "").split("[")[0], outcome, message


def problem(test: str, results: Sequence[tuple[str, str, str]]) -> str | None:
    """Return why a test proves nothing on the parent commit; None if it failed because of the behaviour."""
    function = test.rsplit("::", 1)[-1].partition("[")[0]
    cases = [(outcome, message) for name, outcome, message in results if name == function]
    if not cases:
        return "did not run"
    failures = [message for outcome, message in cases if outcome == "failure"]
    if not failures:
        return " and ".join(sorted({outcome for outcome, _ in cases})) + " on the parent commit"
    if all(NOT_BEHAVIOUR.match(message) for message in failures):
        return f"failed because of a missing import or name: {failures[0][:100]}"
    return None


def check(tree: Path, commit: str, tests_of: str, tests: Sequence[str]) -> dict[str, str | None]:
    """Return the problem of each test on the parent of a commit, with the tests of that commit or a later one."""
    git("checkout", "--quiet", "--force", "--detach", f"{commit}^", cwd=tree)
    git("clean", "-fdqx", cwd=tree)
    git("checkout", "--quiet", tests_of, "--", "tests", cwd=tree)
    report = tree / "regressions.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=--strict-markers"]
    subprocess.run(
        [*command, f"--junitxml={report}", *tests],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        check=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    results = list(outcomes(report)) if report.is_file() else []
    return {test: problem(test, results) for test in tests}


def main() -> None:
    """Check the regression tests, or print their table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("items", nargs="*", help="prefixes of items, such as 33-A1; none: all")
    parser.add_argument("--table", action="store_true", help="print items, tests and commits, and run nothing")
    options = parser.parse_args()
    rows = regressions(options.items)
    if options.table:
        print("| item | test | fixed by | effect |\n|---|---|---|---|")
        print("\n".join(f"| {row.item} | `{row.test}` | {row.commit} | {row.summary} |" for row in rows))
        return
    num_bad = 0
    with tempfile.TemporaryDirectory(prefix="trieye-regressions-") as directory:
        tree = Path(directory, "tree")
        git("worktree", "add", "--quiet", "--detach", str(tree), "HEAD")
        try:
            for (commit, tests_of), group in groupby(rows, key=lambda row: (row.commit, row.tests_of)):
                tests = list(group)
                problems = check(tree, commit, tests_of, list(dict.fromkeys(row.test for row in tests)))
                for row in tests:
                    reason = problems[row.test]
                    num_bad += reason is not None
                    print(f"{row.item:8} {row.commit} {row.test}: {reason or 'fails on the parent'}", flush=True)
        finally:
            git("worktree", "remove", "--force", str(tree))
    print(f"{len(rows)} regression tests, {num_bad} of them prove nothing")
    sys.exit(num_bad > 0)


if __name__ == "__main__":
    main()
