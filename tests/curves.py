"""Read the record of a run, and its curves from its trackers."""

from pathlib import Path
from typing import Any

from trieye.files.run_record import RunRecord

Curves = dict[str, list[tuple[int, float]]]


def record_of(run_dir: Path) -> RunRecord:
    """Return the contents of run.json."""
    record = RunRecord.read(run_dir / "run.json")
    assert record is not None
    return record


def event_dir(run_dir: Path) -> Path:
    """Return the directory of the event files of a run: `tensorboard/`, as in trieye 0.1.5, or the run directory."""
    directory = run_dir / "tensorboard"
    return directory if directory.is_dir() else run_dir


def curves_in_tensorboard(run_dir: Path) -> Curves:
    """Return {metric: [(step, value), ...]} of all records in the event files, including duplicates."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(event_dir(run_dir)), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {tag: [(e.step, e.value) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def mlflow_runs(run_dir: Path) -> tuple[Any, list[Any]]:
    """Return a client of the MLflow store of an app, and the runs of the app."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{run_dir.parents[1] / 'mlruns' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(run_dir.parents[1].name)
    return client, client.search_runs([experiment.experiment_id])


def curves_in_mlflow(run_dir: Path) -> Curves:
    """Return {metric: [(step, value), ...]} of the only run in the MLflow store."""
    client, (run,) = mlflow_runs(run_dir)
    names = run.data.metrics
    return {name: sorted((m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)) for name in names}
