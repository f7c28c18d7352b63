"""Compatibility alias for trieye 0.1.5: its events and states from `trieye.compat`."""

from trieye.compat.events import LogContext, RawMetricEvent
from trieye.compat.serializer import BufferData, CheckpointData, LoadedTrainingState

__all__ = ["BufferData", "CheckpointData", "LoadedTrainingState", "LogContext", "RawMetricEvent"]
