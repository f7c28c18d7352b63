"""Find the state from which a run goes on, and say why it is that one."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trieye.config import PersistenceConfig
from trieye.config.base import did_you_mean
from trieye.config.locations import CheckpointReference, checkpoint_reference
from trieye.config.names import check_name
from trieye.exceptions import CheckpointError, ConfigurationError
from trieye.persistence.candidates import Found, called, check_called, find_buffer, find_checkpoint, given_path, named
from trieye.persistence.checkpoints import CHECKPOINT_PREFIX, CheckpointEntry, Read, check
from trieye.persistence.earlier_runs import EarlierRun, earlier_runs, run_roots
from trieye.persistence.manifest import read_manifest
from trieye.persistence.nodes import EncodedState
from trieye.persistence.run_record import RunRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from trieye.path_manager import PathManager

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ResumePoint:
    """The state from which a run goes on.

    Attributes:
        path: A checkpoint directory, or a pickle file of trieye 0.1.5.
        step: Its global step; None where only the content of a 0.1.5 file knows it.
        run_name: The run that saved it.
        reason: A sentence for the log.
        buffer_path: The buffer that was saved with it or before it.
        buffer_step: The step at which that was.
        state: What is in the checkpoint, if it was read to find out whether it is whole.
        buffer_state: The same of the buffer.
        went_back_to: What the user called it, if the run goes back to an earlier checkpoint of its own.
    """

    path: Path
    step: int | None
    run_name: str
    reason: str
    buffer_path: Path | None = None
    buffer_step: int | None = None
    state: EncodedState | None = None
    buffer_state: EncodedState | None = None
    went_back_to: str | None = None


def find_resume(
    paths: "PathManager",
    config: PersistenceConfig,
    *,
    config_hash: str | None = None,
    group: str | None = None,
    own_first: bool = True,
    strict: bool = True,
    read: Read = check,
) -> ResumePoint | None:
    """Return the state from which the run goes on, or None for a fresh start.

    The run's own newest whole checkpoint; else `load_checkpoint_path`; else, with `auto_resume_latest`, that of the
    newest earlier run of the app with the same `config_hash`, also of those below `resume_dirs`.

    A `load_checkpoint_path` of `best`, `latest` or `step:<N>` means a checkpoint of the run itself and comes first: the
    run goes back to it. It does so once: an attempt with the same words, as a job that was preempted makes, goes on
    from what was saved since. `<run>:best` and the like mean one of another run of the app, and count as a path to it.

    Args:
        paths: Paths of the run.
        config: What may be loaded.
        config_hash: Hash of what must not differ for a checkpoint to fit; None accepts every run.
        group: The sweep that the run belongs to; its members are never resumed.
        own_first: With False, `load_checkpoint_path` comes before the run's own checkpoints.
        strict: With False, a `load_checkpoint_path` that does not exist is a warning.
        read: Finds out whether a saved directory is whole; the point has what it returns: nothing is read twice.

    Raises:
        ConfigurationError: `load_checkpoint_path`, `load_buffer_path` or one of `resume_dirs` does not exist.
        CheckpointError: The chosen run has checkpoints and none of them is whole.
    """
    reference = checkpoint_reference(config.load_checkpoint_path or "")
    goes_back = reference is not None and reference.run_name in {None, config.run_name}

    def own() -> ResumePoint | None:
        point = _own(paths, config, strict=strict, read=read)
        if point is None or not own_first or goes_back or not config.load_checkpoint_path:
            return point
        unused = f"load_checkpoint_path={config.load_checkpoint_path} is for its first start"
        return replace(point, reason=f"{point.reason} ({unused})")

    def explicit() -> ResumePoint | None:
        if reference is None:
            return _explicit(paths, config, strict=strict, read=read)
        find = _back if goes_back else _of_another
        return find(paths, config, reference, strict=strict, read=read)

    def earlier() -> ResumePoint | None:
        return _earlier(paths, config, config_hash=config_hash, group=group, strict=strict, read=read)

    finders: list[Callable[[], ResumePoint | None]] = (
        [own, explicit] if own_first and not goes_back else [explicit, own]
    )
    if config.auto_resume_latest:
        finders.append(earlier)
    for find in finders:
        if (point := find()) is not None:
            return point
    return None


def check_reference(paths: "PathManager", config: PersistenceConfig) -> None:
    """Make sure, before anything is started, that there is what `load_checkpoint_path` calls `best` or `first:best`.

    Only names are looked at. Nothing is checked where the mirror may have what is not here.

    Raises:
        ConfigurationError: No such run, or none of its checkpoints is of that kind.
        CheckpointError: Those that there are are damaged.
    """
    reference = checkpoint_reference(config.load_checkpoint_path or "")
    if reference is None or config.mirror is not None:
        return
    if reference.run_name in {None, config.run_name}:
        record = RunRecord.read(paths.run_record_path)
        if record is None or record.went_back_to != config.load_checkpoint_path:
            check_called(paths.run_base_dir, reference.which, config)
    elif not any(paths.checkpoint_dir.glob(f"{CHECKPOINT_PREFIX}*")):
        check_called(_directory_of(paths, config, reference), reference.which, config)


def choose_buffer(
    paths: "PathManager", load_path: str | None, run_name: str | None, max_step: int | None, *, auto_resume: bool
) -> Path | None:
    """Return the drop-in API's buffer to load: the one named, that of the checkpoint's run, or an earlier run's."""
    config = paths.persist_config
    given = given_path("load_buffer_path", load_path, config, strict=False) if load_path else None
    if given is not None:
        return given[0]
    if run_name:
        name = _checked(run_name)
        directories = [root / name for root in run_roots(paths)]
    else:
        directories = [run.directory for run in earlier_runs(paths, config.run_name)] if auto_resume else []
    for directory in directories:
        if (found := find_buffer(directory, config, max_step)) is not None:
            return found[0]
    return None


