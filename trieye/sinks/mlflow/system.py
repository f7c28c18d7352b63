"""SystemMetrics: logs samples of MLflow's system monitor to an MLflow run while its sink is open."""

import contextlib
import logging
import threading
from typing import Any, Protocol

from trieye.config.redaction import redacted_text

log = logging.getLogger("trieye.sinks")

_STOP_TIMEOUT_S = 5.0


class Monitor(Protocol):
    """The methods used of MLflow's `SystemMetricsMonitor`.

    Its thread is unused, because it exits permanently after a short outage of the store.
    """

    sampling_interval: float
    mlflow_logger: Any

    def collect_metrics(self) -> object:
        """Take a sample."""

    def aggregate_metrics(self) -> dict[str, float]:
        """Return the aggregated samples."""

    def publish_metrics(self, metrics: dict[str, float]) -> None:
        """Log aggregated metrics, or buffer them until the next call if the store is unavailable."""


class SystemMetrics:
    """A thread that logs the metrics of a monitor until it is stopped.

    Args:
        monitor: Takes and logs the samples.
    """

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trieye-sink-mlflow-system", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and log buffered samples; samples that cannot be logged now are dropped."""
        self._stopping.set()
        self._thread.join(_STOP_TIMEOUT_S)  # a server that does not answer must not delay the end of the run
        if not self._thread.is_alive():
            with contextlib.suppress(Exception):  # the sink uses the same store and reports its errors
                self._monitor.mlflow_logger.flush()

    def _run(self) -> None:
        has_failed = False
        while not self._stopping.wait(self._monitor.sampling_interval):
            try:
                self._monitor.collect_metrics()
                self._monitor.publish_metrics(self._monitor.aggregate_metrics())
            except Exception as error:  # noqa: BLE001 - the border to MLflow and to drivers
                if not has_failed:
                    log.warning("system metrics cannot be logged to MLflow, retrying: %s", redacted_text(str(error)))
                has_failed = True
