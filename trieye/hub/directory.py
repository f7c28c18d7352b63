"""HubFiles: what the hub keeps of a run on disk."""

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from trieye.config import TrieyeConfig
from trieye.config.fingerprint import json_of
from trieye.config.redaction import recorded, redacted, redacted_text
from trieye.exceptions import SerializationError
from trieye.files.atomic import write_atomic
from trieye.files.run_files import RunFiles
from trieye.files.run_record import MetricSummary, RunRecord, RunStatus, open_run_record
from trieye.history.history import History
from trieye.hub.saved_states import Restored, SavedStates
from trieye.journal.journal import Journal
from trieye.journal.watermark import Expected
from trieye.mirror.mirror import Mirror
from trieye.mirror.restore import refill_history, restore_run
from trieye.process.lock import RunLock
from trieye.sinks.base import RunInfo
from trieye.sinks.console import LastResort
from trieye.snapshot import signing
from trieye.snapshot.signing import Trust

logger = logging.getLogger(__name__)

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

HUB_GONE_AFTER_S = 30.0
"""How long to wait for the hub of a driver that died; Ray ends it within seconds."""


def take_run(paths: RunFiles, config: TrieyeConfig, take_lock: Callable[[], RunLock]) -> tuple[RunLock, str | None]:
    """Make the directories of a run, take its lock, and bring a run that this machine has nothing of from its mirror.

    Args:
        paths: File names of the run.
        config: Its config.
        take_lock: Takes the lock of the run.

    Returns:
        The lock, and what was brought here, in words; None if nothing was.

    Raises:
        ConfigurationError: The root directory or the mirror cannot be used.
        CheckpointError: The mirror has the run, and nothing of it is whole.
        RunLockedError: Another process writes to the run.
    """
    paths.create_run_directories()
    lock = take_lock()
    try:
        return lock, restore_run(paths, config.persistence.mirror)
    except BaseException:
        lock.release()
        raise


