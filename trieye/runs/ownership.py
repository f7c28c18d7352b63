"""Ownership: which directory of a run its MLflow run and its mirror belong to."""

from pathlib import Path

from trieye.files.run_record import claim as record_owner
from trieye.process.lock import RunLock
from trieye.runs.finding import RunReference, run_directory


def claim(run: RunReference, *, root: Path | None = None) -> Path:
    """Record the directory of a run that was moved as the owner of its MLflow run and its mirror, and return it.

    Args:
        run: The run, its directory or its name.
        root: Directory of all apps; None: the directories of the project around the working directory.

    Raises:
        ConfigurationError: There is no such run, or it is a copy of a run that still exists.
        RunLockedError: The run is alive.
    """
    run_dir = run_directory(run, root=root)
    with RunLock(run_dir / "run.lock"), RunLock(run_dir / "hub.lock"):
        record_owner(run_dir)
    return run_dir
