"""OfflineHub: the hub of a run whose processes are gone, to deliver what they left."""

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from trieye.checkpoints.serializer import Serializer
from trieye.cli.run_config import config_of, only, sinks_of
from trieye.config import TrieyeConfig
from trieye.config.base import did_you_mean
from trieye.config.fingerprint import json_of
from trieye.exceptions import ConfigurationError, JournalError
from trieye.files.run_files import RUN_RECORD, RunFiles
from trieye.files.run_record import RunRecord
from trieye.hub.directory import HubFiles
from trieye.hub.logic import ActorLogic
from trieye.hub.marks import AttemptMark
from trieye.hub.status import read_status
from trieye.journal.look import inspect
from trieye.process.lock import RunLock
from trieye.process.waiting import moved_bytes, wait_while_moving
from trieye.schemas import RunStatus
from trieye.sinks.bookmark import FROM_THE_BEGINNING
from trieye.sinks.mlflow.store import require_password

POLL_S = 0.1


class OfflineHub:
    """Goes on with the last attempt of a run, without training.

    Args:
        run_dir: Directory of the run; it may have been moved, or renamed.

    Attributes:
        record: Who the run is.
        config: Its config, for that directory.
        findings: What was found damaged in its journal, in words.

    Raises:
        ConfigurationError: Its config cannot be read.
        RunLockedError: A process writes to it.
    """

    def __init__(self, run_dir: Path) -> None:
        self.record = _record_of(run_dir)
        self.config = config_of(run_dir)
        self.findings: list[str] = []
        self._run_dir = run_dir
        self._paths = RunFiles(self.config.persistence)
        self._anew: tuple[str, ...] = ()
        for lock in (self._paths.lock_path, self._paths.hub_lock_path):
            RunLock.check(lock)

    @property
    def status(self) -> RunStatus:
        """How the run ended: as it is recorded, KILLED if nobody recorded that."""
        return "KILLED" if self.record.status == "RUNNING" else self.record.status

    def sinks(self) -> list[str]:
        """Return the names of the sinks that get the history."""
        return sinks_of(self.config)

    def is_done(self) -> bool:
        """Tell whether the run is closed and every sink has everything, without opening it."""
        if self.record.status == "RUNNING":
            return False
        try:
            held = inspect(self._paths.journal_path)
        except JournalError:
            return False
        if held.damage or not held.snapshots:
            return False
        pos, end = held.snapshots[-1]
        return held.last_pos <= pos and all(held.cursors.get(name, 0) >= end for name in self.sinks())

    def forget(self, sinks: Sequence[str]) -> None:
        """Let some sinks begin at the beginning of the history, once the hub is opened.

        The others are left alone, unless they are to be told how a killed run ended.

        Raises:
            ConfigurationError: The run has no such sink.
        """
        known = self.sinks()
        for name in sinks:
            if name not in known:
                has = f"it has: {', '.join(known)}" if known else "it has none"
                raise ConfigurationError(f"--sink {name}: the run has no such sink{did_you_mean(name, known)} ({has})")
        self._anew = tuple(sinks)
        if self.record.status != "RUNNING":
            self.config.sinks = only(self.config.sinks, sinks)

    def __enter__(self) -> Self:
        if self.config.sinks.mlflow.enabled:
            require_password(self.config.persistence.MLFLOW_TRACKING_URI)
        # as a driver holds it: until all is written down, so that nobody begins another attempt meanwhile
        self._lock = RunLock(self._paths.lock_path).acquire()
        try:
            self.record = _record_of(self._run_dir)
            self._ended = self.record.ended or self._last_sign_of_life()
            self._open()
        except BaseException:
            self._lock.release()
            raise
        return self

    def _open(self) -> None:
        self._logic = ActorLogic(self.config)
        self._logic.files = _Files(self.config, self._anew)
        try:
            self._logic.open(owns_run=False, extra_config=json_of(self._paths.config_path))
        except BaseException:  # the hub has recorded that the run failed, which nobody would close then
            self._write_down(self.record.status, self.record.ended)
            raise
        self.findings = list(self._logic.files.journal.damage)

    def _last_sign_of_life(self) -> float:
        try:
            return float(read_status(self._run_dir).get("time", self.record.started))
        except JournalError:
            return self.record.started

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as rest:
            rest.callback(self._lock.release)
            rest.callback(self._write_down, self.status, self._ended)  # this was no part of the attempt
            self._logic.shutdown(self.status, patient=True)

    def _write_down(self, status: RunStatus, ended: float | None) -> None:
        record = _record_of(self._run_dir)
        record.status, record.ended = status, ended
        record.save(self._paths.run_record_path)

    def wait(self, timeout_s: float, progress: Callable[[int, int], None]) -> None:
        """Wait until every sink has everything, or none of them goes on.

        Args:
            timeout_s: Seconds without progress after which nobody waits any more.
            progress: Told how many items the slowest sink has, of how many.
        """

        def backlogs() -> list[int]:
            return [sink["backlog"] for sink in self._logic.health()["sinks"]]

        def have_all(pause_s: float) -> bool:
            behind, num_items = max(backlogs(), default=0), self.num_items
            progress(num_items - behind, num_items)
            if behind:
                time.sleep(pause_s)
            return not behind

        wait_while_moving(have_all, lambda: (backlogs(), moved_bytes()), timeout_s, poll_s=POLL_S)

    @property
    def num_items(self) -> int:
        """Items of the history."""
        return int(self._logic.health()["points"])

    def missing(self) -> dict[str, str]:
        """Return what is missing, by sink, in words; after the hub was closed."""
        missing = {}
        for sink in self._logic.health()["sinks"]:
            error = (sink["error"] or "there was no time for them").removeprefix("TrieyeError: ")
            if sink["backlog"]:
                missing[sink["name"]] = f"{sink['backlog']:,} items are missing: {error}"
            elif sink["error"]:
                missing[sink["name"]] = f"it has all items, and was not told how the run ended: {error}"
        return missing

    def refused(self) -> dict[str, int]:
        """Return how many items each sink refused for good."""
        return {sink["name"]: sink["refused"] for sink in self._logic.health()["sinks"] if sink["refused"]}


class _Files(HubFiles):
    """The files of a run that goes on without training.

    Args:
        config: The config of the run; it gets the metrics of the attempt that goes on.
        anew: Sinks that begin at the beginning of the history.
    """

    def __init__(self, config: TrieyeConfig, anew: Collection[str]) -> None:
        super().__init__(config, None, Serializer())
        self._offline, self._anew = config, anew

    def open(self, *, owns_run: bool, is_restart: bool = False) -> RunRecord:
        """Do what a hub does, and let some sinks begin anew before they are opened."""
        record = super().open(owns_run=owns_run, is_restart=is_restart)
        mark = self.journal.meta("attempt")
        # configs.json has what the user chose; the records were made for what the hub made of it
        stats = None if mark is None else AttemptMark.from_bytes(mark).stats_config()
        self._offline.stats = (stats or self._offline.stats).model_copy(update={"own_metrics_seconds": 0.0})
        for sink in self._anew:
            self.journal.set_cursor(sink, 0, FROM_THE_BEGINNING)
        return record


def _record_of(run_dir: Path) -> RunRecord:
    record = RunRecord.read(run_dir / RUN_RECORD)
    if record is None:
        raise ConfigurationError(f"{run_dir} is no run: it has no {RUN_RECORD}")
    return record
