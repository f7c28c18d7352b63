import time

import trieye
from trieye.stats.batch import EventBatch, EventRow


class Points(list):
    def write(self, points):
        self.extend(points)


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


def test_points_go_to_the_sinks_when_their_window_closes():
    points = Points()
    processor = trieye.StatsProcessor(
        stats({"name": "m", "aggregation": "sum", "log_frequency_steps": 5}), sinks=points
    )
    processor.ingest([EventBatch.from_rows([EventRow("m", 1.0, step, 0.0) for step in range(1, 7)])], at=0.0)
    processor.advance(at=1.0)
    assert [(point.step, point.value) for point in points] == [(5, 5.0)]
    processor.flush(at=2.0)
    assert [(point.step, point.value) for point in points] == [(5, 5.0), (6, 1.0)]
    assert processor.summary["m"]["max"] == 5.0


def test_the_drop_in_pass_logs_all_data_to_the_writer_it_was_given(caplog):
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


def test_undeclared_names_follow_the_config_unless_told_otherwise():
    for undeclared, expected in (("auto", 1), ("drop", 0)):
        points = Points()
        processor = trieye.StatsProcessor(stats(), sinks=points, undeclared=undeclared)
        processor.ingest([EventBatch.from_rows([EventRow("x", 1.0, 1, 0.0)])], at=0.0)
        processor.flush(at=1.0)
        assert sum(point.metric == "x" for point in points) == expected
