"""Files of the tables of scores and pairs: CSV with all digits, Markdown and LaTeX as shown in the terminal."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from trieye.results.conversion import plain, write_table, written
from trieye.results.groups import Pair
from trieye.results.statistics import Estimate
from trieye.results.tables import interval, is_separate, number

FORMATS = ("csv", "md", "tex")
"""Suffixes of the files."""

_TEX = str.maketrans(
    {
        "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
        "<": r"\textless{}", ">": r"\textgreater{}",
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    }
)  # fmt: skip
_MINUS = re.compile(r"(?<![^\[ ])-(?=[\d.])")
"""The sign of a number, which LaTeX would print as a hyphen."""
_OPTION = re.compile(r"^(?=\s*[\[*])")
"""The start of a row that LaTeX would read as an option of the preceding rule or line break."""


def write_scores(
    values: Sequence[Mapping[str, Any]],
    figures: Sequence[Mapping[str, Estimate]],
    diverged: Sequence[int],
    main: str,
    path: Path,
    *,
    confidence: float,
    notes: Sequence[str] = (),
) -> None:
    """Write one row per group: its parameters, its numbers of runs, and its figures.

    A parameter with the name of another column becomes `param.<name>`.

    Args:
        values: Compared parameters of each group; None is written as `null`, a missing one is empty.
        figures: Figures of each group by name; all groups have the same figures.
        diverged: Number of diverged runs of each group.
        main: Name of the figure with an interval.
        path: The file; its suffix, one of `FORMATS`, sets the format.
        confidence: Confidence level of the intervals.
        notes: Lines below a Markdown table, and comments above a LaTeX table.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    values = [{key: "null" if value is None else value for key, value in row.items()} for row in values]
    keys = list(dict.fromkeys(key for row in values for key in row))
    mains, other_names = [group[main] for group in figures], [name for name in figures[0] if name != main]
    numbers: dict[str, Any] = {"runs": [one.n for one in mains], "missing": [one.n_missing for one in mains]}
    numbers |= {"diverged": diverged, **_columns(main, mains)}
    numbers |= {name: _columns(name, [group[name] for group in figures])[name] for name in other_names}
    columns: dict[str, Any] = {}
    for key in keys:
        name = key or "run"
        while name in columns or name in numbers:
            name = f"param.{name}"
        columns[name] = plain([row.get(key) for row in values])
    if path.suffix.lower() == ".csv":
        write_table(pa.table(columns | numbers), path)
        return
    header = [*columns, "runs", main, f"{confidence:.0%} CI", *other_names]
    rows = []
    for row, group, num in zip(values, figures, diverged, strict=True):
        cells = [str(row.get(key, "-")) for key in keys]
        cells += [_runs(group[main], num), number(group[main].value), interval(group[main])]
        rows.append([*cells, *(number(group[name].value) for name in other_names)])
    _write_text(path, header, rows, len(keys), notes)


def write_pairs(pairs: Sequence[Pair], stat: str, path: Path, *, confidence: float, notes: Sequence[str] = ()) -> None:
    """Write one row per comparison: X, Y, their numbers of runs, P(X > Y), the difference, and the verdict.

    Args:
        pairs: The comparisons.
        stat: The aggregate whose difference is compared.
        path: The file; its suffix, one of `FORMATS`, sets the format.
        confidence: Confidence level of the intervals.
        notes: Lines below a Markdown table, and comments above a LaTeX table.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    if path.suffix.lower() == ".csv":
        columns: dict[str, Any] = {"x": [pair.x for pair in pairs], "y": [pair.y for pair in pairs]}
        columns |= {"runs_x": [pair.sizes[0] for pair in pairs], "runs_y": [pair.sizes[1] for pair in pairs]}
        columns |= _columns("probability", [pair.chance for pair in pairs], "probability_")
        columns |= _columns("difference", [pair.gap for pair in pairs], "difference_")
        write_table(pa.table({**columns, "verdict": [pair.verdict for pair in pairs]}), path)
        return
    level = f"{confidence:.0%} CI"
    header = ["X", "Y", "runs", "P(X > Y)", level, f"{stat.replace('_', ' ')}, X - Y", level, "verdict"]
    rows = []
    for x, y, (num_x, num_y), chance, gap, verdict, _ in pairs:
        sizes = f"{num_x} + {num_y}{_runs(gap, 0).removeprefix(str(gap.n))}"
        mark = "*" if is_separate(chance) else ""
        estimate_cells = [number(chance.value) + mark, interval(chance), number(gap.value), interval(gap)]
        rows.append([x, y, sizes, *estimate_cells, verdict])
    _write_text(path, header, rows, 2, notes)


def _write_text(
    path: Path, header: Sequence[str], rows: Sequence[Sequence[str]], num_keys: int, notes: Sequence[str]
) -> None:
    """Write a Markdown or LaTeX table, whose first `num_keys` columns are aligned left."""
    text = _markdown if path.suffix.lower() == ".md" else _latex
    with written(path) as scratch:
        scratch.write_bytes(text(header, rows, num_keys, notes).encode())


def _columns(name: str, estimates: Sequence[Estimate], prefix: str = "") -> dict[str, Any]:
    """Return the columns of figures and their intervals; a figure that does not exist is empty."""
    values = [None if np.isnan(estimate.value) else estimate.value for estimate in estimates]
    lows, highs = ([getattr(estimate, end) for estimate in estimates] for end in ("low", "high"))
    return {name: values, f"{prefix}low": lows, f"{prefix}high": highs}


def _runs(estimate: Estimate, num_diverged: int) -> str:
    counts = {"missing": estimate.n_missing, "diverged": num_diverged}
    notes = ", ".join(f"{number} {name}" for name, number in counts.items() if number)
    return f"{estimate.n} ({notes})" if notes else str(estimate.n)


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]], num_keys: int, notes: Sequence[str]) -> str:
    sides = ["---"] * num_keys + ["---:"] * (len(header) - num_keys)
    lines = [[cell.replace("|", r"\|").replace("\n", " ") for cell in row] for row in (header, *rows)]
    table = "".join(f"| {' | '.join(line)} |\n" for line in (lines[0], sides, *lines[1:]))
    return table + "".join("\n{}\n".format(note.replace("*", r"\*")) for note in notes)


def _latex(header: Sequence[str], rows: Sequence[Sequence[str]], num_keys: int, notes: Sequence[str]) -> str:
    lines = [" & ".join(_MINUS.sub("$-$", cell.translate(_TEX)) for cell in row) for row in (header, *rows)]
    first, *lines = [_OPTION.sub("{}", line) for line in lines]
    comments = "".join(f"% {note}\n" for note in (*notes, r"requires \usepackage{booktabs}"))
    sides = "l" * num_keys + "r" * (len(header) - num_keys)
    body = "".join(f"{line} \\\\\n" for line in lines)
    return (
        f"{comments}\\begin{{tabular}}{{{sides}}}\n\\toprule\n{first} \\\\\n\\midrule\n"
        f"{body}\\bottomrule\n\\end{{tabular}}\n"
    )
