"""The module name of the values of the drop-in API in trieye 0.1.5; they live where they are made."""

from trieye.checkpoints.serializer import BufferData, CheckpointData, LoadedTrainingState
from trieye.hub.processor import LogContext, RawMetricEvent

__all__ = ["BufferData", "CheckpointData", "LoadedTrainingState", "LogContext", "RawMetricEvent"]
