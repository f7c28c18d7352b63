"""Drops: what was not logged, counted by reason and warned about once."""

import logging
import threading
from collections import Counter
from typing import Any

logger = logging.getLogger(__name__)

EXPLANATIONS = {
    "non_finite": "NaN or infinite values cannot be logged; the rest of its values are",
    "unnamed": "its name is empty or no valid text",
    "undeclared": "no metric reads it, or there are too many names; declare one, or set stats.undeclared=auto",
    "step_out_of_range": "a global step must lie within +-2**62",
    "context": "the metric's context_key is no number in the context of the event",
    "invalid": "it is no RawMetricEvent, or its value or step is no number",
    "overflow": "too many values were waiting for the hub (runtime.overflow=drop)",
}
MAX_WARNED_NAMES = 100


class Drops:
    """Counts of events that were not logged, by reason; safe to use from several threads."""

    def __init__(self) -> None:
        self.by_reason: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._warned: set[tuple[str, str]] = set()
        self._reported: Counter[str] = Counter()

    def add(self, reason: str, name: str, count: int = 1) -> None:
        """Count dropped events, and warn the first time for each reason and name."""
        if count <= 0:
            return
        with self._lock:
            self.by_reason[reason] += count
            is_news = (reason, name) not in self._warned and len(self._warned) < MAX_WARNED_NAMES
            if is_news:
                self._warned.add((reason, name))
        if is_news:
            logger.warning("event %r is not logged (%s): %s", name, reason, EXPLANATIONS.get(reason, reason))

    def count(self, reason: str, count: int) -> None:
        """Count dropped events without a warning."""
        with self._lock:
            self.by_reason[reason] += count

    def changed(self) -> dict[str, int]:
        """Return the totals that grew since the last call."""
        with self._lock:
            changed = {reason: total for reason, total in self.by_reason.items() if total != self._reported[reason]}
            self._reported = Counter(self.by_reason)
        return changed

    def to_state(self) -> dict[str, Any]:
        """Return plain data that `restore` takes."""
        with self._lock:
            return dict(self.by_reason)

    def restore(self, state: dict[str, Any]) -> None:
        """Go on counting where `to_state` left off, with what was counted since then."""
        with self._lock:
            self.by_reason += Counter(state)
            self._reported += Counter(state)
