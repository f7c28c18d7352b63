"""The module name of StatsProcessor in trieye 0.1.5; it lives in `trieye.hub.processor`."""

from trieye.hub.processor import StatsProcessor

__all__ = ["StatsProcessor"]
