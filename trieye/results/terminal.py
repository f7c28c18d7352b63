"""Curves in a terminal, by plotext."""

from collections.abc import Mapping

import numpy as np
import plotext  # type: ignore[import-untyped]
from matplotlib.ticker import MaxNLocator

from trieye.process.terminal import Terminal
from trieye.results.aligned import well_supported
from trieye.results.statistics import Band
from trieye.results.tables import number

_MAX_WIDTH, _HEIGHT = 100, 20
_COLORS = ("blue+", "orange+", "green+", "magenta+", "cyan+", "red+", "gray+")


def curves(bands: Mapping[str, Band], metric: str, x: str, console: Terminal) -> str:
    """Return curves as text, without their intervals: what each is where all of its runs were last stands below.

    Args:
        bands: The curves by label.
        metric: Name of the metric.
        x: What the axis counts.
        console: Where it is to be shown: its width, and whether it has colors.
    """
    width = min(console.width, _MAX_WIDTH)
    plotext.clear_figure()
    plotext.plot_size(width, _HEIGHT)
    plotext.theme("clear")
    for place, (label, band) in enumerate(bands.items()):
        is_known = ~np.isnan(band.value) & well_supported(band.at, band.n)
        color = _COLORS[place % len(_COLORS)]
        points = band.at[is_known].tolist(), band.value[is_known].tolist()
        plotext.plot(*points, marker="braille", color=color, label=label if len(bands) > 1 else None)
    heights = np.concatenate([band.value[~np.isnan(band.value)] for band in bands.values()])
    for values, ticks in ((heights, plotext.yticks), (next(iter(bands.values())).at, plotext.xticks)):
        if len(values):
            ticks(*_ticks(float(values.min()), float(values.max())))
    plotext.title(metric)
    plotext.xlabel(x)
    drawn = str(plotext.build())
    lines = [drawn if console.is_terminal and not console.no_color else plotext.uncolorize(drawn)]
    for label, band in bands.items():
        known = np.flatnonzero(~np.isnan(band.value) & (band.n == band.n.max(initial=0)))
        if not len(known):
            lines.append(f"{label}: no value")
            continue
        end = known[-1]
        held = f"[{number(band.low[end])}, {number(band.high[end])}]" if not np.isnan(band.low[end]) else "no CI"
        runs = f"{band.n[end]} run" + "s" * (int(band.n[end]) != 1)
        lines.append(f"{label}: {number(band.value[end])} {held} at {number(band.at[end])}, of {runs}")
    return "\n".join(lines)


def _ticks(low: float, high: float) -> tuple[list[float], list[str]]:
    """Return round numbers within a range, and how they are written."""
    found = [float(tick) for tick in MaxNLocator(5).tick_values(low, high) if low <= tick <= high] or [low]
    return found, [f"{tick:,.10g}" for tick in found]
