"""Delivering what is in the journal of a run whose processes are gone, as `close` and `rebuild` do."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from trieye.cli.given_run import config_of, sinks_of
from trieye.config import TrieyeConfig
from trieye.config.fingerprint import json_of
from trieye.exceptions import ConfigurationError, JournalError
from trieye.files.run_files import JOURNAL, RUN_RECORD, RunFiles
from trieye.files.run_record import RunRecord, RunStatus, require_owner
from trieye.hub.directory import HubFiles
from trieye.hub.logic import HubLogic
from trieye.hub.marks import AttemptMark
from trieye.hub.status import read_status
from trieye.journal.look import inspect
from trieye.process.lock import RunLock
from trieye.process.terminal import Terminal, Text
from trieye.process.waiting import wait_while_moving
from trieye.sinks.bookmark import FROM_THE_BEGINNING
from trieye.sinks.mlflow.store import require_password

POLL_S = 0.1
EXIT_MISSING = 1


def idle_run(run_dir: Path) -> tuple[RunRecord, TrieyeConfig]:
    """Return the record of a run that nobody writes to, and its config for the directory in which it is now.

    Raises:
        ConfigurationError: It is no run, its config cannot be read, or it may be a copy of another run.
        RunLockedError: A process writes to it.
    """
    record = _record(run_dir)
    require_owner(record, run_dir)
    config = config_of(run_dir)
    for lock in ("run.lock", "hub.lock"):
        RunLock.check(run_dir / lock)
    return record, config


def _record(run_dir: Path) -> RunRecord:
    record = RunRecord.read(run_dir / RUN_RECORD)
    if record is None:
        raise ConfigurationError(f"{run_dir} is no run: it has no {RUN_RECORD}")
    return record


def is_delivered(run_dir: Path, record: RunRecord, sinks: Sequence[str]) -> bool:
    """Tell whether a run is closed and every sink has everything, without opening it."""
    if record.status == "RUNNING":
        return False
    try:
        held = inspect(run_dir / JOURNAL)
    except JournalError:
        return False
    if held.damage or not held.snapshots:
        return False
    pos, end = held.snapshots[-1]
    return held.last_pos <= pos and all(held.cursors.get(name, 0) >= end for name in sinks)


def deliver(
    config: TrieyeConfig,
    timeout_s: float,
    *,
    anew: Sequence[str] = (),
    change: Callable[[HubLogic], None] | None = None,
) -> int:
    """Deliver with a progress bar, say what came of it, and return the exit code.

    Args:
        config: The config of a run that nobody writes to.
        timeout_s: Seconds in which no sink takes anything, after which nobody waits any more.
        anew: Sinks that begin at the beginning of the history.
        change: Changes the history first.
    """
    began, what = time.monotonic(), f"delivering {config.run_name}"
    with Terminal(stderr=True).status(what) as spinner, _hub(config, anew) as hub:
        if change is not None:
            change(hub)
        _wait(hub, timeout_s, lambda done, total: spinner.update(Text(f"{what}: {done:,} of {total:,}")))
    for finding in hub.files.journal.damage:
        print(f"warning: {finding}", file=sys.stderr)
    health, is_missing = hub.health(), False
    for sink in health["sinks"]:
        if sink["refused"]:
            what = f"{sink['name']} refused {sink['refused']:,} items"
            print(f"warning: {what}; the log of the run says why", file=sys.stderr)
        if lacks := _lacks(sink):
            is_missing = True
            print(f"error: {sink['name']}: {lacks}", file=sys.stderr)
    if is_missing:
        print("`trieye close` goes on where this ended", file=sys.stderr)
        return EXIT_MISSING
    names, took_s = ", ".join(sinks_of(config)) or "no sink", time.monotonic() - began
    what, status = f"all {health['points']:,} items, in {took_s:.1f} s", _record(hub.files.paths.run_base_dir).status
    print(f"run {config.run_name!r}: {names}: {what}; {status}")
    return 0


def _wait(hub: HubLogic, timeout_s: float, progress: Callable[[int, int], None]) -> None:
    """Wait until every sink has everything, or none of them goes on; tell how many items the slowest one has.

    Nobody waits for a sink whose place was deleted.
    """

    def have_all(pause_s: float) -> bool:
        health = hub.health()
        behind = max((sink["backlog"] for sink in health["sinks"] if not sink["is_gone"]), default=0)
        progress(health["points"] - behind, health["points"])
        if behind:
            time.sleep(pause_s)
        return not behind

    wait_while_moving(have_all, hub.status.activity, timeout_s, poll_s=POLL_S)


def _lacks(sink: dict[str, Any]) -> str | None:
    """Return in words what a closed sink has not got; None if it has everything."""
    error = (sink["error"] or "there was no time for them").removeprefix("TrieyeError: ")
    if sink["backlog"]:
        return f"{sink['backlog']:,} items are missing: {error}"
    return f"it has all items, and was not told how the run ended: {error}" if sink["error"] else None


@contextlib.contextmanager
def _hub(config: TrieyeConfig, anew: Sequence[str]) -> Iterator[HubLogic]:
    """Go on with the last attempt of a run whose processes are gone, without training; then record how it ended."""
    if config.sinks.mlflow.enabled:
        require_password(config.persistence.MLFLOW_TRACKING_URI)
    paths = RunFiles(config.persistence)
    # as a driver holds it: until all is written down, so that nobody begins another attempt meanwhile
    with RunLock(paths.lock_path), contextlib.ExitStack() as rest:
        record = _record(paths.run_base_dir)
        status: RunStatus = "KILLED" if record.status == "RUNNING" else record.status
        ended = record.ended or _last_sign_of_life(record, paths.run_base_dir)
        hub = HubLogic(config)
        hub.files = _Files(hub, anew)
        try:
            hub.open(owns_run=False, extra_config=json_of(paths.config_path))
        except BaseException:  # the hub has recorded that the run failed, which nobody would close then
            _write_down(paths, record.status, record.ended)
            raise
        rest.callback(_write_down, paths, status, ended)  # this was no part of the attempt
        rest.callback(hub.shutdown, status, patient=True)
        yield hub


def _last_sign_of_life(record: RunRecord, run_dir: Path) -> float:
    try:
        return float(read_status(run_dir).get("time", record.started))
    except JournalError:
        return record.started


def _write_down(paths: RunFiles, status: RunStatus, ended: float | None) -> None:
    record = _record(paths.run_base_dir)
    record.status, record.ended = status, ended
    record.save(paths.run_record_path)


class _Files(HubFiles):
    """The files of a run that goes on without training.

    Args:
        hub: The hub of the run; its config gets the metrics of the attempt that it continues.
        anew: Sinks that start at the beginning of the history.
    """

    def __init__(self, hub: HubLogic, anew: Sequence[str]) -> None:
        super().__init__(hub.config)
        self._hub, self._anew = hub, anew

    def open(self, *, owns_run: bool, is_restart: bool = False) -> RunRecord:
        """Do what a hub does, and let some sinks begin anew before they are opened."""
        record = super().open(owns_run=owns_run, is_restart=is_restart)
        mark = self.journal.meta("attempt")
        # configs.json has what the user chose; the records were made for what the hub made of it
        stats = None if mark is None else AttemptMark.from_bytes(mark).stats_config()
        stats = (stats or self._config.stats).model_copy(update={"own_metrics_seconds": 0.0})
        self._hub.config = self._config.model_copy(update={"stats": stats})
        for sink in self._anew:
            self.journal.set_cursor(sink, 0, FROM_THE_BEGINNING)
        return record
