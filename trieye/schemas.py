"""The module name of the events and states of trieye 0.1.5."""

from trieye.compat.events import LogContext, RawMetricEvent
from trieye.compat.serializer import BufferData, CheckpointData, LoadedTrainingState

__all__ = ["BufferData", "CheckpointData", "LoadedTrainingState", "LogContext", "RawMetricEvent"]
