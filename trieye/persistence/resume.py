"""Find the state from which a run goes on, and say why it is that one."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trieye.config import PersistenceConfig
from trieye.config.names import check_name
from trieye.exceptions import CheckpointError, ConfigurationError
from trieye.persistence.candidates import Found, find_buffer, find_checkpoint, given_path, named
from trieye.persistence.earlier_runs import EarlierRun, earlier_runs
from trieye.persistence.manifest import read_manifest

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
    """

    path: Path
    step: int | None
    run_name: str
    reason: str
    buffer_path: Path | None = None
    buffer_step: int | None = None


def find_resume(
    paths: "PathManager",
    config: PersistenceConfig,
    *,
    config_hash: str | None = None,
    group: str | None = None,
    own_first: bool = True,
    strict: bool = True,
) -> ResumePoint | None:
    """Return the state from which the run goes on, or None for a fresh start.

    The run's own newest whole checkpoint; else `load_checkpoint_path`; else, with `auto_resume_latest`, that of the
    newest earlier run of the app with the same `config_hash`.

    Args:
        paths: Paths of the run.
        config: What may be loaded.
        config_hash: Hash of what must not differ for a checkpoint to fit; None accepts every run.
        group: The sweep that the run belongs to; its members are never resumed.
        own_first: With False, `load_checkpoint_path` comes before the run's own checkpoints.
        strict: With False, a `load_checkpoint_path` that does not exist is a warning.

    Raises:
        ConfigurationError: `load_checkpoint_path` or `load_buffer_path` does not exist.
        CheckpointError: The chosen run has checkpoints and none of them is whole.
    """

    def own() -> ResumePoint | None:
        return _own(paths, config, strict=strict)

    def explicit() -> ResumePoint | None:
        return _explicit(paths, config, strict=strict)

    def earlier() -> ResumePoint | None:
        return _earlier(paths, config, config_hash=config_hash, group=group, strict=strict)

    finders: list[Callable[[], ResumePoint | None]] = [own, explicit] if own_first else [explicit, own]
    if config.auto_resume_latest:
        finders.append(earlier)
    for find in finders:
        if (point := find()) is not None:
            return point
    return None


def choose_buffer(
    paths: "PathManager", load_path: str | None, run_name: str | None, max_step: int | None, *, auto_resume: bool
) -> Path | None:
    """Return the drop-in API's buffer to load: the one named, that of the checkpoint's run, or an earlier run's."""
    config = paths.persist_config
    given = given_path("load_buffer_path", load_path, config, strict=False) if load_path else None
    if given is not None:
        return given[0]
    if run_name:
        names = [_checked(run_name)]
    else:
        names = [run.name for run in earlier_runs(paths, config.run_name)] if auto_resume else []
    for name in names:
        if (found := find_buffer(paths.runs_root_dir / name, config, max_step)) is not None:
            return found[0]
    return None


def _checked(run_name: str) -> str:
    try:
        return check_name("run_name", run_name)
    except ValueError as error:  # it comes from inside a checkpoint
        raise ConfigurationError(str(error)) from error


def _own(paths: "PathManager", config: PersistenceConfig, *, strict: bool) -> ResumePoint | None:
    found = find_checkpoint(paths.run_base_dir, config, read_only=False)
    if found is None:
        return None
    reason = f"run {config.run_name!r} goes on from its own newest checkpoint, {named(found)}"
    return _point(found, config.run_name, reason, paths.run_base_dir, config, strict=strict, own=True)


def _explicit(paths: "PathManager", config: PersistenceConfig, *, strict: bool) -> ResumePoint | None:
    if not config.load_checkpoint_path:
        return None
    found = given_path("load_checkpoint_path", config.load_checkpoint_path, config, strict=strict)
    if found is None:
        return None
    directory = found[0].parent.parent
    reason = f"run {config.run_name!r} starts from load_checkpoint_path={config.load_checkpoint_path}, {named(found)}"
    run_name = _saved_by(found[0]) or directory.name
    return _point(found, run_name, reason, directory, config, strict=strict, own=directory == paths.run_base_dir)


def _earlier(
    paths: "PathManager", config: PersistenceConfig, *, config_hash: str | None, group: str | None, strict: bool
) -> ResumePoint | None:
    for run in earlier_runs(paths, config.run_name):
        if not _fits(run, config_hash, group):
            continue
        try:
            if (found := find_checkpoint(run.directory, config)) is None:
                continue
            same = "" if config_hash is None else " with the same config"
            reason = (
                f"run {config.run_name!r} starts from {named(found)} of {run.name!r}, the newest earlier run of app "
                f"{config.app_name!r}{same} (auto_resume_latest)"
            )
            return _point(found, run.name, reason, run.directory, config, strict=strict)
        except CheckpointError as error:
            logger.warning("run %r is not resumed from: %s", run.name, error)
    return None


def _fits(run: EarlierRun, config_hash: str | None, group: str | None) -> bool:
    if group is not None and run.group == group:
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
    own: bool = False,
) -> ResumePoint:
    path, step = found
    buffer = _paired_buffer(directory, step, config, strict=strict, read_only=not own)
    if buffer is None:
        return ResumePoint(path, step, run_name, reason)
    return ResumePoint(path, step, run_name, f"{reason}, with {named(buffer)}", *buffer)


def _paired_buffer(
    directory: Path, step: int | None, config: PersistenceConfig, *, strict: bool, read_only: bool
) -> Found | None:
    if not config.save_buffer:
        return None
    if config.load_buffer_path:
        given = given_path("load_buffer_path", config.load_buffer_path, config, strict=strict)
        if given is not None:
            return given
    return find_buffer(directory, config, step, read_only=read_only)


def _saved_by(path: Path) -> str | None:
    if not path.is_dir():
        return None
    name = read_manifest(path).metadata.get("run_name")
    return name if isinstance(name, str) else None
