"""Plots of curves in a terminal, by plotext."""

import math
from collections.abc import Mapping

import numpy as np
import plotext  # type: ignore[import-untyped]

from trieye.process.terminal import Terminal
from trieye.results.aligned import stretches, well_supported
from trieye.results.statistics import Band
from trieye.results.tables import number

_MAX_WIDTH, _HEIGHT, _MAX_TICKS = 100, 20, 5
_LARGEST = 1e300  # plotext scales values, and overflows near the largest float
_COLORS = ("blue+", "orange+", "green+", "magenta+", "cyan+", "red+", "gray+")


def curves(bands: Mapping[str, Band], metric: str, x: str, console: Terminal) -> str:
    """Render curves as text without intervals; below, list each curve's value at the last point with all its runs.

    Args:
        bands: The curves by label.
        metric: Name of the metric.
        x: Label of the x axis.
        console: The target terminal, which determines width and colors.
    """
    width = min(console.width, _MAX_WIDTH)
    plotext.clear_figure()
    plotext.plot_size(width, _HEIGHT)
    plotext.theme("clear")
    bands = {label: band.without_spikes() for label, band in bands.items()}
    for index, (label, band) in enumerate(bands.items()):
        is_shown = (np.abs(band.value) < _LARGEST) & well_supported(band.at, band.n)
        color = _COLORS[index % len(_COLORS)]
        name = label if len(bands) > 1 else None
        for points in stretches(is_shown):
            marker = "braille" if len(points) > 1 else "dot"
            plotext.plot(band.at[points].tolist(), band.value[points].tolist(), marker=marker, color=color, label=name)
            name = None
    heights = np.concatenate([band.value[np.abs(band.value) < _LARGEST] for band in bands.values()])
    for values, ticks in ((heights, plotext.yticks), (next(iter(bands.values())).at, plotext.xticks)):
        if len(values):
            ticks(*_ticks(float(values.min()), float(values.max())))
    plotext.title(metric)
    plotext.xlabel(x)
    drawn = str(plotext.build())
    lines = [drawn if console.is_terminal and not console.no_color else plotext.uncolorize(drawn)]
    for label, band in bands.items():
        complete = np.flatnonzero(~np.isnan(band.value) & (band.n == band.n.max(initial=0)))
        if not len(complete):
            lines.append(f"{label}: no value")
            continue
        end = complete[-1]
        interval = f"[{number(band.low[end])}, {number(band.high[end])}]" if not np.isnan(band.low[end]) else "no CI"
        runs = f"{band.n[end]} run" + "s" * (int(band.n[end]) != 1)
        lines.append(f"{label}: {number(band.value[end])} {interval} at {number(band.at[end])} ({runs})")
    return "\n".join(lines)


def _ticks(low: float, high: float) -> tuple[list[float], list[str]]:
    """Return round numbers within a range, and their labels."""
    if low == high:
        return [low], [f"{low:,.10g}"]
    exponent = math.floor(math.log10((high - low) / _MAX_TICKS))
    steps = (round_number * 10.0**exponent for round_number in (1, 2, 2.5, 5, 10))
    step = next(step for step in steps if step * _MAX_TICKS >= high - low)
    ticks = [index * step for index in range(math.ceil(low / step), math.floor(high / step) + 1)] or [low]
    return ticks, [f"{tick:,.10g}" for tick in ticks]
