from trieye.config import MetricConfig
from trieye.stats.batch import EventBatch, EventRow


def batch(*rows):
    return EventBatch.from_rows([EventRow(*row) for row in rows])


def metric(name="m", **settings):
    return MetricConfig(name=name, **{"aggregation": "count", **settings})


def rate(**settings):
    return metric("r", aggregation="rate", rate_numerator_event="done", log_frequency_steps=0, **settings)
