"""A sink of your own: points go to a CSV file, exactly those that MLflow and TensorBoard receive.

    python examples/own_sink.py

A sink has a name and three methods, which are called in a thread of its own. If one raises, its points are buffered and
sent again, and neither the training nor another sink notices.
"""

import csv
from typing import Any

import trieye


class CsvSink:
    """Appends points to `points.csv` in the run directory."""

    name = "csv"

    def open(self, run: Any) -> None:
        """Open the file; `run` describes the run, such as its directory, name and config."""
        path = run.run_dir / "points.csv"
        is_new = not path.exists()
        self.file = path.open("a", newline="")
        self.writer = csv.writer(self.file)
        if is_new:
            self.writer.writerow(["metric", "step", "value", "time"])

    def write(self, points: Any) -> None:
        """Write points; what was written before a crash may be sent again after it."""
        self.writer.writerows((point.metric, point.step, point.value, point.wall_time) for point in points)
        self.file.flush()

    def close(self, status: str) -> None:
        """Close the file; `status` is FINISHED, FAILED or KILLED."""
        self.file.close()


def main() -> None:
    """Log a falling loss."""
    config = trieye.TrieyeConfig(app_name="examples", run_name="own_sink", runtime={"kind": "local"})
    with trieye.Run(config, sinks=[CsvSink()]) as run:
        for step in run.steps(100):
            run.log({"loss": 1 / step})
    print((run.dir / "points.csv").read_text()[:60])


if __name__ == "__main__":
    main()
