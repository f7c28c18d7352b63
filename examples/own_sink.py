"""A custom sink: a CSV file contains every point of a run once, also after a kill and a resume.

    python examples/own_sink.py

A sink has a name and the methods `open`, `write` and `close`, which are called in a separate thread. If a method
raises, its points are buffered and sent again; the training and other sinks continue. With these three methods alone,
the file would retain points of an attempt that a later one repeats. The other methods are two optional protocols:
`Flushable` (`flush_interval_s`, `flush`) and `Resumable` (`position`, `resume`, `clear`), with which a restart returns
to the last flushed position, and a resume from an earlier checkpoint rewrites the file.
`trieye.testing.SinkContract` tests them.
"""

import csv
import os
from typing import Any

import trieye


class CsvSink:
    """Writes points to `points.csv` in the run directory."""

    name = "csv"
    flush_interval_s = 1.0

    def open(self, run: Any) -> None:
        """Open the file; `run` describes the run, such as its directory, name and config."""
        self.path = run.run_dir / "points.csv"
        self.file = self.path.open("a", newline="")
        self.writer = csv.writer(self.file)

    def write(self, points: Any) -> None:
        """Write points."""
        if self.file.tell() == 0:
            self.writer.writerow(["metric", "step", "value", "time"])
        self.writer.writerows((point.metric, point.step, point.value, point.wall_time) for point in points)

    def close(self, status: str) -> None:
        """Close the file; `status` is FINISHED, FAILED or KILLED."""
        self.file.close()

    def flush(self) -> None:
        """Store everything on the disk; `position` follows."""
        self.file.flush()
        os.fsync(self.file.fileno())

    def position(self) -> str:
        """Return the size of the flushed file."""
        return str(self.path.stat().st_size)

    def resume(self, position: str | None) -> bool:
        """Cut the file to a position; False if it has become shorter, so that `clear` and all points follow."""
        size = int(position or 0)
        if self.path.stat().st_size < size:
            return False
        self.file.seek(self.file.truncate(size))
        return True

    def clear(self) -> None:
        """Remove all points."""
        self.file.seek(self.file.truncate(0))


def main() -> None:
    """Log a falling loss."""
    config = trieye.TrieyeConfig(app_name="examples", run_name="own_sink", runtime={"kind": "local"})
    with trieye.Run(config, sinks=[CsvSink()]) as run:
        for step in run.steps(100):
            run.log({"loss": 1 / step})
    print((run.dir / "points.csv").read_text()[:60])


if __name__ == "__main__":
    main()
