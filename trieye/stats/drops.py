"""Drops: counts of events that were not logged, by reason, with one warning per name."""

import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger(__name__)

EXPLANATIONS = {
    "non_finite": "NaN and infinite values cannot be logged; its finite values are",
    "unnamed": "its name is empty or not valid text",
    "name_too_long": "the limit is 1000 characters",
    "undeclared": "no metric reads it; declare one (stats.undeclared=auto accepts 10,000 names that no metric has)",
    "step_out_of_range": "a global step must be within +-2**62",
    "context": "the value of the metric's context_key in the event's context is not a number",
    "context_too_large": "its context exceeds 64 KiB and is dropped; its value is logged",
    "invalid": "it is not a RawMetricEvent, or its value or step is not a number",
    "overflow": "too many values were waiting for the hub (runtime.overflow=drop)",
    "gave_up": "the hub did not accept them before the timeout",
    "journal_damage": "the journal was damaged; see the log",
}
"""Explanations for warnings, by reason; other reasons need none."""

NON_FINITE_METRIC = "trieye/dropped/non_finite/"
"""Prefix of the metrics that count the trailing non-finite values of another metric, at the step of the first one."""

MAX_WARNED_NAMES = 100
"""Maximum number of warnings per reason."""

MAX_SHOWN = 100
"""Maximum length of a name in a warning, in characters."""


def has_diverged(summary: Mapping[str, Mapping[str, Any]], metric: str) -> bool:
    """Return True if the last values of a metric were NaN or infinite.

    Args:
        summary: The `step` of the last point of each metric.
        metric: Name of the metric.
    """
    non_finite, finite = summary.get(f"{NON_FINITE_METRIC}{metric}"), summary.get(metric)
    return non_finite is not None and (finite is None or non_finite["step"] > finite["step"])


class Drops:
    """Counts of events that were not logged, by reason; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all fields below; a thread that holds it takes no other lock
        self.by_reason: Counter[str] = Counter()
        self._old_totals: Counter[str] = Counter()
        self._warned_names: defaultdict[str, set[str]] = defaultdict(set)

    def add(self, reason: str, name: str, count: int = 1) -> None:
        """Count dropped events, and warn once per reason and name."""
        if count <= 0:
            return
        short_name = name[:MAX_SHOWN]
        with self._lock:
            self.by_reason[reason] += count
            warned_names = self._warned_names[reason]
            is_new = short_name not in warned_names and len(warned_names) < MAX_WARNED_NAMES
            if is_new:
                warned_names.add(short_name)
        if is_new:
            explanation = f": {EXPLANATIONS[reason]}" if reason in EXPLANATIONS else ""
            effect = "is logged without its context" if reason == "context_too_large" else "is not logged"
            logger.warning("event %r %s (%s)%s", short_name, effect, reason, explanation)

    def count(self, reason: str, count: int) -> None:
        """Count dropped events without a warning."""
        with self._lock:
            self.by_reason[reason] += count

    @property
    def has_news(self) -> bool:
        """Whether a total grew since the last call of `changed`."""
        with self._lock:
            return self.by_reason != self._old_totals

    def changed(self) -> dict[str, int]:
        """Return the totals that grew since the last call."""
        with self._lock:
            totals = {reason: total for reason, total in self.by_reason.items() if total != self._old_totals[reason]}
            self._old_totals = Counter(self.by_reason)
        return totals

    def to_state(self) -> dict[str, Any]:
        """Return plain data for `restore`."""
        with self._lock:
            return {"by_reason": dict(self.by_reason), "reported": dict(self._old_totals)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace the counts by those in a state of `to_state`; warnings already given are not repeated."""
        with self._lock:
            self.by_reason = Counter(state.get("by_reason", {}))
            self._old_totals = Counter(state.get("reported", {}))
