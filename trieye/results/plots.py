"""Plots of results by matplotlib: readable at the width of a paper's column, also in grey and by the colour-blind.

Each function returns a `matplotlib.figure.Figure`, which `save` writes; none of them opens a window.
"""

import io
import re
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, NullLocator, StrMethodFormatter

from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError
from trieye.results.aligned import Floats, well_supported
from trieye.results.hyperparameters import Setting
from trieye.results.statistics import Band, Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = ("png", "svg", "pdf")
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
"""Those of Okabe and Ito (2008) that can be told from white and from black, and a grey."""
_LINES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_WIDTH, _HEIGHT = 4.8, 3.2
"""Inches; with letters of 9 points it can be printed at the width of a column, 3.3 inches."""
_STYLE: dict[Any, Any] = {
    "font.size": 9, "axes.titlesize": 9, "axes.labelsize": 9, "legend.fontsize": 8, "legend.frameon": False,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25, "grid.linewidth": 0.6,
    "lines.linewidth": 1.5, "svg.fonttype": "none", "svg.hashsalt": "trieye", "savefig.dpi": 200, "pdf.fonttype": 42,
    "font.family": "sans-serif", "axes.formatter.useoffset": False,
}  # fmt: skip
_LEAST_RATIO, _DECADE, _MANY_DECADES = 3.0, 10.0, 100.0
_MOST_TICKS = 7
_LONGEST, _LINE = 60, 30
"""Letters of a name, and of a line of it; a longer one leaves no room for what is drawn."""
_FIRST_WIDE = "\N{CJK RADICAL REPEAT}"
_FRACTION = re.compile(r"-?\d+\.\d+")
_FONT = re.compile(r"font-family: [^;]*;? ?")
_NO_XML = re.compile("[^ -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NAMES = {"step": "step", "env_steps": "environment steps", "updates": "updates", "wall_time": "wall time [s]"}


def style() -> AbstractContextManager[None]:
    """Return the context in which figures are made and saved."""
    return mpl.rc_context(_STYLE)


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format that the name of the file ends with.

    Raises:
        ConfigurationError: There is no such format, or the file cannot be written.
    """
    suffix = path.suffix.lstrip(".").lower()
    if suffix not in FORMATS:
        hint = did_you_mean(suffix, FORMATS)
        raise ConfigurationError(
            f"{path}: {suffix or 'no suffix'} is no format of pictures{hint} ({', '.join(FORMATS)})"
        )
    metadata = {"Date": None} if suffix == "svg" else {}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with style():
            figure.savefig(path, metadata=metadata)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error}") from error


def inline(figure: Figure, name: str) -> str:
    """Return a figure as an SVG element for a page of HTML, which other figures may be in, too.

    It has no size, ink is `currentColor`, and the colors of `COLORS` are `var(--series-0)` and so on, so that the page
    says how it looks.

    Args:
        figure: The figure.
        name: What its ids begin with, a word; none of a page may have the name of another.
    """
    written = io.StringIO()
    with style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the browser draws the letters
        warnings.filterwarnings("ignore", "constrained_layout not applied")  # names of wide letters cover something
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(written, format="svg", transparent=True, metadata=nothing)
    root = ET.fromstring(written.getvalue())  # noqa: S314 - matplotlib has written it
    root.attrib = {"viewBox": root.attrib["viewBox"]}
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {key.rpartition("}")[2]: _of_page(key, value, name) for key, value in element.attrib.items()}
        element.text, element.tail = ((text or "").strip() or None for text in (element.text, element.tail))
    for parent in root.iter("defs"):
        for sheet in parent.findall("style"):  # it would count for the whole page
            parent.remove(sheet)
    return ET.tostring(root, encoding="unicode")


def _of_page(key: str, value: str, name: str) -> str:
    """Return an attribute of an SVG element as a page has it."""
    if key == "id":
        return f"{name}-{value}"
    if key == "d":
        return _FRACTION.sub(lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), " ".join(value.split()))
    if key == "style":
        for number, color in enumerate(COLORS):
            value = value.replace(color.lower(), f"var(--series-{number})")
        return _FONT.sub("", value.replace("#000000", "currentColor"))
    return value.replace("#", f"#{name}-") if value.startswith(("#", "url(#")) else value


def curves(
    bands: Mapping[str, Band], metric: str, x: str, *, what: str, runs: Mapping[str, Any] | None = None
) -> Figure:
    """Return learning curves, each with the band of its intervals, and how many runs each is made of.

    A curve is drawn where enough runs have points, and thinner where some have none. A diamond marks each change of
    their number.

    Args:
        bands: The curves by label.
        metric: Name of the metric, for the axis.
        x: What the axis counts.
        what: Of which aggregate and interval these are, for the axis.
        runs: Curves of single runs `[run, point]` by label, drawn faintly.
    """
    figure, axes = _figure()
    for number, (label, band) in enumerate(bands.items()):
        n = np.where(well_supported(band.at, band.n), band.n, 0)
        if not (drawn := n > 0).any():
            continue
        color, line = COLORS[number % len(COLORS)], _LINES[number // len(COLORS) % len(_LINES)]
        for run in () if runs is None else runs[label]:
            axes.plot(band.at, run, color=color, linewidth=0.6, alpha=0.35)
        value, low, high = (np.where(drawn, held, np.nan) for held in (band.value, band.low, band.high))
        axes.fill_between(band.at, low, high, color=color, alpha=0.18, linewidth=0)
        num_runs = "-".join(str(count) for count in dict.fromkeys((n[drawn].min(), n.max())))
        whole = np.where(n == n.max(), value, np.nan)
        axes.plot(band.at, whole, color=color, linestyle=line, label=f"{_plain(label)} (n={num_runs})")
        axes.plot(band.at, value, color=color, linestyle=line, linewidth=0.75)
        changes = np.flatnonzero(drawn[1:] & drawn[:-1] & (np.diff(n) != 0)) + 1
        axes.plot(band.at[changes], value[changes], "D", color=color, markersize=6, markeredgecolor="white", zorder=3)
    axes.set_xlabel(_NAMES.get(x, x))
    axes.set_ylabel(f"{_plain(metric)}\n{what}")
    _large_numbers(axes)
    _legend(figure, axes)
    return figure


def profiles(bands: Mapping[str, Band], metric: str) -> Figure:
    """Return performance profiles: the fraction of runs that score more, over the score."""
    figure, axes = _figure()
    for number, (label, band) in enumerate(bands.items()):
        color, line = COLORS[number % len(COLORS)], _LINES[number // len(COLORS) % len(_LINES)]
        axes.plot(band.at, band.value, color=color, linestyle=line, label=_plain(label), drawstyle="steps-post")
        axes.fill_between(band.at, band.low, band.high, color=color, alpha=0.18, linewidth=0, step="post")
    axes.set_xlabel(f"{_plain(metric)}  (τ)")
    axes.set_ylabel("fraction of runs with more than τ")
    axes.set_ylim(-0.02, 1.02)
    _legend(figure, axes)
    return figure


def intervals(rows: Mapping[str, Estimate], label: str, *, labels: Sequence[str]) -> Figure:
    """Return figures with their intervals, a row for each, in the colors that curves of these labels have."""
    figure, axes = _figure(height=0.75 + 0.32 * len(rows))
    for number, (name, estimate) in enumerate(rows.items()):
        color = COLORS[labels.index(name) % len(COLORS)]
        if estimate.low is not None and estimate.high is not None:
            axes.plot([estimate.low, estimate.high], [number, number], color=color, linewidth=4, alpha=0.35)
        axes.plot(estimate.value, number, color=color, marker="o", markersize=5, linestyle="none")
    axes.set_yticks(
        range(len(rows)), [textwrap.fill(f"{_plain(name)} (n={estimate.n})", _LINE) for name, estimate in rows.items()]
    )
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(_plain(label))
    return figure


def sensitivity(lines: Mapping[str, Sequence[Setting]], param: str, metric: str) -> Figure:
    """Return the scores for each value of a parameter: with the others at their best, and the mean of all configs.

    Numbers are joined by lines, on a logarithmic axis if they are spaced like that. Categories are points with bars.
    """
    figure, axes = _figure()
    values = list(dict.fromkeys(setting.value for settings in lines.values() for setting in settings))
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    at = {value: float(value) if numeric else place for place, value in enumerate(values)}
    for number, (label, settings) in enumerate(lines.items()):
        color, marker = COLORS[number % len(COLORS)], _MARKERS[number % len(_MARKERS)]
        beside = 0.0 if numeric else (number - (len(lines) - 1) / 2) * min(0.15, 0.8 / len(lines))
        x = np.array([at[setting.value] for setting in settings]) + beside
        best = np.array([setting.best.value for setting in settings])
        ends = [(one.low, one.high) if one.low is not None else (np.nan, np.nan) for one in (s.best for s in settings)]
        low, high = np.array(ends, np.float64).reshape(-1, 2).T
        if numeric:
            axes.fill_between(x, low, high, color=color, alpha=0.18, linewidth=0)
        else:
            axes.vlines(x, low, high, color=color, linewidth=4, alpha=0.35)
        joined = "-" if numeric else "none"
        axes.plot(
            x, best, color=color, linestyle=joined, marker=marker, markersize=4, label=_plain(label) or "best config"
        )
        if any(len(setting.configs) > 1 for setting in settings):
            mean, name = [setting.mean.value for setting in settings], f"{_plain(label)}, mean of all".lstrip(", ")
            look: dict[str, Any] = (
                {"linestyle": ":", "linewidth": 1} if numeric else {"linestyle": "none", "marker": "_"}
            )
            axes.plot(x, mean, color=color, label=name, **look)
    if numeric:
        _scale_x(axes, np.sort(np.fromiter(at.values(), np.float64)))
    else:
        axes.set_xticks(range(len(values)), [_plain(str(value)) for value in values])
        axes.set_xlim(-0.5, len(values) - 0.5)
    axes.set_xlabel(_plain(param))
    axes.set_ylabel(_plain(metric))
    if len(axes.get_legend_handles_labels()[1]) > 1:
        _legend(figure, axes)
    return figure


def _scale_x(axes: "Axes", values: Floats) -> None:
    """Choose a logarithmic axis for values that were drawn on one, also beside a zero; label values if they are few."""
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
    """Tell whether positive values are spread over orders of magnitude, or more evenly on a logarithmic axis."""
    ratio = values[-1] / values[0]
    if ratio < _LEAST_RATIO:
        return False
    linear, logarithmic = (
        abs(np.median(held) - (held[0] + held[-1]) / 2) / np.ptp(held) for held in (values, np.log(values))
    )
    return bool(ratio >= _MANY_DECADES or logarithmic < linear / 2 or (ratio >= _DECADE and logarithmic <= linear))


def _figure(height: float = _HEIGHT) -> "tuple[Figure, Axes]":
    with style():
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        return figure, figure.subplots()


def _plain(text: str) -> str:
    """Return a text that is shown as it is: on one line, no formula, and no name that a legend leaves out."""
    shown = _NO_XML.sub("\N{REPLACEMENT CHARACTER}", " ".join(text.split()))
    most = _LONGEST // 2 if any(letter >= _FIRST_WIDE for letter in shown) else _LONGEST
    shown = shown if len(shown) <= most else f"{shown[: most - 1]}\N{HORIZONTAL ELLIPSIS}"
    return shown.replace("$", r"\$").replace("_", "\N{ZERO WIDTH SPACE}_", 1 if shown.startswith("_") else 0)


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
    """Put the legend below the axes, where it hides no curve, and add its height to the figure."""
    labels = axes.get_legend_handles_labels()[1]
    columns = 1 if max(map(len, labels), default=0) > _LINE else 2
    figure.set_figheight(figure.get_figheight() + 0.19 * -(-len(labels) // columns))
    with style():
        figure.legend(loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
