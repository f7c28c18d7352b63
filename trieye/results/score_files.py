"""Files of the tables of scores and pairs: CSV with all digits, Markdown and LaTeX as shown in the terminal."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from trieye.results.conversion import plain, write_table, written
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
    numbers, columns = _figures(figures, diverged, main), dict[str, Any]()
    for key in keys:
        name = key or "run"
        while name in columns or name in numbers:
            name = f"param.{name}"
        columns[name] = plain([row.get(key) for row in values])
    if path.suffix.lower() == ".csv":
        write_table(pa.table(columns | numbers), path)
        return
    other_names = [name for name in figures[0] if name != main]
    header = [*columns, "runs", main, f"{confidence:.0%} CI", *other_names]
    rows = []
    for row, group, num in zip(values, figures, diverged, strict=True):
        cells = [_shown(row.get(key)) for key in keys]
        cells += [_runs(group[main], num), number(group[main].value), interval(group[main])]
        rows.append([*cells, *(number(group[name].value) for name in other_names)])
    _write_text(path, header, rows, len(keys), notes)


def write_pairs(
    pairs: Sequence[tuple[str, str, Estimate, Estimate]],
    counts: Mapping[str, int],
    verdicts: Sequence[str],
    stat: str,
    path: Path,
    *,
    confidence: float,
    notes: Sequence[str] = (),
) -> None:
    """Write one row per comparison: X, Y, their numbers of runs, P(X > Y), the difference, and the verdict.

    Args:
        pairs: The comparisons.
        counts: Number of runs of each group.
        verdicts: The verdict of each comparison.
        stat: The aggregate whose difference is compared.
        path: The file; its suffix, one of `FORMATS`, sets the format.
        confidence: Confidence level of the intervals.
        notes: Lines below a Markdown table, and comments above a LaTeX table.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    if path.suffix.lower() == ".csv":
        columns: dict[str, Any] = {"x": [x for x, *_ in pairs], "y": [y for _, y, *_ in pairs]}
        columns |= {f"runs_{side}": [counts[label] for label in columns[side]] for side in ("x", "y")}
        for name, position in (("probability", 2), ("difference", 3)):
            estimates: list[Any] = [pair[position] for pair in pairs]
            columns[name] = _finite([estimate.value for estimate in estimates])
            for end in ("low", "high"):
                columns[f"{name}_{end}"] = [getattr(estimate, end) for estimate in estimates]
        write_table(pa.table({**columns, "verdict": verdicts}), path)
        return
    level = f"{confidence:.0%} CI"
    header = ["X", "Y", "runs", "P(X > Y)", level, f"{stat.replace('_', ' ')}, X - Y", level, "verdict"]
    rows = []
    for (x, y, chance, gap), verdict in zip(pairs, verdicts, strict=True):
        sizes = f"{counts[x]} + {counts[y]}{_runs(gap, 0).removeprefix(str(gap.n))}"
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


def _figures(figures: Sequence[Mapping[str, Estimate]], diverged: Sequence[int], main: str) -> dict[str, Any]:
    """Return the columns of numbers; a figure that does not exist is empty."""
    estimates = [group[main] for group in figures]
    return {
        "runs": [one.n for one in estimates],
        "missing": [one.n_missing for one in estimates],
        "diverged": diverged,
        main: _finite([one.value for one in estimates]),
        "low": [one.low for one in estimates],
        "high": [one.high for one in estimates],
        **{name: _finite([group[name].value for group in figures]) for name in figures[0] if name != main},
    }


def _finite(numbers: Sequence[float]) -> list[float | None]:
    return [None if np.isnan(value) else value for value in numbers]


def _shown(value: Any) -> str:
    return "-" if value is None else str(value)


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
    first, *lines = [" & ".join(_MINUS.sub("$-$", cell.translate(_TEX)) for cell in row) for row in (header, *rows)]
    comments = "".join(f"% {note}\n" for note in (*notes, r"requires \usepackage{booktabs}"))
    sides = "l" * num_keys + "r" * (len(header) - num_keys)
    body = "".join(f"{line} \\\\\n" for line in lines)
    return (
        f"{comments}\\begin{{tabular}}{{{sides}}}\n\\toprule\n{first} \\\\\n\\midrule\n"
        f"{body}\\bottomrule\n\\end{{tabular}}\n"
    )
