"""Plots of results by matplotlib: legible at the column width of a paper, in grey, and for color-blind readers.

Each function returns a `matplotlib.figure.Figure`, which `save` writes; no function opens a window.
"""

import io
import re
import textwrap
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError
from trieye.results.aligned import Floats, stretches, well_supported
from trieye.results.conversion import written
from trieye.results.hyperparameters import Setting
from trieye.results.runs import as_text
from trieye.results.selection import as_key
from trieye.results.statistics import Band, Estimate
from trieye.sweeps.grid import headings
from trieye.sweeps.importance import number_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = ("png", "svg", "pdf")
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
"""Colors of Okabe and Ito (2008) that are distinguishable from white and black, and a grey."""
_LINES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_WIDTH, _HEIGHT = 4.8, 3.2
"""Inches; with a font of 9 points, legible at a column width of 3.3 inches."""
_STYLE: dict[Any, Any] = {
    "font.size": 9, "axes.titlesize": 9, "axes.labelsize": 9, "legend.fontsize": 8, "legend.frameon": False,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25, "grid.linewidth": 0.6,
    "lines.linewidth": 1.5, "svg.fonttype": "none", "svg.hashsalt": "trieye", "savefig.dpi": 200, "pdf.fonttype": 42,
    "font.family": "sans-serif", "axes.formatter.useoffset": False,
}  # fmt: skip
_LEAST_RATIO, _DECADE, _MANY_DECADES = 3.0, 10.0, 100.0
_MOST_TICKS = 7
_LONGEST, _LINE = 60, 30
"""Maximum characters of a name and of one of its lines; longer names leave no room for the axes."""
_ABSENT = -0.12
"""Height of configs without the key of an axis of parallel coordinates."""
_FIRST_WIDE = "\N{CJK RADICAL REPEAT}"
_FRACTION = re.compile(r"-?\d+\.\d+")
_FONT = re.compile(r"font-family: [^;]*;? ?")
_NO_XML = re.compile("[^ -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NAMES = {"step": "step", "env_steps": "environment steps", "updates": "updates", "wall_time": "wall time [s]"}


def style() -> AbstractContextManager[None]:
    """Return the rc context for creating and saving figures."""
    return mpl.rc_context(_STYLE)


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the file's suffix.

    Raises:
        ConfigurationError: The suffix is unknown, or the file cannot be written.
    """
    suffix = path.suffix.lstrip(".").lower()
    if suffix not in FORMATS:
        is_table = suffix in ("csv", "parquet", "feather")
        hint = "; `trieye results export` writes points" if is_table else did_you_mean(suffix, FORMATS)
        raise ConfigurationError(f"{path}: unknown image format {suffix!r}{hint} (choose from: {', '.join(FORMATS)})")
    metadata = {"Date": None} if suffix == "svg" else {}
    with style(), written(path) as scratch:
        figure.savefig(scratch, format=suffix, metadata=metadata)


def inline(figure: Figure, name: str) -> str:
    """Convert a figure to an inline SVG element of an HTML page.

    The element has no size, black is `currentColor`, and `COLORS` become `var(--series-0)`, `var(--series-1)`, ..., so
    that the page's stylesheet determines its appearance.

    Args:
        figure: The figure.
        name: Prefix of its ids, a word; unique within the page.
    """
    buffer = io.StringIO()
    with style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the browser renders the text
        warnings.filterwarnings("ignore", "constrained_layout not applied")  # long wide labels
        no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=no_metadata)
    root = ET.fromstring(buffer.getvalue())  # noqa: S314 - matplotlib's output
    root.attrib = {"viewBox": root.attrib["viewBox"]}
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {key.rpartition("}")[2]: _of_page(key, value, name) for key, value in element.attrib.items()}
        element.text, element.tail = ((text or "").strip() or None for text in (element.text, element.tail))
    for parent in root.iter("defs"):
        for sheet in parent.findall("style"):  # it would apply to the whole page
            parent.remove(sheet)
    return ET.tostring(root, encoding="unicode")


def _of_page(key: str, value: str, name: str) -> str:
    """Adapt an attribute of an SVG element to the page."""
    if key == "id":
        return f"{name}-{value}"
    if key == "d":
        return _FRACTION.sub(lambda match: f"{float(match[0]):.2f}".rstrip("0").rstrip("."), " ".join(value.split()))
    if key == "style":
        for number, color in enumerate(COLORS):
            value = value.replace(color.lower(), f"var(--series-{number})")
        return _FONT.sub("", value.replace("#000000", "currentColor"))
    return value.replace("#", f"#{name}-") if value.startswith(("#", "url(#")) else value


_PAIR = 2
"""Number of runs whose interval is their range: where two curves cross, a band would have no width."""


def curves(
    bands: Mapping[str, Band],
    metric: str,
    x: str,
    *,
    what: str,
    runs: Mapping[str, Any] | None = None,
    marks: Iterable[tuple[float, str]] = (),
) -> Figure:
    """Plot learning curves with interval bands and run counts.

    A curve is drawn where enough runs have points, and thinner where some runs have none. A diamond marks each change
    in the number of runs, a dot with an error bar each isolated point.

    Args:
        bands: The curves by label.
        metric: Name of the metric, for the axis label.
        x: Name of the x axis.
        what: Aggregate and interval, for the axis label.
        runs: Curves of single runs `[run, point]` by label, drawn faintly.
        marks: Positions on the x axis and texts of vertical lines.
    """
    figure, axes = _figure()
    for index, (label, full_band) in enumerate(bands.items()):
        band, run_at = full_band.without_spikes(), full_band.at
        n = np.where(well_supported(band.at, band.n), band.n, 0)
        if not (is_drawn := n > 0).any():
            continue
        color, line = COLORS[index % len(COLORS)], _LINES[index // len(COLORS) % len(_LINES)]
        for run in (runs or {}).get(label, ()):
            axes.plot(run_at, run, color=color, linewidth=0.6, alpha=0.35)
            if points := _isolated(run):
                axes.plot(run_at[points], run[points], ".", color=color, markersize=4, alpha=0.35)
        value, low, high = (np.where(is_drawn, line, np.nan) for line in (band.value, band.low, band.high))
        axes.fill_between(band.at, low, high, where=n > _PAIR, color=color, alpha=0.18, linewidth=0)
        for end in (low, high) if (n == _PAIR).any() else ():
            axes.plot(band.at, np.where(n == _PAIR, end, np.nan), color=color, linewidth=0.6, alpha=0.35)
        num_runs = "-".join(str(count) for count in dict.fromkeys((n[is_drawn].min(), n.max())))
        complete = np.where(n == n.max(), value, np.nan)
        axes.plot(band.at, complete, color=color, linestyle=line, label=f"{_plain(label)} (n={num_runs})")
        axes.plot(band.at, value, color=color, linestyle=line, linewidth=0.75)
        if points := _isolated(value):
            axes.vlines(band.at[points], low[points], high[points], color=color, linewidth=4, alpha=0.35)
            axes.plot(band.at[points], value[points], "o", color=color, markersize=4)
        changes = np.flatnonzero(is_drawn[1:] & is_drawn[:-1] & (np.diff(n) != 0)) + 1
        axes.plot(band.at[changes], value[changes], "D", color=color, markersize=6, markeredgecolor="white", zorder=3)
    for index, (position, text) in enumerate(marks):
        line = ("--", ":", "-.")[index % 3]
        axes.axvline(position, color="#555555", linestyle=line, linewidth=1.0, label=_plain(text), zorder=0)
    axes.set_xlabel(_NAMES.get(x, x))
    is_aggregate = any(band.n.max(initial=0) > 1 for band in bands.values())
    axes.set_ylabel(f"{_plain(metric)}\n{what}" if is_aggregate else _plain(metric))
    _large_numbers(axes)
    _legend(figure, axes)
    return figure


def _isolated(values: Floats) -> list[int]:
    """Return the indices of values between missing ones, where a line is invisible."""
    return [int(stretch[0]) for stretch in stretches(~np.isnan(values)) if len(stretch) == 1]


def profiles(bands: Mapping[str, Band], metric: str) -> Figure:
    """Plot performance profiles: the fraction of runs with a higher score, over the score."""
    figure, axes = _figure()
    for index, (label, band) in enumerate(bands.items()):
        color, line = COLORS[index % len(COLORS)], _LINES[index // len(COLORS) % len(_LINES)]
        axes.plot(band.at, band.value, color=color, linestyle=line, label=_plain(label), drawstyle="steps-post")
        axes.fill_between(band.at, band.low, band.high, color=color, alpha=0.18, linewidth=0, step="post")
    axes.set_xlabel(f"{_plain(metric)}  (τ)")
    axes.set_ylabel("fraction of runs with more than τ")
    axes.set_ylim(-0.02, 1.02)
    _legend(figure, axes)
    return figure


def intervals(rows: Mapping[str, Estimate], label: str, *, labels: Sequence[str]) -> Figure:
    """Plot aggregates with intervals, one per row, in the same colors as the curves of `labels`."""
    figure, axes = _figure(height=0.75 + 0.32 * len(rows))
    for row, (name, estimate) in enumerate(rows.items()):
        color = COLORS[labels.index(name) % len(COLORS)]
        if estimate.low is not None and estimate.high is not None:
            axes.plot([estimate.low, estimate.high], [row, row], color=color, linewidth=4, alpha=0.35)
        axes.plot(estimate.value, row, color=color, marker="o", markersize=5, linestyle="none")
    axes.set_yticks(
        range(len(rows)), [textwrap.fill(f"{_plain(name)} (n={estimate.n})", _LINE) for name, estimate in rows.items()]
    )
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(_plain(label))
    return figure


def sensitivity(lines: Mapping[str, Sequence[Setting]], param: str, metric: str) -> Figure:
    """Plot scores over the values of a parameter: of the best config with each value, and the mean of all its configs.

    Numbers are connected by lines, on a logarithmic axis if their spacing is logarithmic. Categories are points with
    bars.
    """
    figure, axes = _figure()
    values = list(dict.fromkeys(as_key(setting.value) for settings in lines.values() for setting in settings))
    is_numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    x_of_value = {value: float(value) if is_numeric else index for index, value in enumerate(values)}
    for line_index, (label, settings) in enumerate(lines.items()):
        color, marker = COLORS[line_index % len(COLORS)], _MARKERS[line_index % len(_MARKERS)]
        offset = 0.0 if is_numeric else (line_index - (len(lines) - 1) / 2) * min(0.15, 0.8 / len(lines))
        x = np.array([x_of_value[as_key(setting.value)] for setting in settings]) + offset
        scores = np.array([setting.best.value for setting in settings])
        ends = [(setting.best.low, setting.best.high) for setting in settings]
        low, high = np.array(ends, np.float64).T  # without an interval, None becomes NaN
        if is_numeric:
            axes.fill_between(x, low, high, color=color, alpha=0.18, linewidth=0)
        else:
            axes.vlines(x, low, high, color=color, linewidth=4, alpha=0.35)
        linestyle = "-" if is_numeric else "none"
        axes.plot(
            x,
            scores,
            color=color,
            linestyle=linestyle,
            marker=marker,
            markersize=4,
            label=_plain(label) or "best config",
        )
        if any(len(setting.configs) > 1 for setting in settings):
            mean, name = [setting.mean.value for setting in settings], f"{_plain(label)}, mean of all".lstrip(", ")
            line_style: dict[str, Any] = (
                {"linestyle": ":", "linewidth": 1} if is_numeric else {"linestyle": "none", "marker": "_"}
            )
            axes.plot(x, mean, color=color, label=name, **line_style)
    if is_numeric:
        _scale_x(axes, np.sort(np.fromiter(x_of_value.values(), np.float64)))
    else:
        axes.set_xticks(range(len(values)), [_plain(as_text(value)) for value in values])
        axes.set_xlim(-0.5, len(values) - 0.5)
    axes.set_xlabel(_plain(param))
    axes.set_ylabel(_plain(metric))
    if len(axes.get_legend_handles_labels()[1]) > 1:
        _legend(figure, axes)
    return figure


def parallel(
    values: Sequence[Mapping[str, Any]], scores: Sequence[float], keys: Sequence[str], metric: str, *, mode: str
) -> Figure:
    """Plot configs as lines over one axis for each key and the score, with better configs darker and on top.

    Numbers have a linear or logarithmic axis, other values equidistant positions. A line without a key passes below its
    axis.

    Args:
        values: Values of each config by key.
        scores: Score of each config; configs with NaN are omitted.
        keys: The keys, in the order of the axes.
        metric: Name of the score, for the last axis.
        mode: `max` or `min`: whether a higher or lower score is better.
    """
    rows = [(row, float(score)) for row, score in zip(values, scores, strict=True) if np.isfinite(score)]
    names = headings(keys)
    columns = [_Column.of([row.get(key) for row, _ in rows], name) for key, name in zip(keys, names, strict=True)]
    columns.append(_Column.of([score for _, score in rows], metric))
    with style():
        figure = Figure(figsize=(max(_WIDTH, 1.25 * len(columns)), _HEIGHT), layout="constrained")
        axes = figure.subplots()
    heights = np.array([column.heights for column in columns])
    sign = 1.0 if mode == "max" else -1.0
    order = sorted(range(len(rows)), key=lambda row_index: sign * rows[row_index][1])
    for rank, row_index in enumerate(order):
        strength = (rank + 1) / len(order)
        is_best = rank == len(order) - 1
        axes.plot(
            heights[:, row_index], color=COLORS[1] if is_best else COLORS[0], linewidth=1.8 if is_best else 0.9,
            alpha=1.0 if is_best else 0.12 + 0.6 * strength**2,
        )  # fmt: skip
    for column_index, column in enumerate(columns):
        axes.plot([column_index, column_index], [0, 1], color="black", linewidth=0.8, zorder=3)
        for height, text in column.ticks:
            axes.annotate(
                text, (column_index, height), (3, 0), textcoords="offset points", fontsize=7, va="center", zorder=4,
                bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "alpha": 0.75, "linewidth": 0},
            )  # fmt: skip
    axes.set_xticks(range(len(columns)), [textwrap.fill(_plain(column.name), _LINE // 2) for column in columns])
    axes.set_title("highlighted: the best config", fontsize=8)
    axes.set_xlim(-0.1, len(columns) - 0.6)
    axes.set_ylim(_ABSENT - 0.05 if any(_ABSENT in column.heights for column in columns) else -0.05, 1.05)
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.tick_params(axis="x", length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure


def _round_numbers(low: float, high: float, is_log: bool) -> Floats:
    """Return round numbers between two numbers, for ticks."""
    locator = LogLocator(numticks=_MOST_TICKS) if is_log else MaxNLocator(5)
    ticks = np.asarray(locator.tick_values(low, high), np.float64)
    inner_ticks = ticks[(ticks >= low) & (ticks <= high)]
    return inner_ticks if len(inner_ticks) > 1 else np.array([low, high])


@dataclass(frozen=True, slots=True)
class _Column:
    """Axis of parallel coordinates: heights of the configs, 0 to 1, and tick labels by height."""

    name: str
    heights: Sequence[float]
    ticks: Sequence[tuple[float, str]]

    @classmethod
    def of(cls, values: Sequence[Any], name: str) -> "_Column":
        known_values = [value for value in values if value is not None]
        numbers = np.array([number for value in known_values if (number := number_of(value)) is not None], np.float64)
        ticks: list[tuple[float, str]]
        if len(numbers) == len(known_values) > 0:
            distinct = np.unique(numbers)
            is_log = distinct[0] > 0 and len(distinct) > 1 and _is_logarithmic(distinct)
            scaled = np.log(numbers) if is_log else numbers
            low, span = scaled.min(), np.ptp(scaled) or 1.0
            heights = iter(((scaled - low) / span).tolist())
            tick_marks = distinct if len(distinct) <= _MOST_TICKS else _round_numbers(distinct[0], distinct[-1], is_log)
            positions = np.log(tick_marks) if is_log else tick_marks
            ticks = [(float((x - low) / span), f"{value:.4g}") for x, value in zip(positions, tick_marks, strict=True)]
        else:
            names = sorted({str(value) for value in known_values})
            height_of = {text: (index + 0.5) / len(names) for index, text in enumerate(names)}
            heights = iter([height_of[str(value)] for value in known_values])
            ticks = [(height, _plain(text)) for text, height in height_of.items()]
        all_heights = [_ABSENT if value is None else next(heights) for value in values]
        return cls(name, all_heights, [*ticks, *([(_ABSENT, "none")] if None in values else [])])


def _scale_x(axes: "Axes", values: Floats) -> None:
    """Use a logarithmic axis for logarithmically spaced values, which may include 0; label few values individually."""
    positive = values[values > 0]
    if len(positive) < max(2, len(values) - 1) or values[0] < 0 or not _is_logarithmic(positive):
        return
    axes.set_xscale(
        **({"value": "log"} if len(positive) == len(values) else {"value": "symlog", "linthresh": positive[0]})
    )
    if len(values) <= _MOST_TICKS:
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.xaxis.set_minor_locator(NullLocator())


def _is_logarithmic(values: Floats) -> bool:
    """Return whether positive values span orders of magnitude, or are spaced more evenly on a logarithmic axis."""
    ratio = values[-1] / values[0]
    if ratio < _LEAST_RATIO:
        return False
    linear, logarithmic = (
        abs(np.median(scale) - (scale[0] + scale[-1]) / 2) / np.ptp(scale) for scale in (values, np.log(values))
    )
    return bool(ratio >= _MANY_DECADES or logarithmic < linear / 2 or (ratio >= _DECADE and logarithmic <= linear))


def _figure(height: float = _HEIGHT) -> "tuple[Figure, Axes]":
    with style():
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        return figure, figure.subplots()


def _plain(text: str) -> str:
    """Escape a text for display: one line, no formula, and no leading underscore, which would hide a legend entry."""
    line = _NO_XML.sub("\N{REPLACEMENT CHARACTER}", " ".join(text.split()))
    max_chars = _LONGEST // 2 if any(char >= _FIRST_WIDE for char in line) else _LONGEST
    line = line if len(line) <= max_chars else f"{line[: max_chars - 1]}\N{HORIZONTAL ELLIPSIS}"
    return line.replace("$", r"\$").replace("_", "\N{ZERO WIDTH SPACE}_", 1 if line.startswith("_") else 0)


def _large_numbers(axes: "Axes") -> None:
    low, high = axes.get_xlim()
    largest = max(abs(low), abs(high))
    if largest < 10_000:  # noqa: PLR2004
        return
    if high - low < largest / 100:  # labels with all digits are long
        axes.xaxis.set_major_locator(MaxNLocator(3))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    else:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def _legend(figure: Figure, axes: "Axes") -> None:
    """Place the legend below the axes, where it hides no curve, and add its height to the figure."""
    labels = axes.get_legend_handles_labels()[1]
    columns = 1 if max(map(len, labels), default=0) > _LINE else 2
    figure.set_figheight(figure.get_figheight() + 0.19 * -(-len(labels) // columns))
    with style():
        figure.legend(loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
