"""Points for a sink thread, and functions that pass them on."""

from trieye.sinks.thread import SinkThread
from trieye.stats.point import Point
from trieye.testing import MemoryHistory, MemorySink

SOON_S = 20.0


def points(first: int, num: int, *, time_s: float = 0.0, log_to: tuple[str, ...] = ("mlflow", "tensorboard")):
    return [Point("m", step / 2, step, 1.7e9 + step + time_s, log_to) for step in range(first, first + num)]


def steps_of(sink: MemorySink) -> list[int]:
    return [point.step for point in sink.points]


def add(thread: SinkThread, source: MemoryHistory, items: list[Point]) -> None:
    source.append(items)
    thread.wake()
