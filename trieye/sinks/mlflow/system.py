"""SystemMetrics: logs samples of MLflow's system monitor to an MLflow run while its sink is open."""

import contextlib
import logging
from typing import Any

from trieye.config.redaction import redacted_text
from trieye.process.worker import Ticker

log = logging.getLogger("trieye.sinks")

_STOP_TIMEOUT_S = 5.0


class SystemMetrics:
    """A thread that logs the metrics of a monitor until it is stopped.

    The thread of the monitor itself is unused, because it exits permanently after a short outage of the store.

    Args:
        monitor: MLflow's `SystemMetricsMonitor`.
    """

    def __init__(self, monitor: Any) -> None:
        self._monitor, self._has_failed = monitor, False
        self._ticker = Ticker("trieye-sink-mlflow-system", self._sample, monitor.sampling_interval)

    def stop(self) -> None:
        """Stop the thread and log buffered samples; samples that cannot be logged now are dropped."""
        # a server that does not answer must not delay the end of the run
        if self._ticker.stop(_STOP_TIMEOUT_S):
            with contextlib.suppress(Exception):  # the sink uses the same store and reports its errors
                self._monitor.mlflow_logger.flush()

    def _sample(self) -> None:
        try:
            self._monitor.collect_metrics()
            self._monitor.publish_metrics(self._monitor.aggregate_metrics())
        except Exception as error:  # noqa: BLE001 - the border to MLflow and to drivers
            if not self._has_failed:
                log.warning("system metrics cannot be logged to MLflow, retrying: %s", redacted_text(str(error)))
            self._has_failed = True
