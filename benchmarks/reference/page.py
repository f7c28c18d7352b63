"""Write docs/benchmarks from the stored curves: figures with intervals, pictures and provenance of each table.

    .venv/bin/python benchmarks/reference/page.py           # all tables
    .venv/bin/python benchmarks/reference/page.py classic

Needs only the files of `data/` and `tables/`, and an environment with trieye.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from run import DATA, METRICS, ROOT, TABLES, figure, scores, table_name, table_names

from trieye.process.text import counted
from trieye.results import Results, load
from trieye.results.origins import Origin
from trieye.results.statistics import aggregate, probability_of_improvement
from trieye.results.tables import COVERAGE

DOCS = ROOT / "docs" / "benchmarks"
BY = "env.id,tags.algorithm,tags.library"
CREATED = re.compile("<time datetime=.*?</time>")
HOURS = (
    "Hours are the sum over the runs, of which two ran at a time. They include other work of the machine, and pauses "
    "of interrupted runs."
)
LIBRARIES = {"trieye": "trieye", "sb3": "stable-baselines3"}


@dataclass(frozen=True)
class Table:
    """A reference table with stored curves.

    Attributes:
        name: Name of its file in `tables/`, without suffix.
        spec: Content of that file.
    """

    name: str
    spec: dict[str, Any]

    @cached_property
    def paths(self) -> list[Path]:
        """The stored curves of its complete sides."""
        return sorted((DATA / self.name).glob("*.parquet"))

    @cached_property
    def results(self) -> Results:
        """All runs."""
        return load(self.paths)

    def command(self, action: str, *words: str) -> list[str]:
        """Return a command of `trieye results` for this table, relative to the root of the repository."""
        sources = [str(path.relative_to(ROOT)) for path in self.paths]
        return ["results", action, *sources, "--metric", METRICS, "--by", BY, *words]

    def write(self) -> None:
        """Write the page, its pictures and its report."""
        report = DOCS / f"{self.name}.html"
        before = report.read_text() if report.exists() else ""
        options = ["--task", "env.id", "--x", "env_steps", "--title", self.spec["title"], "-o", str(report)]
        trieye(self.command("report", *options))
        if CREATED.sub("", report.read_text()) == CREATED.sub("", before):
            report.write_text(before)  # only the time of its creation has changed
        parts = [f"# {self.spec['title']}", self._introduction(), self._comparison(), *self._pictures()]
        parts += ["## Provenance", self._provenance()]
        parts += [
            "## Limits",
            self.spec["limits"].strip(),
            "## Reproduce a row",
            self._reproduction(),
        ]
        (DOCS / f"{self.name}.md").write_text("\n\n".join(parts) + "\n")

    def _introduction(self) -> str:
        missing = [
            cell for cell, library in self._planned() if not (DATA / self.name / f"{cell}-{library}.parquet").exists()
        ]
        pending = f" Not finished yet: {', '.join(dict.fromkeys(missing))}." if missing else ""
        has_peer = any(library == "sb3" for _, library in self._planned())
        pairs = (
            "Probabilities are estimated from all pairs of a run of trieye and a run of stable-baselines3. "
            if has_peer
            else ""
        )
        return (
            f"{self.spec['about'].strip()}\n\nScores are the mean of the last 10 % of the evaluations of a run; "
            f"figures are interquartile means over seeds with 95 % bootstrap intervals. {COVERAGE} "
            f"{pairs}Seeds were fixed in advance, and a cell is shown when all of its runs are complete.{pending} "
            f"All figures, profiles and runs: [{self.name}.html]({self.name}.html)."
        )

    def _planned(self) -> Iterator[tuple[str, str]]:
        for cell, parts in self.spec["cells"].items():
            yield from ((cell, library) for library in LIBRARIES if library in parts)

    def _pictures(self) -> Iterator[str]:
        for task in self.results.split("env.id"):
            path = DOCS / f"{self.name}_{str(task).rpartition('/')[2].lower()}.svg"
            trieye(self.command("curve", "--where", f"env.id={task}", "--x", "env_steps", "-o", str(path)))
            yield f"![Return of evaluations over environment steps on {_shown(task)}, with 95 % intervals]({path.name})"

    def _comparison(self) -> str:
        lines = [
            "| environment | algorithm | trieye | stable-baselines3 | probability that trieye is better | seeds |",
            "|---|---|---|---|---|---|",
        ]
        for task, on_task in sorted(self.results.split("env.id").items()):
            for algorithm, runs in sorted(on_task.split("tags.algorithm").items()):
                scores_by_library = {library: scores(part) for library, part in runs.split("tags.library").items()}
                figures = [
                    figure(aggregate(scores_by_library[library])) if library in scores_by_library else "-"
                    for library in LIBRARIES
                ]
                has_both = len(scores_by_library) == len(LIBRARIES)
                chance = "-"
                if has_both:
                    ours, theirs = (scores_by_library[library] for library in LIBRARIES)
                    chance = figure(probability_of_improvement(ours, theirs))
                num = " + ".join(str(len(scores_by_library.get(library, ()))) for library in LIBRARIES)
                lines.append(f"| {_shown(task)} | {algorithm} | {' | '.join(figures)} | {chance} | {num} |")
        return "\n".join(lines)

    def _provenance(self) -> str:
        lines = [
            "| environment | algorithm | library | hours of all seeds | versions | commit | processor |",
            "|---" * 7 + "|",
        ]
        for path in self.paths:
            runs = load(path)
            first = runs.runs[0]
            origins = [origin for run in runs if (origin := Origin.of(run)) is not None]
            provenance = origins[0].provenance if origins else None
            packages = {} if provenance is None else provenance.packages
            library = first.tags["tags.library"]
            shown = ["torch", "gymnasium", *([] if library == "trieye" else ["stable_baselines3"])]
            versions = ", ".join(
                f"{name} {packages.get(name, packages.get(name.replace('_', '-'), '?'))}" for name in shown
            )
            commit = "" if provenance is None or provenance.commit is None else provenance.commit.sha[:10]
            machine = (
                ""
                if provenance is None
                else f"{provenance.machine.cpu}, {counted(provenance.machine.num_cpus, 'core')}"
            )
            hours = sum(origin.duration_s or 0.0 for origin in origins) / 3600
            named = (_shown(first.params["env.id"]), first.tags["tags.algorithm"], LIBRARIES[library])
            cells = (*named, f"{hours:.2f}")
            lines.append(f"| {' | '.join((*cells, versions, commit, machine))} |")
        return "\n".join([HOURS, "", *lines])

    def _reproduction(self) -> str:
        complete = {path.stem.rpartition("-")[0] for path in self.paths}
        cell, *others = sorted(self.spec["cells"], key=lambda cell: cell not in complete)
        both = " with both libraries" if "sb3" in self.spec["cells"][cell] else ""
        names = ", ".join(f"`{other}`" for other in others)
        more = f" The other {'cells are' if len(others) > 1 else 'cell is'} {names}." if others else ""
        script = ".venv/bin/python benchmarks/reference"
        side = "; `--library trieye` or `--library sb3` repeats one" if both else ""
        return (
            f"    make .venv/.ready\n    {script}/run.py {self.name} --cell {cell} --again\n\n"
            f"repeats `{cell}`{both} in `.reference/`{side}. At the end it prints the score with its interval and the "
            "number of evaluations with the same value as the stored ones, which it replaces in "
            f"`benchmarks/reference/data/`. `{script}/page.py {self.name}` rebuilds this page from them.{more}\n\n"
            "The first call installs all libraries of the tables into `.peers/` (300 MB). The same command continues "
            "after Ctrl-C or a kill. To show the progress, type "
            f"`.venv/bin/trieye sweep status .reference/sweeps/{self.name}/{cell}/trieye`."
        )


def _shown(task: object) -> str:
    """Return the id of an environment without the module that registers it."""
    return str(task).rpartition(":")[2]


def trieye(words: list[str]) -> None:
    """Run a command of trieye in the root of the repository."""
    done = subprocess.run(
        [sys.executable, "-m", "trieye.cli", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"trieye {shlex.join(words)}: {done.stderr}")


def main() -> None:
    """Write the pages of tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", type=table_name, metavar="TABLE", help="default: all")
    DOCS.mkdir(parents=True, exist_ok=True)
    for name in parser.parse_args().tables or table_names():
        table = Table(name, yaml.safe_load((TABLES / f"{name}.yaml").read_text()))
        if table.paths:
            table.write()
            print(json.dumps({"table": table.name, "runs": len(table.results)}))


if __name__ == "__main__":
    main()
