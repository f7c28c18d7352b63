"""Compatibility alias for trieye 0.1.5: StatsProcessor from `trieye.compat.stats_processor`."""

from trieye.compat.stats_processor import StatsProcessor

__all__ = ["StatsProcessor"]
