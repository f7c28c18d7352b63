"""`trieye sweep merge`: copy the runs of a sweep from their mirror and log all of them to one MLflow store."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trieye.cli.arguments import DEFAULT_ROOT, add_action, add_root, add_timeout, sweep_directory
from trieye.cli.output import show
from trieye.exceptions import ConfigurationError, TrieyeError

if TYPE_CHECKING:
    from trieye.files.run_files import RunFiles
    from trieye.sweeps.record import SweepRecord

_MIRROR = "persistence.mirror"
LOCK = "merge.lock"


def add_merge(actions: Any) -> None:
    """Add the `merge` action."""
    merge = add_action(actions, "merge", "copy runs from other machines here, and log them to one MLflow store")
    merge.add_argument("dir", nargs="?", type=Path, metavar="DIR", help="sweep directory")
    merge.add_argument("--mirror", metavar="URL", help=f"mirror of the runs (default: {_MIRROR} of the sweep)")
    add_root(merge, Path(DEFAULT_ROOT))
    add_timeout(merge)


def merge(options: argparse.Namespace) -> int:
    """Copy new runs and new states of runs from the mirror, deliver them to MLflow, and return the exit code."""
    from trieye.process.lock import RunLock, is_alive
    from trieye.sweeps.jobs import RUN
    from trieye.sweeps.record import SweepRecord
    from trieye.sweeps.status import status_of
    from trieye.sweeps.tracking import show_in_mlflow

    directory = sweep_directory(options.dir)
    record = SweepRecord.of(directory)
    mirror_url = _mirror(options.mirror, record)
    errors: dict[int, str] = {}
    lines: list[str] = []
    with RunLock(directory / LOCK):
        started_jobs = [job for job in status_of(directory) if (directory / str(job.index) / RUN).is_symlink()]
        for job in started_jobs:
            try:
                paths = _fetch(directory / str(job.index) / RUN, mirror_url, options.root.resolve())
                if is_alive(paths.run_base_dir):  # it delivers itself, to the sinks of its config
                    lines.append(f"job {job.index} is still running; merge again after it has ended")
                elif missing_by_sink := _deliver(paths, options.timeout):
                    errors[job.index] = "; ".join(f"{sink}: {reason}" for sink, reason in missing_by_sink.items())
            except (TrieyeError, OSError) as error:
                errors[job.index] = str(error)
        show_in_mlflow(directory, record, status_of(directory))
    lines += [f"job {index}: {reason}" for index, reason in errors.items()]
    lines.append(f"{len(started_jobs) - len(errors)} of {len(started_jobs)} runs are in {options.root}")
    show(options, "sweep.merge", {"sweep": directory, "num_runs": len(started_jobs), "failed": errors}, lines)
    return 1 if errors else 0


def _mirror(option: str | None, record: "SweepRecord") -> str:
    from trieye.config.locations import check_mirror_url

    urls = [word.partition("=")[2] for word in record.spec if word.lstrip("+").startswith(f"{_MIRROR}=")]
    url = option or (urls[-1] if urls else None)
    if url is None:
        raise ConfigurationError(
            f"unknown mirror: the sweep does not set {_MIRROR}; pass the mirror of the runs, such as "
            "--mirror file:///shared/runs"
        )
    try:
        return check_mirror_url(url)
    except ValueError as error:
        raise ConfigurationError(f"--mirror {url}: {error}") from error


def _fetch(link: Path, mirror_url: str, root: Path) -> "RunFiles":
    """Copy the run of a job from the mirror unless the local copy is up to date.

    Args:
        link: Link of the job to its run.
        mirror_url: URL of the mirror.
        root: Directory of all apps.

    Returns:
        The files of the local run.

    Raises:
        ConfigurationError: The mirror lacks the run, or another run occupies its directory.
        SerializationError: The newest state of the mirror is damaged, so the runs cannot be compared.
    """
    from trieye.config import TrieyeConfig
    from trieye.files.atomic import relink, remove_directory
    from trieye.files.run_files import RunFiles
    from trieye.files.run_record import RunRecord
    from trieye.mirror.layout import STATES, StateMark, whole_states
    from trieye.mirror.local import LocalRun
    from trieye.mirror.restore import restore_run
    from trieye.mirror.store import MirrorStore
    from trieye.process.lock import RunLock

    origin = link.readlink()  # directory on the machine that ran the job
    if len(origin.parts) < 3:  # noqa: PLR2004 - app, runs, name
        raise ConfigurationError(
            f"{link} points to {str(origin)!r}, but the link to a run ends with APP/RUNS/NAME; delete the link and "
            "relaunch the job"
        )
    app, runs, name = origin.parts[-3:]
    persistence = TrieyeConfig(
        app_name=app, run_name=name, persistence={"root_data_dir": str(root), "runs_dir_name": runs}
    ).persistence
    paths = RunFiles(persistence)
    run_dir, local_run = paths.run_base_dir, LocalRun(paths)
    store = MirrorStore(mirror_url, app, name)
    newest_states = whole_states(store.list(STATES))
    if not newest_states:
        raise ConfigurationError(f"run {name!r} is not in {mirror_url}; check that its job had {_MIRROR}={mirror_url}")
    if not local_run.is_lost():
        generation = local_run.record().generation
        if not generation and origin == run_dir:
            return paths  # this machine ran the job
        if not generation:
            raise ConfigurationError(f"{run_dir} is a run that was not copied from a mirror; choose another --root")
        record = RunRecord.read(paths.run_record_path)
        if record is None or record.run_id != StateMark.from_bytes(store.read(newest_states[0][1])).run_id:
            raise ConfigurationError(
                f"{run_dir} is another run than {name} of the mirror {mirror_url}; choose another --root"
            )
        if generation >= newest_states[0][0]:
            return paths
        with RunLock(paths.lock_path), RunLock(paths.hub_lock_path):
            if local_run.record().generation >= newest_states[0][0]:  # it was alive, and has uploaded this state itself
                return paths
            remove_directory(run_dir)
    paths.create_run_directories()
    with RunLock(paths.lock_path):
        restore_run(paths, mirror_url)
    relink(link, run_dir)
    return paths


def _deliver(paths: "RunFiles", timeout_s: float) -> Mapping[str, str]:
    """Deliver a run to MLflow unless MLflow has all of it, and return the missing items by sink."""
    from trieye.mirror.local import LocalRun
    from trieye.runs.config import config_of, sinks_of
    from trieye.runs.delivery import deliver, is_delivered
    from trieye.runs.stored_run import record_in

    run_dir, local_run = paths.run_base_dir, LocalRun(paths)
    config = config_of(run_dir)
    mlflow = config.sinks.mlflow.model_copy(update={"enabled": True})
    sinks = config.sinks.model_copy(update={"mlflow": mlflow})
    persistence = config.persistence.model_copy(update={"mirror": None})  # the mirror is already complete
    config = config.model_copy(update={"sinks": sinks, "persistence": persistence})
    is_new_copy = local_run.record().note is not None
    if not is_new_copy and is_delivered(run_dir, record_in(run_dir), sinks_of(config)):
        return {}

    def delete_note(_hub: object) -> None:
        local_run.store_record(local_run.record().model_copy(update={"note": None}))

    # the cursor of a new copy may refer to another store; MLflow ignores items that it already has
    rewritten = ["mlflow"] if is_new_copy else []
    return deliver(config, timeout_s, rewritten=rewritten, change=delete_note).missing
