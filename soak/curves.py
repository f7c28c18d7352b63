"""What a run shows in each of the three places, and whether it is what was logged."""

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
    """Return the curves of the one MLflow run that belongs to a run."""
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
    """Return where the event files of a run are: in its directory, those of trieye 0.1.5 in one of their own."""
    own = run_dir / "tensorboard"
    return own if own.is_dir() else run_dir


def curves_in_tensorboard(run_dir: Path) -> dict[str, Curve]:
    """Return the curves in the event files of a run; their values are 32 bits wide."""
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

    accumulator = EventAccumulator(str(event_dir(run_dir)), size_guidance={SCALARS: 0}, purge_orphaned_data=False)
    accumulator.Reload()
    tags = accumulator.Tags()["scalars"]
    return {tag: sorted((event.step, event.value) for event in accumulator.Scalars(tag)) for tag in tags}


def curves_in_history(run_dir: Path) -> dict[str, Curve]:
    """Return the curves in the history of a run; none if there is no file of it."""
    from trieye.history.history import read_history

    if not any((run_dir / name).exists() for name in ("journal.db", "history")):
        return {}  # a damage took the journal before anything was in Parquet
    table = read_history(run_dir)
    curves: defaultdict[str, Curve] = defaultdict(list)
    columns = (table[name].to_pylist() for name in ("metric", "step", "value"))
    for metric, step, value in zip(*columns, strict=True):
        curves[metric].append((step, value))
    return {metric: sorted(curve) for metric, curve in curves.items()}


def deliver(config: trieye.TrieyeConfig) -> trieye.Run:
    """Start a run once more, so that every sink gets what is left, however slow the machine is; return it closed."""
    until = time.monotonic() + DEADLINE_S
    with trieye.Run(config) as run:
        while any(sink["backlog"] for sink in run.health()["sinks"]) and time.monotonic() < until:
            time.sleep(0.2)
    return run


def places(run_dir: Path) -> dict[str, dict[str, Curve]]:
    """Return the curves in all three places, without the hub's own metrics."""
    found = {
        "mlflow": curves_in_mlflow(run_dir),
        "tensorboard": curves_in_tensorboard(run_dir),
        "history": curves_in_history(run_dir),
    }
    return {
        place: {name: curve for name, curve in curves.items() if not name.startswith("trieye/")}
        for place, curves in found.items()
    }


def repeated(curve: Curve) -> list[int]:
    """Return the steps that a curve has more than once."""
    return [step for step, count in Counter(step for step, _ in curve).items() if count > 1]


def problems_of_prefix(
    curves: Mapping[str, Curve], name: str, *, first: int, acknowledged: int, sent: int, window: int
) -> list[str]:
    """Return what is wrong with the curves `<name>/count` and `<name>/sum` of events first, first + 1, ...

    Event n has step n and value n - first. What was acknowledged has to be there once, what was sent may be.

    Args:
        curves: The curves of one place.
        name: Name of the events.
        first: Step of the first event, one more than a multiple of `window`.
        acknowledged: How many events were acknowledged.
        sent: How many events were logged.
        window: Steps of a window.
    """
    last = first + sent + window
    counts = [(step, value) for step, value in curves.get(f"{name}/count", []) if first <= step <= last]
    sums = dict(point for point in curves.get(f"{name}/sum", []) if first <= point[0] <= last)
    found = int(sum(value for _, value in counts))
    problems = [f"{name}: step {step} twice" for step in repeated(counts)[:3]]
    if not acknowledged <= found <= sent:
        problems.append(f"{name}: {found} events, {acknowledged} acknowledged, {sent} sent")
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
    """Return a count and a sum metric for each event name, in windows of some steps."""
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
