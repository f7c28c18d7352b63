"""The runs of an app that were begun before a given one."""

import logging
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from trieye.exceptions import ConfigurationError, SerializationError
from trieye.persistence.run_record import RunRecord

if TYPE_CHECKING:
    from trieye.path_manager import PathManager

logger = logging.getLogger(__name__)

_DATE_IN_NAME = re.compile(r"\d{8}_\d{6}")


@dataclass(frozen=True)
class EarlierRun:
    """A run of the app that was begun before the current one."""

    name: str
    directory: Path
    created: float
    config_hash: str | None
    group: str | None


def earlier_runs(paths: "PathManager", run_name: str) -> list[EarlierRun]:
    """Return the other runs of the app that were begun before `run_name`, the newest first.

    They lie beside it, or below one of `resume_dirs`, where a run of the same name counts as another one, too. When a
    run was begun stands in its run.json. For runs of trieye 0.1.5 it is the date in the name, else the time of the
    directory.

    Raises:
        ConfigurationError: One of `resume_dirs` does not exist.
    """
    record_name = paths.run_record_path.name
    own = paths.runs_root_dir / run_name
    own_record = RunRecord.read(own / record_name)
    before = own_record.created if own_record is not None else time.time()
    others = [path for root in run_roots(paths) for path in _directories(root) if path != own]
    runs = [run for path in others if (run := _describe(path, record_name)) is not None]
    earlier = [run for run in runs if run.created <= before]
    return sorted(earlier, key=lambda run: (run.created, run.name), reverse=True)


def run_roots(paths: "PathManager") -> list[Path]:
    """Return the directories in which the app's runs lie: its own one first, then those below `resume_dirs`.

    Raises:
        ConfigurationError: One of `resume_dirs` does not exist.
    """
    config = paths.persist_config
    roots = [paths.runs_root_dir]
    for given, root in config.get_resume_roots().items():
        if not root.is_dir():
            raise ConfigurationError(
                f"persistence.resume_dirs={given}: there is no directory {root} in which to look for earlier runs"
            )
        roots.append(root / paths.app_root_dir.name / paths.runs_root_dir.name)
    return list(dict.fromkeys(roots))


def _directories(root: Path) -> Iterator[Path]:
    if not root.is_dir():
        return
    for path in root.iterdir():
        if path.is_symlink() and not path.resolve().is_relative_to(root.resolve()):
            logger.warning("%s is a link that leaves %s and is not looked at", path, root)
        elif path.is_dir():
            yield path


def _describe(directory: Path, record_name: str) -> EarlierRun | None:
    try:
        record = RunRecord.read(directory / record_name)
    except SerializationError as error:
        logger.warning("run %r is not resumed from: %s", directory.name, error)
        return None
    if record is None:
        return EarlierRun(directory.name, directory, _begun(directory), None, None)
    return EarlierRun(directory.name, directory, record.created, record.config_hash, record.group)


def _begun(directory: Path) -> float:
    for text in _DATE_IN_NAME.findall(directory.name):
        try:
            return datetime.strptime(text, "%Y%m%d_%H%M%S").astimezone().timestamp()
        except ValueError:
            continue
    return directory.stat().st_mtime
