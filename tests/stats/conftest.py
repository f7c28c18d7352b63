from trieye.config import MetricConfig
from trieye.stats.aggregator import Aggregator
from trieye.stats.batch import EventBatch, EventRow


def batch(*rows):
    return EventBatch.from_rows([EventRow(*row) for row in rows])


def metric(name="m", **settings):
    return MetricConfig(name=name, **{"aggregation": "count", **settings})


def rate(**settings):
    return metric("r", aggregation="rate", rate_numerator_event="done", log_frequency_steps=0, **settings)


def restored(first, declared, *, shift_s=0.0, **options):
    """Return an aggregator of the next attempt, with the state of an aggregator."""
    second = Aggregator(declared, **options)
    second.restore(first.to_state(), shift_s=shift_s)
    return second


def values_of(points):
    """Return the value of the newest point of each metric."""
    return {point.metric: point.value for point in points}
