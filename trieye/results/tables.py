"""Tables of results for a terminal: each figure with its interval and number of runs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from trieye.process.terminal import Text, TextTable
from trieye.results.groups import Pair
from trieye.results.hyperparameters import Selection, Setting
from trieye.results.runs import as_text
from trieye.results.statistics import FEW, Estimate

MISSING = "red"

COVERAGE = (
    "Intervals of few runs are too narrow: a 95% interval contains the true mean in about 50% of cases with 2 runs, "
    "75% with 3, 80% with 4, 84% with 5, 90% with 10, if scores are normally distributed."
)


def number(value: float | None, digits: int = 4) -> str:
    """Format a number with `digits` significant digits, from 10,000 to 10^15 with all before the decimal point."""
    if value is None or np.isnan(value):
        return "-"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.{digits}g}"  # noqa: PLR2004


def interval(estimate: Estimate) -> str:
    """Format the interval of a figure, or the reason that it is missing."""
    if estimate.low is None or estimate.high is None:
        return "no CI (n=1)" if estimate.n == 1 else "no CI"
    return f"[{number(estimate.low, 3)}, {number(estimate.high, 3)}]"


def runs(estimate: Estimate) -> Text:
    """Format the numbers of runs and missing runs of a figure."""
    missing_text = f" ({estimate.n_missing} missing)" if estimate.n_missing else ""
    return Text.assemble(str(estimate.n), (missing_text, MISSING))


def scores_table(rows: Mapping[str, Mapping[str, Estimate]], main: str, *, title: str, confidence: float) -> TextTable:
    """Return a table with one row per group: the main figure with its interval, then the other figures.

    Args:
        rows: Figures of each group by name; all groups have the same figures.
        main: Name of the figure shown with an interval.
        title: Title of the table.
        confidence: Confidence level of the intervals.
    """
    other_names = [name for figures in list(rows.values())[:1] for name in figures if name != main]
    headings = [name.replace("_", " ") for name in ("runs", main, f"{confidence:.0%} CI", *other_names)]
    table = _table("", title=title, right=headings, bold=headings[1])
    for label, figures in rows.items():
        cells = [number(figures[name].value) for name in other_names]
        figure = figures[main]
        table.add_row(label, runs(figure), number(figure.value), interval(figure), *cells)
    _note_coverage(table, [figures[main] for figures in rows.values()])
    return table


def _table(*left: str, title: str, right: Sequence[str], bold: str = "") -> TextTable:
    """Return a table with texts on the left and numbers on the right; `bold` is the heading of the main numbers."""
    table = TextTable(*left, title=title)
    for name in right:
        table.add_column(name, justify="right", style="bold" if name == bold else "", no_wrap=True)
    return table


def _note_coverage(table: TextTable, estimates: Iterable[Estimate]) -> None:
    if any(estimate.low is not None and estimate.n < FEW for estimate in estimates):
        table.note(COVERAGE)


def pairs_table(pairs: Sequence[Pair], stat: str, *, title: str) -> TextTable:
    """Return a table of pairwise comparisons: X, Y, P(X > Y), and the difference of an aggregate, with intervals.

    Args:
        pairs: The comparisons.
        stat: The aggregate.
        title: Title of the table.
    """
    table = _table("X", "Y", title=title, right=("runs", "P(X > Y)", f"{stat.replace('_', ' ')}, X - Y"))
    for pair in pairs:
        sizes = Text.assemble(" + ".join(map(str, pair.sizes)), runs(pair.gap)[len(str(pair.gap.n)) :])
        chance_text = _with_interval(pair.chance) + ("*" if is_separate(pair.chance) else " ")
        table.add_row(pair.x, pair.y, sizes, chance_text, _with_interval(pair.gap))
    if any(is_separate(pair.chance) for pair in pairs):
        table.note(f"* {SEPARATE}")
    if any(1 < size < FEW for pair in pairs for size in pair.sizes):
        table.note(COVERAGE)
    return table


SEPARATE = "All pairs of runs agree, so the bootstrap interval has zero width. This does not prove certainty."


def is_separate(chance: Estimate) -> bool:
    """Return whether the interval of a probability of improvement has zero width, which few runs reach by chance."""
    return chance.low is not None and chance.low == chance.high


def _with_interval(estimate: Estimate) -> Text:
    return Text.assemble((number(estimate.value), "bold"), f" {interval(estimate)}")


def settings_table(
    lines: Mapping[str, Sequence[Setting]], param: str, labels: Mapping[str, Sequence[str]], *, title: str
) -> TextTable:
    """Return a table of the figures for each value of a parameter, with other varying parameters at their best.

    Args:
        lines: Figures of each value, by group.
        param: The parameter.
        labels: Labels of the configs of each group.
        title: Title of the table.
    """
    has_others = any(len(setting.configs) > 1 for settings in lines.values() for setting in settings)
    headings = (param.rpartition(".")[2], "runs", *(("at best", "mean of all") if has_others else ("value",)))
    table = _table(*([""] if len(lines) > 1 else []), title=title, right=headings)
    if has_others:
        table.add_column("best config")
    for label, settings in lines.items():
        for setting in settings:
            row: list[Any] = [as_text(setting.value), runs(setting.best), _with_interval(setting.best)]
            if has_others:
                best_label = "" if setting.best_config is None else labels[label][setting.best_config]
                row += [number(setting.mean.value), best_label]
            table.add_row(*([label, *row] if len(lines) > 1 else row))
    return table


def selection_table(selection: Selection, labels: Sequence[str], stat: str, *, title: str, max_rows: int) -> TextTable:
    """Return a table of the configs, best first, with the probability that each is the best."""
    table = _table("", title=title, right=("runs", stat, "CI", "P(best)"), bold=stat)
    table.add_column("")
    for row in selection.ranked[:max_rows]:
        figure = selection.estimates[row]
        is_judged = None not in (figure.low, selection.estimates[selection.best].low)
        note = "best" if row == selection.best else "indistinguishable" if row in selection.not_worse else ""
        note = note if is_judged or not note or row == selection.best else "too few runs"
        chance = number(float(selection.p_best[row])) if is_judged else "-"
        table.add_row(labels[row], runs(figure), number(figure.value), interval(figure), chance, note)
    if len(selection.ranked) > max_rows:
        table.note(f"and {len(selection.ranked) - max_rows} more")
    _note_coverage(table, (selection.estimates[row] for row in selection.ranked[:max_rows]))
    return table


def differences_table(
    differences: Mapping[str, Sequence[Any]], labels: Sequence[str], *, max_rows: int = 100
) -> TextTable:
    """Return a table of the differing parameters of configs."""
    table = TextTable("parameter", *labels, title="differing parameters")
    for name, values in list(differences.items())[:max_rows]:
        table.add_row(name, *("-" if value is None else str(value) for value in values))
    if len(differences) > max_rows:
        table.note(f"and {len(differences) - max_rows} more")
    return table
