"""Profile: what torch.profiler records of some steps of an experiment, as files in the directory of the run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trieye.files.atomic import write_atomic
from trieye.process.progress import say

_ROWS = 30


class Profile:
    """Records steps from the first one after an update on, so that the start of everything is not among them.

    Args:
        steps: How many are recorded; 0: none.
        directory: Where `trace.json` and `table.txt` are written, over those of an earlier attempt.
    """

    def __init__(self, steps: int, directory: Path) -> None:
        self._left, self._directory, self._recorded = steps, directory, 0
        self._profiler: Any = None

    def after_step(self, values: Mapping[str, float | None]) -> None:
        """Begin, count or write, after a step that returned these values."""
        if not self._left:
            return
        if self._profiler is not None:
            self._recorded += 1
            if self._recorded == self._left:
                self.close()
        elif values.get("updates", 1):  # an experiment that tells of no updates may make them from the beginning
            self._begin()

    def _begin(self) -> None:
        from torch.profiler import profile

        self._profiler = profile()  # of the CPU, and of a GPU where torch sees one
        self._profiler.start()

    def close(self) -> None:
        """Write what was recorded; does nothing if there is nothing, or if it is written."""
        self._left, profiler, self._profiler = 0, self._profiler, None
        if profiler is None:
            return
        profiler.stop()
        self._directory.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(self._directory / "trace.json"))
        table = profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=_ROWS)
        write_atomic(self._directory / "table.txt", table.encode())
        files = "table.txt, and trace.json for ui.perfetto.dev"
        say(f"a profile of {self._recorded} steps is in {self._directory}: {files}")
