"""Fakes and contract tests for those who extend trieye; importing it needs no pytest."""

from trieye.testing.sink_contract import SinkContract
from trieye.testing.sinks import FlakySink, MemorySink, make_run
from trieye.testing.sources import MemorySource

__all__ = ["FlakySink", "MemorySink", "MemorySource", "SinkContract", "make_run"]
