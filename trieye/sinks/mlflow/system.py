"""SystemMetrics: samples of the machine to an MLflow run, as long as its sink is open; MLflow's part in it is given."""

import contextlib
import logging
import threading
from typing import Any, Protocol

from trieye.config.redaction import redacted_text

log = logging.getLogger("trieye.sinks")

_STOP_TIMEOUT_S = 5.0


class Monitor(Protocol):
    """What is used of MLflow's `SystemMetricsMonitor`.

    Its own thread is not: it ends for good when the store is away for a moment.
    """

    sampling_interval: float
    mlflow_logger: Any

    def collect_metrics(self) -> object:
        """Take a sample."""
        ...

    def aggregate_metrics(self) -> dict[str, float]:
        """Return what the samples add up to."""
        ...

    def publish_metrics(self, metrics: dict[str, float]) -> None:
        """Log them, or keep them for the next time if the store is away."""
        ...


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
        """End the thread and log what is left; what cannot be logged now is left out."""
        self._stopping.set()
        self._thread.join(_STOP_TIMEOUT_S)  # a server that does not answer must not hold up the end
        if not self._thread.is_alive():
            with contextlib.suppress(Exception):  # the sink has the same store, and reports what is wrong with it
                self._monitor.mlflow_logger.flush()

    def _run(self) -> None:
        has_failed = False
        while not self._stopping.wait(self._monitor.sampling_interval):
            try:
                self._monitor.collect_metrics()
                self._monitor.publish_metrics(self._monitor.aggregate_metrics())
            except Exception as error:  # noqa: BLE001 - the border to MLflow and the drivers that it asks
                if not has_failed:
                    log.warning(
                        "system metrics cannot be logged to MLflow, which is tried again: %s", redacted_text(str(error))
                    )
                has_failed = True
