"""Fakes and contract tests for those who extend trieye; importing it needs no pytest."""

from trieye.testing.sinks import FlakySink, MemorySink, SinkContract, make_run

__all__ = ["FlakySink", "MemorySink", "SinkContract", "make_run"]
