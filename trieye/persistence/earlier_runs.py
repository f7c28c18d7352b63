"""The runs of an app that were begun before a given one."""

import logging
import re
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from trieye.exceptions import SerializationError
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

    When a run was begun stands in its run.json. For runs of trieye 0.1.5 it is the date in the name, else the time of
    the directory.
    """
    if not paths.runs_root_dir.is_dir():
        return []
    own_record = RunRecord.read(paths.runs_root_dir / run_name / paths.run_record_path.name)
    before = own_record.created if own_record is not None else time.time()
    others = [path for path in paths.runs_root_dir.iterdir() if path.is_dir() and path.name != run_name]
    runs = [run for path in others if (run := _describe(path, paths.run_record_path.name)) is not None]
    earlier = [run for run in runs if run.created <= before]
    return sorted(earlier, key=lambda run: (run.created, run.name), reverse=True)


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