class HubFiles:
    """Directories, identity, log file and config dump of one run; `states` are what it has saved.

    Args:
        config: The config of the run.
        trust: Signs pickled parts; None: as this process does.
        paths: File names; made from the config if None.

    Attributes:
        paths: File names.
        record: Identity of the run; set by `open`.
        journal: The durable log of the run; set by `open`.
        history: Its points and operations; set by `open`.
        states: Its checkpoints; set by `open`.
        mirror: Copies the run to an object store, if the config asks for it; set by `open`.
    """

    def __init__(self, config: TrieyeConfig, trust: Trust | None = None, paths: RunFiles | None = None) -> None:
        self.paths = paths or RunFiles(config.persistence)
        self.record: RunRecord
        self.journal: Journal
        self.history: History
        self.states: SavedStates
        self.mirror: Mirror | None = None
        self._config = config
        self._trust = trust or Trust()
        # against other writers of the run, and against a hub of this run that has not ended yet; taken in this order
        self._lock = RunLock(self.paths.lock_path)
        self._hub_lock = RunLock(self.paths.hub_lock_path)
        self._record_lock = threading.Lock()  # guards `record` and its file: sinks and requests change them
        self._log_file: logging.FileHandler | None = None
        self._level_before = logging.NOTSET

    def open(self, *, owns_run: bool, is_restart: bool = False) -> RunRecord:
        """Make the directories, open the journal and return the run's record.

        Args:
            owns_run: Take the lock and count a new attempt; False if another process did.
            is_restart: A hub of this very attempt died; no new one is counted.

        Raises:
            ConfigurationError: The root directory, or the key that signs pickled parts, cannot be used.
            RunLockedError: Another process writes to the run.
            JournalError: The journal cannot be opened.
        """
        if owns_run and self._trust.key is None:
            signing.check_key()
        if owns_run:
            take_run(self.paths, self._config, lambda: self._lock.acquire(HUB_GONE_AFTER_S if is_restart else 0.0))
        else:
            self.paths.create_run_directories()
        try:
            self._hub_lock.acquire(HUB_GONE_AFTER_S)
            self.record = self._read_record(new_attempt=owns_run and not is_restart)
            self._open_log_file()
            self._open_stores(self.paths.journal_path)
            self.mirror = Mirror.of(self._config.persistence, self.paths)
        except BaseException:
            self._let_go()
            raise
        return self.record

    def _open_stores(self, path: Path | None) -> None:
        expected = Expected.of_attempt(self.record, self.paths.tb_log_dir)
        self.journal = Journal(path, durability=self._config.persistence.durability, expected=expected)
        url = self._config.persistence.mirror
        if path is not None and url is not None:
            refill_history(self.paths, url, self.journal.segments())
        self.history = History(self.journal, None if path is None else self.paths.history_dir)
        self.states = SavedStates(self._config.persistence, self.paths, self._trust, self.record.attempt)
        for finding in self.journal.damage:
            logger.warning("%s", finding)

    @property
    def is_held(self) -> bool:
        """Whether this object keeps the run directory: it is open, and nobody else writes there."""
        return self._hub_lock.is_held

    def _read_record(self, *, new_attempt: bool) -> RunRecord:
        path, own = self.paths.run_record_path, self._config
        record = None if new_attempt else RunRecord.read(path)
        return record or open_run_record(path, app_name=own.app_name, run_name=own.run_name, tags=redacted(own.tags))

    def _open_log_file(self) -> None:
        self._log_file = _LogFile(self.paths.get_log_file_path(), encoding="utf-8")
        self._log_file.setFormatter(logging.Formatter(LOG_FORMAT))
        library = logging.getLogger("trieye")
        LastResort.add_to(library, logging.WARNING, "trieye: %(levelname)s: %(message)s")
        library.addHandler(self._log_file)
        self._level_before = library.level
        if library.getEffectiveLevel() > logging.INFO:
            library.setLevel(logging.INFO)

    def run_info(self) -> RunInfo:
        """Return what the sinks may know of the run."""
        return RunInfo(
            app_name=self._config.app_name,
            run_name=self._config.run_name,
            run_id=self.record.run_id,
            run_dir=self.paths.run_base_dir,
            tensorboard_dir=self.paths.tb_log_dir,
            mlflow_dir=self.paths.mlflow_dir,
            tracking_uri=self._config.persistence.MLFLOW_TRACKING_URI,
            created=self.record.created,
            mlflow_run_id=self.record.mlflow_run_id,
            tags={**redacted(self._config.tags), **({"trieye.sweep": self.record.group} if self.record.group else {})},
            group=self.record.group,
            owner=None if self.record.owner is None else self.record.owner.token,
        )

    def note_mlflow_run_id(self, run_id: str) -> None:
        """Remember the MLflow run, so that the next attempt goes on with it."""
        with self._changed_record() as record:
            record.mlflow_run_id = run_id

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Remember tags."""
        with self._changed_record() as record:
            record.tags = {**record.tags, **redacted(tags)}

    def set_params(self, params: Mapping[str, str]) -> None:
        """Remember parameters that are not in the config."""
        with self._changed_record() as record:
            record.params = {**record.params, **params}

    @contextmanager
    def _changed_record(self) -> Iterator[RunRecord]:
        with self._record_lock:
            yield self.record
            # not by a sink that is late: it may be another attempt's by now
            if self.is_held:
                self.record.save(self.paths.run_record_path)

    def directory_params(self) -> dict[str, str]:
        """Return the directories of the run relative to the app's, as the parameters that MLflow shows."""
        found = {
            "tensorboard_log_dir": self.paths.tb_log_dir,
            "trieye_log_file": self.paths.get_log_file_path(),
            "checkpoints_dir": self.paths.checkpoint_dir,
            "buffers_dir": self.paths.buffer_dir,
            "profile_dir": self.paths.profile_dir,
        }
        return {name: str(path.relative_to(self.paths.app_root_dir)) for name, path in found.items()}

    def save_config(self, extra: Mapping[str, Any]) -> Path:
        """Write configs.json: the config, what an earlier call added, and `extra`, without secrets; return the file."""
        path = self.paths.config_path
        merged = {**_json_of(path), **self._config.model_dump(mode="json"), **extra}
        write_config(recorded(merged), path)
        return path

    def add_to_config(self, extra: Mapping[str, Any]) -> Path:
        """Add to configs.json; what would replace a part of the run's own config goes under `run_config`."""
        own = TrieyeConfig.model_fields
        taken = {str(key): value for key, value in extra.items() if key in own}
        free = {str(key): value for key, value in extra.items() if key not in own}
        return self.save_config({**free, **({"run_config": taken} if taken else {})})

    def note_restored(self, restored: Restored | None) -> None:
        """Remember where the state of this attempt comes from; nothing if the run begins anew."""
        if restored is None:
            if self.record.forked_from is not None:  # of an attempt that left no checkpoint
                with self._changed_record() as record:
                    record.forked_from = None
            return
        with self._changed_record() as record:
            record.resumed_from = restored.origin["path"]
            if restored.fork is not None:
                record.forked_from = restored.fork
            if restored.went_back_to is not None:
                record.went_back_to, record.went_back_in = restored.went_back_to, record.attempt
            elif record.went_back_to != self._config.persistence.load_checkpoint_path:
                record.went_back_to = record.went_back_in = None

    def close(self, status: RunStatus, summary: Mapping[str, MetricSummary], *, patient: bool = False) -> None:
        """Record how the run ended, and give back the journal, the log file and the locks.

        Args:
            status: How it ended.
            summary: Extremes of its metrics.
            patient: Wait for the mirror as long as it makes progress.
        """
        with ExitStack() as rest:  # which is done whatever becomes of what is before it
            rest.callback(self._let_go)
            if self.mirror is not None:
                rest.callback(self.mirror.close, self._config.persistence.mirror_close_timeout_s, patient=patient)
            self.journal.close()
            if self.is_held:
                with self._record_lock:
                    self.record.summary = dict(summary)
                    self.record.close(self.paths.run_record_path, status)

    def _let_go(self) -> None:
        if self._log_file is not None:
            library = logging.getLogger("trieye")
            library.removeHandler(self._log_file)
            library.setLevel(self._level_before)
            self._log_file.close()
            self._log_file = None
        try:
            self._hub_lock.release()
        finally:
            self._lock.release()


