import time
from types import SimpleNamespace

import trieye


class Writer:
    """A TensorBoard writer as clients inject it."""

    def __init__(self):
        self.scalars, self.closed = [], False

    def add_scalar(self, tag, value, step=None, walltime=None, **_):
        self.scalars.append((tag, value, step))

    def flush(self):
        pass

    def close(self):
        self.closed = True


def stats(*metrics):
    return trieye.StatsConfig(metrics=[trieye.MetricConfig(**metric) for metric in metrics])


def test_the_compatibility_processor_logs_all_data_to_the_injected_writer(caplog):
    writer = Writer()
    config = stats({"name": "m", "aggregation": "mean", "log_to": ["tensorboard", "console"]})
    processor = trieye.StatsProcessor(config, "run", writer, None)
    raw = {
        step: {"m": [trieye.RawMetricEvent(name="m", value=value, global_step=step) for value in (1.0, 2.0)]}
        for step in (1, 2)
    }
    processor.process_and_log(raw, trieye.LogContext(latest_step=2, last_log_time=0.0, current_time=time.time()))
    assert writer.scalars == [("m", 1.5, 1), ("m", 1.5, 2)]
    assert "STATS [2]: m = 1.5000" in caplog.messages


def test_the_compatibility_processor_logs_any_objects_like_events_at_the_step_of_their_key():
    writer = Writer()
    processor = trieye.StatsProcessor(stats({"name": "m", "aggregation": "mean"}), "run", writer, None)
    event = SimpleNamespace(name="m", value=1.5, global_step=1, timestamp=None, context={})
    context = trieye.LogContext(latest_step=7, last_log_time=0.0, current_time=time.time())
    processor.process_and_log({7: {"m": [event, trieye.RawMetricEvent(name="m", value=2.5, global_step=2)]}}, context)
    assert writer.scalars == [("m", 2.0, 7)]
