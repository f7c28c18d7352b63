"""Read the curves of a run from MLflow, TensorBoard and the history, and compare them with the logged events."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import trieye

DEADLINE_S = 120.0

Curve = list[tuple[int, float]]
"""(step, value) of each point, sorted."""


def curves_in_mlflow(run_dir: Path) -> dict[str, Curve]:
    """Return the curves in the MLflow run of a run, which must be the only MLflow run."""
    from mlflow import MlflowClient
    from mlflow.entities import ViewType

    from trieye.files.run_record import RunRecord

    record = RunRecord.read(run_dir / "run.json")
    assert record is not None
    assert record.mlflow_run_id is not None
    client = MlflowClient(tracking_uri=f"sqlite:///{run_dir.parents[1] / 'mlruns' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(record.app_name)
    runs = client.search_runs([experiment.experiment_id], run_view_type=ViewType.ALL)
    assert [run.info.run_id for run in runs] == [record.mlflow_run_id], "not exactly one MLflow run"
    names = runs[0].data.metrics
    return {
        name: sorted((m.step, m.value) for m in client.get_metric_history(record.mlflow_run_id, name)) for name in names
    }


def event_dir(run_dir: Path) -> Path:
    """Return the directory of the event files of a run; only trieye 0.1.5 has a subdirectory for them."""
    subdirectory = run_dir / "tensorboard"
    return subdirectory if subdirectory.is_dir() else run_dir


def curves_in_tensorboard(run_dir: Path) -> dict[str, Curve]:
    """Return the curves in the event files of a run; their values are 32 bits wide."""
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

    accumulator = EventAccumulator(str(event_dir(run_dir)), size_guidance={SCALARS: 0}, purge_orphaned_data=False)
    accumulator.Reload()
    tags = accumulator.Tags()["scalars"]
    return {tag: sorted((event.step, event.value) for event in accumulator.Scalars(tag)) for tag in tags}


def curves_in_history(run_dir: Path) -> dict[str, Curve]:
    """Return the curves in the history of a run; empty if it has no files."""
    from trieye.history.history import read_history

    if not any((run_dir / name).exists() for name in ("journal.db", "history")):
        return {}  # the journal was deleted before anything was written to Parquet
    table = read_history(run_dir)
    curves: defaultdict[str, Curve] = defaultdict(list)
    columns = (table[name].to_pylist() for name in ("metric", "step", "value"))
    for metric, step, value in zip(*columns, strict=True):
        curves[metric].append((step, value))
    return {metric: sorted(curve) for metric, curve in curves.items()}


def deliver(config: trieye.TrieyeConfig) -> trieye.Run:
    """Reopen a run until every sink has received its backlog, and return it closed."""
    until = time.monotonic() + DEADLINE_S
    with trieye.Run(config) as run:
        while any(sink["backlog"] for sink in run.health()["sinks"]) and time.monotonic() < until:
            time.sleep(0.2)
    return run


def stored_curves(run_dir: Path) -> dict[str, dict[str, Curve]]:
    """Return the curves in MLflow, TensorBoard and the history, without the metrics of the hub."""
    curves_by_store = {
        "mlflow": curves_in_mlflow(run_dir),
        "tensorboard": curves_in_tensorboard(run_dir),
        "history": curves_in_history(run_dir),
    }
    return {
        store: {name: curve for name, curve in curves.items() if not name.startswith("trieye/")}
        for store, curves in curves_by_store.items()
    }


def repeated(curve: Curve) -> list[int]:
    """Return the steps that a curve has more than once."""
    return [step for step, count in Counter(step for step, _ in curve).items() if count > 1]


def problems_of_prefix(
    curves: Mapping[str, Curve], name: str, *, first: int, acknowledged: int, sent: int, window: int
) -> list[str]:
    """Return the problems of the curves `<name>/count` and `<name>/sum` of events first, first + 1, ...

    Event n has step n and value n - first. Acknowledged events must be counted exactly once, all
    others at most once.

    Args:
        curves: The curves of one store.
        name: Name of the events.
        first: Step of the first event, one more than a multiple of `window`.
        acknowledged: How many events were acknowledged.
        sent: How many events were logged.
        window: Steps of a window.
    """
    last = first + sent + window
    counts = [(step, value) for step, value in curves.get(f"{name}/count", []) if first <= step <= last]
    sums = dict(point for point in curves.get(f"{name}/sum", []) if first <= point[0] <= last)
    num_counted = int(sum(value for _, value in counts))
    problems = [f"{name}: step {step} twice" for step in repeated(counts)[:3]]
    if not acknowledged <= num_counted <= sent:
        problems.append(f"{name}: {num_counted} events, {acknowledged} acknowledged, {sent} sent")
    position = 0
    for step, count in counts:
        expected = sum(range(position, position + int(count)))
        if abs(sums.get(step, -1.0) - expected) > max(1e-6 * expected, 0.5):
            problems.append(f"{name}: the sum up to step {step} is {sums.get(step)}, not {expected}")
            break
        position += int(count)
    return problems


def rss_mb(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def metrics_for(names: Iterable[str], window: int) -> list[dict[str, Any]]:
    """Return a count and a sum metric for each event name, in windows of `window` steps."""
    return [
        {
            "name": f"{name}/{kind}",
            "raw_event_name": name,
            "aggregation": kind,
            "log_frequency_steps": window,
        }
        for name in names
        for kind in ("count", "sum")
    ]
