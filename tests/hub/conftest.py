"""A ledger in files that consecutive hubs open, and a complete hub in this process."""

import pytest

import trieye
from trieye.compat.actor_logic import ActorLogic
from trieye.config import MetricConfig, StatsConfig
from trieye.history.history import History
from trieye.hub.ledger import Ledger
from trieye.journal.journal import Journal
from trieye.stats.batch import EventBatch, EventRow
from trieye.stats.point import Point

NOW = 1.8e9

METRICS = [
    MetricConfig(name="every", aggregation="latest"),
    MetricConfig(name="windows", raw_event_name="loss", aggregation="mean", log_frequency_steps=10),
    MetricConfig(name="spread", raw_event_name="loss", aggregation="std", log_frequency_steps=7),
    MetricConfig(
        name="timed", raw_event_name="loss", aggregation="sum", log_frequency_steps=0, log_frequency_seconds=3
    ),
    MetricConfig(
        name="rate", aggregation="rate", rate_numerator_event="loss", log_frequency_steps=0, log_frequency_seconds=2
    ),
    MetricConfig(name="middle", raw_event_name="loss", aggregation="quantile", log_frequency_steps=10),
    MetricConfig(name="smooth", raw_event_name="loss", aggregation="ema", log_frequency_steps=5),
]


class Hub:
    """A ledger in files that consecutive hubs open."""

    def __init__(self, directory, metrics=METRICS):
        self.directory = directory
        self.metrics = metrics
        self.undeclared = "auto"
        self.now = 0.0
        self.attempt = 0

    def start(self, *, attempt=None, wall=None):
        self.attempt = self.attempt + 1 if attempt is None else attempt
        self.journal = Journal(self.directory / "journal.db")
        self.history = History(self.journal, self.directory / "history")
        self.ledger = Ledger(
            StatsConfig(metrics=self.metrics, undeclared=self.undeclared),
            self.journal,
            self.history,
            clock=lambda: self.now,
            wall_clock=lambda: NOW + self.now if wall is None else wall,
        )
        self.is_continuation = self.ledger.open(attempt=self.attempt, created=NOW)
        return self

    def die(self):
        """End without a snapshot, as a killed process does: its memory is lost."""
        self.journal.close()

    def log(self, *steps, name="loss", client="", seq=None):
        rows = [EventRow(name, step * 0.1, step, NOW + step) for step in steps]
        return self.ledger.log_columns(EventBatch.from_rows(rows), client=client, seq=seq)

    def items(self):
        items, start = [], 0
        while start < self.history.end:
            batch, start = self.history.read(start, 1000)
            items += batch
        return items

    def points(self, metric=None):
        return [item for item in self.items() if isinstance(item, Point) and (metric is None or item.metric == metric)]


@pytest.fixture
def hub(tmp_path):
    opened = Hub(tmp_path)
    yield opened
    opened.journal.close()


def steps_of(points):
    return [point.step for point in points]


def events_in(points):
    return sum(point.count for point in points)


def event(name="m", value=1.0, step=1, **rest):
    return trieye.RawMetricEvent(name=name, value=value, global_step=step, **rest)


@pytest.fixture
def open_logic(make_config):
    opened = []

    def open_with(**settings):
        logic = ActorLogic(make_config(**settings)).open()
        opened.append(logic)
        return logic

    yield open_with
    for logic in opened:
        logic.shutdown()
