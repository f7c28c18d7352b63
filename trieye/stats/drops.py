"""Drops: what was not logged, counted by reason and warned about once."""

import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger(__name__)

EXPLANATIONS = {
    "non_finite": "NaN or infinite values cannot be logged; the rest of its values are",
    "unnamed": "its name is empty or no valid text",
    "name_too_long": "a name must not have more than 1000 characters",
    "undeclared": "no metric reads it, or there are too many names; declare one, or set stats.undeclared=auto",
    "step_out_of_range": "a global step must lie within +-2**62",
    "context": "the metric's context_key is no number in the context of the event",
    "context_too_large": "its context takes more than 64 KiB, and is left out; its value is logged",
    "invalid": "it is no RawMetricEvent, or its value or step is no number",
    "overflow": "too many values were waiting for the hub (runtime.overflow=drop)",
    "gave_up": "the hub did not take them in time",
    "journal_damage": "the journal was damaged; see the log",
}
"""What people are told, by reason; a reason that is not here speaks for itself."""

NON_FINITE_METRIC = "trieye/dropped/non_finite/"
"""Prefix of the metrics that count the trailing non-finite values of another metric, at the step of the first one."""

MAX_WARNED_NAMES = 100
"""Names that are warned about, for each reason."""

MAX_SHOWN = 100
"""Characters of a name in a warning."""


def has_diverged(summary: Mapping[str, Mapping[str, Any]], metric: str) -> bool:
    """Return True if the last values of a metric were NaN or infinite.

    Args:
        summary: The `step` of the last point of each metric.
        metric: Its name.
    """
    dropped, finite = summary.get(f"{NON_FINITE_METRIC}{metric}"), summary.get(metric)
    return dropped is not None and (finite is None or dropped["step"] > finite["step"])


class Drops:
    """Counts of events that were not logged, by reason; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all fields below; a thread that holds it takes no other lock
        self.by_reason: Counter[str] = Counter()
        self._reported: Counter[str] = Counter()
        self._warned: defaultdict[str, set[str]] = defaultdict(set)

    def add(self, reason: str, name: str, count: int = 1) -> None:
        """Count dropped events, and warn the first time for each reason and name."""
        if count <= 0:
            return
        shown = name[:MAX_SHOWN]
        with self._lock:
            self.by_reason[reason] += count
            warned = self._warned[reason]
            is_news = shown not in warned and len(warned) < MAX_WARNED_NAMES
            if is_news:
                warned.add(shown)
        if is_news:
            explanation = f": {EXPLANATIONS[reason]}" if reason in EXPLANATIONS else ""
            what = "is not logged as it is" if reason == "context_too_large" else "is not logged"
            logger.warning("event %r %s (%s)%s", shown, what, reason, explanation)

    def count(self, reason: str, count: int) -> None:
        """Count dropped events without a warning."""
        with self._lock:
            self.by_reason[reason] += count

    @property
    def has_news(self) -> bool:
        """Whether a total grew since the last call of `changed`."""
        with self._lock:
            return self.by_reason != self._reported

    def changed(self) -> dict[str, int]:
        """Return the totals that grew since the last call."""
        with self._lock:
            changed = {reason: total for reason, total in self.by_reason.items() if total != self._reported[reason]}
            self._reported = Counter(self.by_reason)
        return changed

    def to_state(self) -> dict[str, Any]:
        """Return plain data that `restore` takes."""
        with self._lock:
            return {"by_reason": dict(self.by_reason), "reported": dict(self._reported)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where `to_state` left off; what was counted here is forgotten, what was warned about is not."""
        totals = state.get("by_reason", state)  # older versions kept the totals alone
        with self._lock:
            self.by_reason = Counter(totals)
            self._reported = Counter(state.get("reported", totals))
