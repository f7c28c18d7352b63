import logging
import sys
import threading

from mlflow import MlflowClient

from tests.waiting import wait_until
from trieye.sinks.mlflow.sink import MlflowSink
from trieye.sinks.mlflow.system import SystemMetrics
from trieye.stats.point import Point


def has_thread():
    return any(thread.name == "trieye-sink-mlflow-system" for thread in threading.enumerate())


def opened(run, interval_s=0.1):
    sink = MlflowSink(system_metrics_interval_s=interval_s)
    sink.open(run)
    return sink


def metrics_of(run, sink):
    return MlflowClient(tracking_uri=run.tracking_uri).get_run(sink.run_id).data.metrics


def steps_of(run, sink):
    client = MlflowClient(tracking_uri=run.tracking_uri)
    return sorted(metric.step for metric in client.get_metric_history(sink.run_id, "system/cpu_utilization_percentage"))


def test_system_metrics_are_disabled_by_default(run):
    sink = opened(run, None)
    assert not has_thread()
    sink.close("FINISHED")


def test_system_metrics_are_logged_while_the_sink_is_open_and_a_later_attempt_continues_their_steps(run, caplog):
    for num_steps in (2, 4):
        sink = opened(run)
        wait_until(lambda sink=sink, num_steps=num_steps: len(steps_of(run, sink)) >= num_steps, pause_s=0.05)
        sink.close("RUNNING")
        assert not has_thread()
    steps = steps_of(run, sink)
    assert steps == list(range(len(steps)))
    metrics = metrics_of(run, sink)
    assert "system/disk_usage_megabytes" in metrics
    assert 0 < metrics["system/system_memory_usage_percentage"] <= 100
    assert caplog.records == []


def test_a_missing_psutil_disables_only_the_system_metrics(run, monkeypatch, caplog):
    for name in [name for name in sys.modules if name.startswith("mlflow.system_metrics")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psutil", None)
    sink = opened(run)
    sink.write([Point("loss", 1.0, 1, 1.7e9)])
    sink.close("FINISHED")
    assert metrics_of(run, sink) == {"loss": 1.0}
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    for part in ("sinks.mlflow.system_metrics", "psutil", "pip install psutil"):
        assert part in warnings[0]


class Interrupted:
    """A monitor whose store is temporarily unavailable."""

    sampling_interval = 0.01

    def __init__(self):
        self.published = 0
        self.flushed = 0
        self.works = False
        self.tries = 0
        self.mlflow_logger = self

    def collect_metrics(self):
        self.tries += 1

    def aggregate_metrics(self):
        return {"cpu": 1.0}

    def publish_metrics(self, metrics):
        if not self.works:
            raise ConnectionError("the store is unavailable")
        self.published += 1

    def flush(self):
        self.flushed += 1
        raise ConnectionError("the store is unavailable")


def test_an_outage_is_reported_once_and_sampling_continues(caplog):
    monitor = Interrupted()
    metrics = SystemMetrics(monitor)
    wait_until(lambda: monitor.tries > 3)
    assert caplog.text.count("the store is unavailable") == 1
    monitor.works = True
    wait_until(lambda: monitor.published > 3)
    metrics.stop()
    assert monitor.flushed == 1
    assert not has_thread()
