"""BufferCounts: counts and rates of a replay buffer."""

import time
from collections.abc import Mapping

from trieye.replay.rows.store import RowStore
from trieye.replay.samplers.base import SampledIds


class BufferCounts:
    """Counts over the lifetime of a buffer, and rates since the last report.

    Attributes:
        sampled: Rows returned by draws.
        late_updates: Priorities that arrived after their row was overwritten.
        lost: Rows that could not be restored because their files were damaged.
    """

    def __init__(self) -> None:
        self.sampled = 0
        self.late_updates = 0
        self.lost = 0
        self._last_report: tuple[float, int] | None = None  # monotonic seconds, and rows added by then
        self._stale: tuple[float, int, float] | None = None  # sum of versions behind, rows, most versions behind

    def was_stale(self, draw: SampledIds) -> None:
        """Record how many versions the rows of a draw lag behind."""
        sum_behind, num_rows, most_behind = self._stale or (0.0, 0, 0.0)
        sum_behind += draw.info["staleness_mean"] * len(draw)
        self._stale = sum_behind, num_rows + len(draw), max(most_behind, draw.info["staleness_max"])

    def stats(self, capacity: int, store: RowStore | None) -> dict[str, float]:
        """Return the counts and the store's size as plain numbers."""
        return {
            "size": 0 if store is None else store.total - store.low,
            "capacity": capacity,
            "added": 0 if store is None else store.total,
            "sampled": self.sampled,
            "late_updates": self.late_updates,
            "lost": self.lost,
            "size_bytes": 0 if store is None else store.size_bytes,
        }

    def metrics(self, store: RowStore | None) -> dict[str, float]:
        """Return metrics by name, omitting those without data yet; rates cover the time since the last call."""
        num_added = 0 if store is None else store.total
        metrics = {
            "replay/size": float(0 if store is None else store.total - store.low),
            "replay/dropped/late_update": float(self.late_updates),
            "replay/dropped/damaged": float(self.lost),
        }
        now = time.monotonic()
        if self._last_report is not None and now > self._last_report[0]:
            metrics["replay/inserts_per_s"] = (num_added - self._last_report[1]) / (now - self._last_report[0])
        if num_added:
            metrics["replay/samples_per_insert"] = self.sampled / num_added
        if self._stale is not None:
            sum_behind, num_rows, most_behind = self._stale
            metrics |= {"replay/staleness_mean": sum_behind / num_rows, "replay/staleness_max": most_behind}
        self._last_report, self._stale = (now, num_added), None
        return metrics

    def state_dict(self) -> dict[str, int]:
        """Return the counts as plain data."""
        return {"sampled": self.sampled, "late_updates": self.late_updates, "lost": self.lost}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Restore saved counts."""
        self.sampled, self.late_updates = int(state["sampled"]), int(state["late_updates"])
        self.lost = int(state.get("lost", 0))
