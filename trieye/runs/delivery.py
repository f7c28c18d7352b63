"""Deliver the journal of a run whose process is gone: `close`, `rebuild` and `restore_attempt`."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trieye.config import TrieyeConfig
from trieye.config.base import did_you_mean
from trieye.config.fingerprint import json_of
from trieye.config.sinks import OUR_NAMES
from trieye.exceptions import ConfigurationError, JournalError
from trieye.files.run_files import JOURNAL, RunFiles
from trieye.files.run_record import MirrorIdentity, RunRecord, RunStatus, require_owner
from trieye.hub.directory import HubFiles
from trieye.hub.logic import HubLogic
from trieye.hub.marks import AttemptMark
from trieye.hub.status import read_status
from trieye.journal.scan import inspect
from trieye.process.lock import RunLock
from trieye.process.waiting import wait_while_moving
from trieye.runs.attempt_rows import attempts
from trieye.runs.config import config_of, sinks_of
from trieye.runs.finding import RunReference, run_directory
from trieye.runs.stored_run import record_in
from trieye.sinks.bookmark import FROM_THE_BEGINNING
from trieye.sinks.mlflow.store import require_password

POLL_S = 0.1
DEFAULT_TIMEOUT_S = 300.0

SHOW_ALL_TWICE = ("wandb",)
"""Sinks that cannot recognize items they already have."""

Progress = Callable[[int, int], None]
"""Called with the items that the slowest sink has, and with all items."""


@dataclass(frozen=True)
class DeliveryResult:
    """The result of a delivery.

    Attributes:
        run_dir: Directory of the run.
        status: The status that the run is recorded with now.
        sinks: The sinks of the run.
        num_items: Points and operations in its history.
        took_s: Seconds; 0 if every sink had everything.
        warnings: Repaired damage of the journal, and items that a sink refused.
        missing: The missing items of each sink, and the reason.
    """

    run_dir: Path
    status: RunStatus
    sinks: list[str]
    num_items: int = 0
    took_s: float = 0.0
    warnings: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)


def close(
    run: RunReference,
    *,
    root: Path | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    progress: Progress | None = None,
) -> DeliveryResult:
    """Deliver the rest of a killed run's journal to its sinks, and record the run as KILLED.

    Args:
        run: The run, its directory or its name; no process may write to it.
        root: Directory of all apps; None: the directories of the project around the working directory.
        timeout_s: Seconds without any progress after which to stop waiting.
        progress: Called while it delivers.

    Raises:
        ConfigurationError: There is no such run, its config cannot be read, or it may be a copy of another run.
        RunLockedError: A process writes to it.
    """
    record, config = idle_run(run_dir := run_directory(run, root=root))
    sinks = sinks_of(config)
    if is_delivered(run_dir, record, sinks):
        return DeliveryResult(run_dir, record.status, sinks)
    return deliver(config, timeout_s, progress=progress)


def rebuild(
    run: RunReference,
    sinks: Sequence[str] = (),
    *,
    root: Path | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    progress: Progress | None = None,
) -> DeliveryResult:
    """Write the sinks of a run again, from its history and its journal; a killed run is recorded as KILLED.

    Args:
        run: The run, its directory or its name; no process may write to it.
        sinks: Names of the sinks; none: all that do not show everything twice then, as Weights & Biases does.
        root: Directory of all apps; None: the directories of the project around the working directory.
        timeout_s: Seconds without any progress after which to stop waiting.
        progress: Called while it delivers.

    Raises:
        ConfigurationError: The run has no such sink; otherwise as `close`.
        RunLockedError: A process writes to it.
    """
    record, config = idle_run(run_directory(run, root=root))
    sink_names = sinks_of(config)
    names = sinks or [name for name in sink_names if name not in SHOW_ALL_TWICE]
    for name in names:
        if name not in sink_names:
            has = f"it has: {', '.join(sink_names)}" if sink_names else "it has none"
            raise ConfigurationError(f"--sink {name}: the run has no such sink{did_you_mean(name, sink_names)} ({has})")
    if record.status != "RUNNING":  # otherwise every sink has to receive the status, too
        settings = config.sinks
        enabled = {kind: getattr(settings, kind).model_copy(update={"enabled": kind in names}) for kind in OUR_NAMES}
        config = config.model_copy(update={"sinks": settings.model_copy(update=enabled)})
    return deliver(config, timeout_s, rewritten=names, progress=progress)


def restore_attempt(
    run: RunReference,
    attempt: int,
    *,
    root: Path | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    progress: Progress | None = None,
) -> DeliveryResult:
    """Show the superseded points of an attempt again; points of others from the same step on are superseded instead.

    Args:
        run: The run, its directory or its name; no process may write to it.
        attempt: Number of the attempt, from 1.
        root: Directory of all apps; None: the directories of the project around the working directory.
        timeout_s: Seconds without any progress after which to stop waiting.
        progress: Called while it delivers.

    Raises:
        ConfigurationError: The attempt has no superseded points; otherwise as `close`.
        RunLockedError: A process writes to it.
    """
    run_dir = run_directory(run, root=root)
    attempt_numbers = [row.number for row in attempts(run_dir) if row.superseded]
    if attempt not in attempt_numbers:
        choices = ", ".join(map(str, attempt_numbers)) or "no attempt has any"
        raise ConfigurationError(
            f"--restore {attempt}: attempt {attempt} has no superseded points (choose from: {choices})"
        )
    _, config = idle_run(run_dir)
    return deliver(config, timeout_s, change=lambda hub: hub.restore_opening(attempt), progress=progress)


def idle_run(run_dir: Path) -> tuple[RunRecord, TrieyeConfig]:
    """Return the record of a run that no process writes to, and its config with its current directory.

    Raises:
        ConfigurationError: It is no run, its config cannot be read, or it may be a copy of another run.
        RunLockedError: A process writes to it.
    """
    record = record_in(run_dir)
    require_owner(record, run_dir)
    config = config_of(run_dir)
    for lock in ("run.lock", "hub.lock"):
        RunLock.check(run_dir / lock)
    return record, config


def deliver(
    config: TrieyeConfig,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    *,
    rewritten: Sequence[str] = (),
    change: Callable[[HubLogic], None] | None = None,
    progress: Progress | None = None,
) -> DeliveryResult:
    """Open a run without training, and wait until its sinks have everything.

    Args:
        config: The config of a run that no process writes to.
        timeout_s: Seconds without any progress after which to stop waiting.
        rewritten: Sinks that start at the beginning of the history.
        change: Called with the open hub before the delivery.
        progress: Called while it delivers.
    """
    began = time.monotonic()
    with _hub(config, rewritten) as hub:
        if change is not None:
            change(hub)
        _wait(hub, timeout_s, progress or (lambda _done, _total: None))
    health = hub.status.health()
    refused = ((sink["name"], sink["refused"]) for sink in health["sinks"] if sink["refused"])
    refusals = [f"{name} refused {num:,} items; the log of the run says why" for name, num in refused]
    run_dir = hub.files.paths.run_base_dir
    return DeliveryResult(
        run_dir,
        record_in(run_dir).status,
        sinks_of(config),
        health["points"],
        time.monotonic() - began,
        [*hub.files.journal.damage, *refusals],
        {sink["name"]: lacks for sink in health["sinks"] if (lacks := _lacks(sink))},
    )


def is_delivered(run_dir: Path, record: RunRecord, sinks: Sequence[str]) -> bool:
    """Return True if a run is closed and every sink has everything, without opening it."""
    if record.status == "RUNNING":
        return False
    try:
        contents = inspect(run_dir / JOURNAL)
    except JournalError:
        return False
    if contents.damage or not contents.snapshots:
        return False
    pos, end = contents.snapshots[-1]
    return contents.last_pos <= pos and all(contents.cursors.get(name, 0) >= end for name in sinks)


def _wait(hub: HubLogic, timeout_s: float, progress: Progress) -> None:
    """Wait until every sink has everything, or none of them makes progress.

    A sink whose destination was deleted is not waited for.
    """

    def have_all(pause_s: float) -> bool:
        health = hub.status.health()
        num_behind = max((sink["backlog"] for sink in health["sinks"] if not sink["is_gone"]), default=0)
        progress(health["points"] - num_behind, health["points"])
        if num_behind:
            time.sleep(pause_s)
        return not num_behind

    wait_while_moving(have_all, hub.status.activity, timeout_s, poll_s=POLL_S)


def _lacks(sink: dict[str, Any]) -> str | None:
    """Return the missing items of a closed sink; None if it has everything."""
    error = (sink["error"] or "there was no time for them").removeprefix("TrieyeError: ")
    if sink["backlog"]:
        return f"{sink['backlog']:,} items are missing: {error}"
    return f"it has all items, and was not told how the run ended: {error}" if sink["error"] else None


@contextlib.contextmanager
def _hub(config: TrieyeConfig, rewritten: Sequence[str]) -> Iterator[HubLogic]:
    """Reopen the last attempt of a run whose processes are gone, without training; then record how it ended."""
    if config.sinks.mlflow.enabled:
        require_password(config.persistence.MLFLOW_TRACKING_URI)
    paths = RunFiles(config.persistence)
    # as a driver holds it: until everything is recorded, so that no other attempt starts before
    with RunLock(paths.lock_path), contextlib.ExitStack() as exit_stack:
        record = record_in(paths.run_base_dir)
        status: RunStatus = "KILLED" if record.status == "RUNNING" else record.status
        end_time = record.ended or _last_sign_of_life(record, paths.run_base_dir)
        if config.persistence.mirror is not None and record.owner is not None:
            mirror = MirrorIdentity(app_name=config.app_name, run_name=config.run_name, token=record.owner.token)
            if mirror not in (record.mirror, *record.former_mirrors):  # the run was renamed
                record.former_mirrors = [*record.former_mirrors, mirror]
                record.save(paths.run_record_path)
        hub = HubLogic(config)
        hub.files = _Files(hub, rewritten)
        try:
            hub.open(owns_run=False, extra_config=json_of(paths.config_path))
        except BaseException:  # the hub has recorded that the run failed, and such a run is not closed
            _record_end(paths, record.status, record.ended)
            raise
        exit_stack.callback(_record_end, paths, status, end_time)  # this was not part of the attempt
        exit_stack.callback(hub.shutdown, status, patient=True)
        yield hub


def _last_sign_of_life(record: RunRecord, run_dir: Path) -> float:
    try:
        return float(read_status(run_dir).get("time", record.started))
    except JournalError:
        return record.started


def _record_end(paths: RunFiles, status: RunStatus, end_time: float | None) -> None:
    record = record_in(paths.run_base_dir)
    record.status, record.ended = status, end_time
    record.save(paths.run_record_path)


class _Files(HubFiles):
    """The files of a run that is reopened without training.

    Args:
        hub: The hub of the run; its config receives the metrics of the reopened attempt.
        rewritten: Sinks that start at the beginning of the history.
    """

    def __init__(self, hub: HubLogic, rewritten: Sequence[str]) -> None:
        super().__init__(hub.config)
        self._hub, self._rewritten = hub, rewritten

    def open(self, *, owns_run: bool, is_restart: bool = False) -> RunRecord:
        """Open them as a hub does, and move the cursors of rewritten sinks to the beginning."""
        record = super().open(owns_run=owns_run, is_restart=is_restart)
        mark = self.journal.meta("attempt")
        # configs.json has the user's choice; the entries were made for the metrics that the hub derived from it
        stats = None if mark is None else AttemptMark.from_bytes(mark).stats_config()
        stats = (stats or self._config.stats).model_copy(update={"hub_metrics_interval_s": 0.0})
        self._hub.config = self._config.model_copy(update={"stats": stats})
        for sink in self._rewritten:
            self.journal.set_cursor(sink, 0, FROM_THE_BEGINNING)
        return record
