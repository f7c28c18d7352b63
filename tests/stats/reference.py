"""A plain reference of the aggregator: one event after another, without NumPy and without merging."""

import math
import statistics
from dataclasses import dataclass

ELAPSED_BEFORE, STARTED = 50.0, 1000.0


@dataclass
class Event:
    value: float
    step: int
    time: float
    number: int
    average: float = 0.0


def quantile(values, share):
    ordered = sorted(values)
    position = (len(ordered) - 1) * share
    below, above = ordered[math.floor(position)], ordered[math.ceil(position)]
    return below + (above - below) * (position - math.floor(position))


class Reference:
    """The points of one metric, as (step, value, count, time)."""

    def __init__(self, config):
        self.config = config
        self.length, self.seconds = config.log_frequency_steps, config.log_frequency_seconds
        self.watermark = self.highest = None
        self.windows, self.opened_at, self.late = {}, {}, []
        self.num_events = self.num_late = 0
        self.smoothed = 0.0
        self.logged_at = self.delay = 0.0

    def ingest(self, rows, at):
        for step, value, time in rows:
            self._take(self._event(step, value, time), at)
        if self.windows and self.late:
            self.windows[min(self.windows)] += self.late
            self.late = []

    def _event(self, step, value, time):
        self.num_events += 1
        alpha = self.config.ema_alpha
        self.smoothed = (1 - alpha) * self.smoothed + alpha * value
        average = self.smoothed / (1 - (1 - alpha) ** self.num_events)
        self.highest = step if self.highest is None else max(self.highest, step)
        return Event(value, step, time, self.num_events, average)

    def _take(self, event, at):
        key = -(-event.step // self.length) if self.length else 0
        if self._is_closed(key):
            self.num_late += 1
            self.late.append(event)
        else:
            self.opened_at.setdefault(key, at)
            self.windows.setdefault(key, []).append(event)

    def _is_closed(self, key):
        return self.length and self.watermark is not None and key * self.length <= self.watermark

    def advance(self, at, step=None):
        return self._points(self._completed(at, step), at)

    def flush(self, at, step=None):
        self.logged_at -= self.delay
        points = self._flushed(at, step)
        self.delay = 0.0
        return points

    def _flushed(self, at, step):
        closed = self._completed(at, self.highest if step is None else step)
        if not self.length and not self.seconds:
            return self._points(closed, at)
        for key in sorted(self.windows):
            top = max(event.step for event in self.windows[key])
            if step is None or top <= step:
                closed.append((top, self._pop(key)))
        if self.late and not self.windows:
            closed.append((self.highest, self.late))
            self.late = []
        return self._points(closed, at)

    def _completed(self, at, step):
        if self.highest is not None:
            target = self.highest - 1 if step is None else min(step, self.highest)
            self.watermark = target if self.watermark is None else max(self.watermark, target)
        reached = [key for key in sorted(self.windows) if self._is_closed(key)]
        closed = [(key * self.length, self._pop(key)) for key in reached]
        for key in sorted(self.windows):
            opened = self.logged_at if self.config.aggregation == "rate" else self.opened_at[key]
            if self.seconds and at - opened >= self.seconds:
                events = self._pop(key)
                closed.append((max(event.step for event in events), events))
        return closed

    def _pop(self, key):
        del self.opened_at[key]
        return self.windows.pop(key)

    def _points(self, closed, at):
        if self.config.aggregation == "rate":
            return self._rates(closed, at)
        return [self._point(step, events, self._reduce(events)) for step, events in closed]

    def _rates(self, closed, at):
        if not closed:
            return []
        if at <= self.logged_at:
            for _, events in closed:
                self.late += events
            return []
        events = [event for _, window in closed for event in window]
        rate = math.fsum(event.value for event in events) / (at - self.logged_at)
        newest = max(event.time for event in events) - STARTED
        self.delay = at - newest if self.logged_at < newest < at else 0.0
        self.logged_at = at
        return [self._point(max(step for step, _ in closed), events, rate)]

    def _point(self, step, events, value):
        return self._x(step, events), value, len(events), max(event.time for event in events)

    def _x(self, step, events):
        if self.config.x_axis == "wall_time":
            return max(math.floor(max(0.0, ELAPSED_BEFORE + (event.time - STARTED))) for event in events)
        if self.config.x_axis == "episode":
            return max(event.number for event in events)
        return step

    def _reduce(self, events):
        top = max(event.step for event in events)
        newest = max(events, key=lambda event: event.number)
        last = max((event for event in events if event.step == top), key=lambda event: event.number)
        values = [event.value for event in events]
        return {
            "mean": lambda: math.fsum(values) / len(values),
            "sum": lambda: math.fsum(values),
            "min": lambda: min(values),
            "max": lambda: max(values),
            "std": lambda: statistics.pstdev(values),
            "count": lambda: float(len(values)),
            "latest": lambda: last.value,
            "quantile": lambda: quantile(values, self.config.quantile),
            "ema": lambda: newest.average,
        }[self.config.aggregation]()