def _checked(run_name: str) -> str:
    try:
        return check_name("run_name", run_name)
    except ValueError as error:  # it comes from inside a checkpoint
        raise ConfigurationError(str(error)) from error


def _own(paths: "PathManager", config: PersistenceConfig, *, strict: bool, read: Read) -> ResumePoint | None:
    found = find_checkpoint(paths.run_base_dir, config, read_only=False, read=read)
    if found is None:
        return None
    record = RunRecord.read(paths.run_record_path)
    finished = ", which had finished," if record is not None and record.status_before == "FINISHED" else ""
    reason = f"run {config.run_name!r}{finished} goes on from its own newest checkpoint, {named(found)}"
    return _point(found, config.run_name, reason, paths.run_base_dir, config, strict=strict, read=read, own=True)


def _back(
    paths: "PathManager", config: PersistenceConfig, reference: CheckpointReference, *, strict: bool, read: Read
) -> ResumePoint:
    """Return the checkpoint of the run itself that the user called, or its newest one if that happened already."""
    asked = f"load_checkpoint_path={config.load_checkpoint_path}"
    record = RunRecord.read(paths.run_record_path)
    if record is not None and record.went_back_to == config.load_checkpoint_path:
        newest = called(paths.run_base_dir, "latest", config, read_only=False, read=read)
        if int(newest.metadata.get("attempt") or 0) >= (record.went_back_in or 0):
            reason = (
                f"run {config.run_name!r} goes on from its own newest checkpoint, {newest.path.name}: its attempt "
                f"{record.went_back_in} went back already ({asked}); to go back again, start it once without that"
            )
            return _point(_found(newest), config.run_name, reason, paths.run_base_dir, config, strict=strict, read=read)
    entry = called(paths.run_base_dir, reference.which, config, read_only=False, read=read)
    reason = f"run {config.run_name!r} goes back to its own checkpoint {entry.path.name} ({asked})"
    point = _point(_found(entry), config.run_name, reason, paths.run_base_dir, config, strict=strict, read=read)
    return replace(point, went_back_to=config.load_checkpoint_path)


