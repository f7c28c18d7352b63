"""The module name of StatsProcessor in trieye 0.1.5; it lives in `trieye.compat.stats_processor`."""

from trieye.compat.stats_processor import StatsProcessor

__all__ = ["StatsProcessor"]