class _LogFile(logging.FileHandler):
    """A log file that a full disk does not turn into a traceback on the terminal for every line, or at its end.

    What matters is on the terminal, too.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as it may be kept, without secrets."""
        return redacted_text(super().format(record))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        """Do nothing."""

    def close(self) -> None:
        """Close the file, whatever of it cannot be written."""
        with suppress(OSError):
            super().close()


def write_config(configs: Mapping[str, Any], path: Path) -> None:
    """Write a config for people to read; values that JSON lacks are written as the nearest thing.

    Raises:
        SerializationError: It could not be written.
    """
    try:
        text = json.dumps(configs, indent=4, default=_readable)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.encode())
    except (OSError, TypeError, ValueError, RecursionError) as error:
        raise SerializationError(f"the config could not be written to {path}: {error}") from error


def _readable(value: Any) -> Any:
    if isinstance(value, np.ndarray) or callable(getattr(value, "detach", None)):
        return "<tensor/array>"
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, deque):
        return list(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return dict(vars(value)) if hasattr(value, "__dict__") and not isinstance(value, type) else str(value)


def _json_of(path: Path) -> dict[str, Any]:
    """Return what a JSON file of ours holds; nothing if it is missing or damaged."""
    try:
        return json_of(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        logger.warning("%s cannot be read (%s); it is written anew", path, error)
        return {}
