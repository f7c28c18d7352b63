"""EmaWindows: an exponential moving average over the events of a metric, in the order in which they were received.

With s the sum and a the weight of a new value x, s = (1 - a) s + a x, and the average is s / (1 - (1 - a)^n) after n
events: without the divisor it would begin near 0 (Kingma and Ba, "Adam: a method for stochastic optimization", 2015).
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from trieye.config import MetricConfig
from trieye.stats.details import Smoothed
from trieye.stats.reducers import Accumulator, Floats, Ints
from trieye.stats.windows import AttemptTimes, MetricWindows


class EmaWindows(MetricWindows):
    """Windows whose points are the running average after the event of theirs that was received last."""

    def __init__(self, config: MetricConfig, times: AttemptTimes) -> None:
        super().__init__(config, times)
        self._sum = 0.0
        # logarithm of (1 - a)^n: exact for small a, and right too when a differs between two attempts
        self._log_rest = 0.0

    def _grouped(
        self, keys: Ints, values: Floats, steps: Ints, times: Floats, xs: Ints | None
    ) -> Iterator[tuple[int, Accumulator]]:
        averages = self._averages(values)
        received_before = self.num_events - len(values)
        _, from_end = np.unique(keys[::-1], return_index=True)
        last_rows = (len(keys) - 1 - from_end).tolist()
        for (key, events), row in zip(super()._grouped(keys, values, steps, times, xs), last_rows, strict=True):
            events.detail = Smoothed(received_before + row + 1, float(averages[row]))
            yield key, events

    def _averages(self, values: Floats) -> Floats:
        alpha = self.config.ema_alpha
        log_rest = math.log1p(-alpha) if alpha < 1.0 else -math.inf
        sums = smoothed_sums(values, alpha, before=self._sum)
        log_rests = self._log_rest + log_rest * np.arange(1, len(values) + 1)
        self._sum, self._log_rest = float(sums[-1]), float(log_rests[-1])
        averages: Floats = sums / -np.expm1(log_rests)
        return averages

    def to_state(self) -> dict[str, Any]:
        """Return plain data that `restore` takes."""
        return {**super().to_state(), "ema": [self._sum, self._log_rest]}

    def restore(self, state: Mapping[str, Any], *, shift_s: float) -> None:
        """Go on where `to_state` left off; a metric that had another aggregation begins its average anew."""
        super().restore(state, shift_s=shift_s)
        self._sum, self._log_rest = state.get("ema", (0.0, 0.0))


def smoothed_sums(values: Floats, alpha: float, *, before: float) -> Floats:
    """Return s after each value.

    Args:
        values: `[n]`, n > 0, in the order of arrival.
        alpha: Weight of a new value, above 0 and at most 1.
        before: s before the first value.
    """
    rest = 1.0 - alpha
    sums: Floats = alpha * values
    sums[0] += rest * before
    # each pass doubles how far back a sum reaches: sums are affine in what came before, so parts can be joined
    span, weight = 1, rest
    while span < len(values) and weight > 0.0:
        sums[span:] += weight * sums[:-span]
        span, weight = 2 * span, weight * weight
    return sums