def _of_another(
    paths: "PathManager", config: PersistenceConfig, reference: CheckpointReference, *, strict: bool, read: Read
) -> ResumePoint:
    name, directory = reference.run_name or "", _directory_of(paths, config, reference)
    entry = called(directory, reference.which, config, read=read)
    asked = f"load_checkpoint_path={config.load_checkpoint_path}"
    reason = f"run {config.run_name!r} starts from {entry.path.name} of {name!r} ({asked})"
    return _point(_found(entry), name, reason, directory, config, strict=strict, read=read)


def _directory_of(paths: "PathManager", config: PersistenceConfig, reference: CheckpointReference) -> Path:
    name = _checked(reference.run_name or "")
    roots = run_roots(paths)
    directory = next((root / name for root in roots if (root / name).is_dir()), None)
    if directory is None:
        known = sorted({path.name for root in roots if root.is_dir() for path in root.iterdir() if path.is_dir()})
        raise ConfigurationError(
            f"persistence.load_checkpoint_path={config.load_checkpoint_path}: app {config.app_name!r} has no run "
            f"{name!r}{did_you_mean(name, known)} (looked in {', '.join(map(str, roots))})"
        )
    return directory


def _explicit(paths: "PathManager", config: PersistenceConfig, *, strict: bool, read: Read) -> ResumePoint | None:
    if not config.load_checkpoint_path:
        return None
    found = given_path("load_checkpoint_path", config.load_checkpoint_path, config, strict=strict, read=read)
    if found is None:
        return None
    directory = found[0].parent.parent
    reason = f"run {config.run_name!r} starts from load_checkpoint_path={config.load_checkpoint_path}, {named(found)}"
    run_name = _saved_by(found[0]) or directory.name
    return _point(
        found, run_name, reason, directory, config, strict=strict, read=read, own=directory == paths.run_base_dir
    )


def _earlier(
    paths: "PathManager",
    config: PersistenceConfig,
    *,
    config_hash: str | None,
    group: str | None,
    strict: bool,
    read: Read,
) -> ResumePoint | None:
    for run in earlier_runs(paths, config.run_name):
        if not _fits(run, config.run_name, config_hash, group):
            continue
        try:
            if (found := find_checkpoint(run.directory, config, read=read)) is None:
                continue
            same = "" if config_hash is None else " with the same config"
            place = "" if run.directory.parent == paths.runs_root_dir else f" in {run.directory.parent}"
            reason = (
                f"run {config.run_name!r} starts from {named(found)} of {run.name!r}{place}, the newest earlier run of "
                f"app {config.app_name!r}{same} (auto_resume_latest)"
            )
            return _point(found, run.name, reason, run.directory, config, strict=strict, read=read)
        except CheckpointError as error:
            logger.warning("run %r is not resumed from: %s", run.name, error)
    return None


def _fits(run: EarlierRun, own_name: str, config_hash: str | None, group: str | None) -> bool:
    if group is not None and run.group == group and run.name != own_name:
        return False
    return config_hash is None or run.config_hash == config_hash


def _point(
    found: Found,
    run_name: str,
    reason: str,
    directory: Path,
    config: PersistenceConfig,
    *,
    strict: bool,
    read: Read,
    own: bool = False,
) -> ResumePoint:
    path, step, state = found
    buffer = _paired_buffer(directory, step, config, strict=strict, read=read, read_only=not own)
    if buffer is None:
        return ResumePoint(path, step, run_name, reason, state=state)
    reason = f"{reason}, with {named(buffer)}"
    return ResumePoint(path, step, run_name, reason, buffer.path, buffer.step, state, buffer.state)


def _found(entry: CheckpointEntry) -> Found:
    return Found(entry.path, entry.step, entry.state)


def _paired_buffer(
    directory: Path, step: int | None, config: PersistenceConfig, *, strict: bool, read: Read, read_only: bool
) -> Found | None:
    if not config.save_buffer:
        return None
    if config.load_buffer_path:
        given = given_path("load_buffer_path", config.load_buffer_path, config, strict=strict, read=read)
        if given is not None:
            return given
    return find_buffer(directory, config, step, read_only=read_only, read=read)


def _saved_by(path: Path) -> str | None:
    if not path.is_dir():
        return None
    name = read_manifest(path).metadata.get("run_name")
    return name if isinstance(name, str) else None
