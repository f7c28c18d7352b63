"""Profile: record some steps of an experiment with torch.profiler, and write trace and table to the run directory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trieye.files.atomic import write_atomic
from trieye.process.progress import say

_ROWS = 30


class Profile:
    """Records the steps that follow the first step with an update, so that the startup is excluded.

    Args:
        steps: Number of steps to record; 0 disables profiling.
        directory: Directory for `trace.json` and `table.txt`; files of an earlier attempt are overwritten.
    """

    def __init__(self, steps: int, directory: Path) -> None:
        self._steps_left, self._directory, self._num_recorded = steps, directory, 0
        self._profiler: Any = None

    def after_step(self, values: Mapping[str, Any]) -> None:
        """Start recording, count a recorded step, or write the files, after a step that returned `values`."""
        if not self._steps_left:
            return
        if self._profiler is not None:
            self._num_recorded += 1
            if self._num_recorded == self._steps_left:
                self.close()
        elif values.get("updates", 1):  # an experiment that does not report updates may update from the first step on
            self._begin()

    def _begin(self) -> None:
        from torch.profiler import profile

        self._profiler = profile()  # records the CPU, and a GPU if torch can use one
        self._profiler.start()

    def close(self) -> None:
        """Write the recorded steps; a no-op if none were recorded or the files are written."""
        self._steps_left, profiler, self._profiler = 0, self._profiler, None
        if profiler is None:
            return
        profiler.stop()
        self._directory.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(self._directory / "trace.json"))
        table = profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=_ROWS)
        write_atomic(self._directory / "table.txt", table.encode())
        files = "table.txt, and trace.json for ui.perfetto.dev"
        say(f"the profile of {self._num_recorded} steps is in {self._directory}: {files}")
