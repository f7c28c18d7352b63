"""Sinks, the destinations of points: MLflow, TensorBoard, the console, Weights & Biases and third parties."""

from trieye.sinks.base import RunInfo, RunStatus, Sink, Tracker
from trieye.sinks.fan_out import FanOut, make_sinks
from trieye.sinks.health import SinkHealth
from trieye.sinks.thread import SinkThread

__all__ = ["FanOut", "RunInfo", "RunStatus", "Sink", "SinkHealth", "SinkThread", "Tracker", "make_sinks"]
