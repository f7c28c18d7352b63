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


def test_any_objects_are_logged_like_events_to_the_injected_writer_at_the_step_of_their_key(caplog):
    writer = Writer()
    config = stats({"name": "m", "aggregation": "mean", "log_to": ["tensorboard", "console"]})
    processor = trieye.StatsProcessor(config, "run", writer, None)
    foreign_event = SimpleNamespace(name="m", value=1.0, global_step=7, timestamp=None, context={})
    events = [foreign_event, trieye.RawMetricEvent(name="m", value=2.0, global_step=5)]
    raw = {step: {"m": events} for step in (1, 2)}
    processor.process_and_log(raw, trieye.LogContext(latest_step=2, last_log_time=0.0, current_time=time.time()))
    assert writer.scalars == [("m", 1.5, 1), ("m", 1.5, 2)]
    assert "STATS [2]: m = 1.5000" in caplog.messages
