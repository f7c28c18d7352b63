"""HubFiles: locks a run's directory and opens its record, journal, history, checkpoints, mirror and log file."""

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, SecretBytes, SecretStr

from trieye.config import TrieyeConfig
from trieye.config.fingerprint import json_of
from trieye.config.redaction import recorded, redacted, redacted_text
from trieye.exceptions import SerializationError
from trieye.files.atomic import write_atomic
from trieye.files.run_files import RunFiles
from trieye.files.run_record import MetricSummary, RunRecord, RunStatus, open_run_record
from trieye.history.history import History
from trieye.hub.saved_states import RestoredCheckpoint, SavedStates
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
"""Maximum wait for the hub of a driver that died; Ray ends it within seconds."""


def take_run(paths: RunFiles, mirror_url: str | None, take_lock: Callable[[], RunLock]) -> tuple[RunLock, str | None]:
    """Create the directories of a run, take its lock, and restore it from its mirror if it has no files here.

    Args:
        paths: File names of the run.
        mirror_url: URL of the mirror; None without a mirror.
        take_lock: Takes the lock of the run.

    Returns:
        The lock, and a description of the restored files; None if no file was restored.

    Raises:
        ConfigurationError: The root directory or the mirror cannot be used.
        CheckpointError: The mirror has the run, but no intact copy of it.
        RunLockedError: Another process writes to the run.
    """
    paths.create_run_directories()
    lock = take_lock()
    try:
        return lock, restore_run(paths, mirror_url)
    except BaseException:
        lock.release()
        raise


class HubFiles:
    """Directories, identity, stores, log file and config dump of one run.

    Args:
        config: The config of the run.
        trust: Signs pickled parts; None uses the key and settings of this process.
        paths: File names; None derives them from the config.

    Attributes:
        paths: File names.
        record: Identity of the run; set by `open`.
        journal: Durable log of the run; set by `open`.
        history: Points and operations of the run; set by `open`.
        states: Checkpoints of the run; set by `open`.
        mirror: Copies the run to an object store; None if the config names none; set by `open`.
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
        # exclude other writers of the run, and an earlier hub of this run that is still exiting; acquired in this order
        self._lock = RunLock(self.paths.lock_path)
        self._hub_lock = RunLock(self.paths.hub_lock_path)
        self._record_lock = threading.Lock()  # guards `record` and its file, which sinks and requests change
        self._log_file: logging.FileHandler | None = None

    def open(self, *, owns_run: bool, is_restart: bool = False) -> RunRecord:
        """Create the directories, open the journal and return the run's record.

        Args:
            owns_run: Take the lock and count a new attempt; False if another process has done so.
            is_restart: This hub replaces one of the same attempt that died; no new attempt is counted.

        Raises:
            ConfigurationError: The root directory, or the key that signs pickled parts, cannot be used.
            RunLockedError: Another process writes to the run.
            JournalError: The journal cannot be opened.
        """
        if owns_run and self._trust.key is None:
            signing.check_key()
        if owns_run:
            mirror_url = self._config.persistence.mirror
            take_run(self.paths, mirror_url, lambda: self._lock.acquire(HUB_GONE_AFTER_S if is_restart else 0.0))
        else:
            self.paths.create_run_directories()
        try:
            self._hub_lock.acquire(HUB_GONE_AFTER_S)
            self.record = self._read_record(new_attempt=owns_run and not is_restart)
            self._open_log_file()
            self._open_stores(self.paths.journal_path)
            self.mirror = Mirror.of(self._config.persistence, self.paths)
        except BaseException:
            self._release()
            raise
        return self.record

    def _open_stores(self, path: Path | None) -> None:
        expectations = Expected.of_attempt(self.record, self.paths.tb_log_dir)
        self.journal = Journal(path, durability=self._config.persistence.durability, expected=expectations)
        url = self._config.persistence.mirror
        if path is not None and url is not None:
            refill_history(self.paths, url, self.journal.segments())
        self.history = History(self.journal, None if path is None else self.paths.history_dir)
        self.states = SavedStates(self._config.persistence, self.paths, self._trust, self.record.attempt)
        for description in self.journal.damage:
            logger.warning("%s", description)

    @property
    def is_held(self) -> bool:
        """Whether this object holds the hub lock, so that no other hub writes to the run directory."""
        return self._hub_lock.is_held

    def _read_record(self, *, new_attempt: bool) -> RunRecord:
        path, config = self.paths.run_record_path, self._config
        record = None if new_attempt else RunRecord.read(path)
        tags = redacted(config.tags)
        return record or open_run_record(path, app_name=config.app_name, run_name=config.run_name, tags=tags)

    def _open_log_file(self) -> None:
        self._log_file = _LogFile(self.paths.get_log_file_path(), encoding="utf-8")
        self._log_file.setFormatter(logging.Formatter(LOG_FORMAT))
        library = logging.getLogger("trieye")
        LastResort.add_to(library, logging.WARNING, "trieye: %(levelname)s: %(message)s")
        if not any(isinstance(handler, _LogFile) for handler in library.handlers):
            _LogFile.level_before = library.level
        library.addHandler(self._log_file)
        if library.getEffectiveLevel() > logging.INFO:
            library.setLevel(logging.INFO)

    def run_info(self) -> RunInfo:
        """Return the description of the run that sinks receive."""
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
        """Record the id of the MLflow run, so that the next attempt continues it."""
        with self.changed_record() as record:
            record.mlflow_run_id = run_id

    @contextmanager
    def changed_record(self) -> Iterator[RunRecord]:
        """Yield the record of the run for a change in the block, and store it afterwards."""
        with self._record_lock:
            yield self.record
            # a late sink must not write: the record may belong to another attempt by now
            if self.is_held:
                self.record.save(self.paths.run_record_path)

    def directory_params(self) -> dict[str, str]:
        """Return the run's directories relative to the app's, as parameters for the trackers."""
        directories = {
            "tensorboard_log_dir": self.paths.tb_log_dir,
            "trieye_log_file": self.paths.get_log_file_path(),
            "checkpoints_dir": self.paths.checkpoint_dir,
            "buffers_dir": self.paths.buffer_dir,
            "profile_dir": self.paths.profile_dir,
        }
        return {name: str(path.relative_to(self.paths.app_root_dir)) for name, path in directories.items()}

    def save_config(self, extra: Mapping[str, Any]) -> Path:
        """Write the config, earlier additions and `extra` to configs.json, without secrets; return its path."""
        path, earlier_content = self.paths.config_path, dict[str, Any]()
        try:
            earlier_content = json_of(path) if path.exists() else {}
        except (OSError, ValueError) as error:
            logger.warning("%s cannot be read (%s); it will be replaced", path, error)
        content = {**earlier_content, **self._config.model_dump(mode="json"), **extra}
        for copy_path in dict.fromkeys((path, self.paths.config_copy_path)):
            write_config(content, copy_path, redact=True)
        return path

    def add_to_config(self, extra: Mapping[str, Any]) -> Path:
        """Add to configs.json; keys that clash with fields of the run's config go under `run_config`."""
        fields = TrieyeConfig.model_fields
        clashing_items = {str(key): value for key, value in extra.items() if key in fields}
        other_items = {str(key): value for key, value in extra.items() if key not in fields}
        return self.save_config({**other_items, **({"run_config": clashing_items} if clashing_items else {})})

    def note_restored(self, checkpoint: RestoredCheckpoint | None) -> None:
        """Record the checkpoint that this attempt resumes from; None: it starts from scratch."""
        if checkpoint is None:
            if self.record.forked_from is not None:  # recorded by an attempt that left no checkpoint
                with self.changed_record() as record:
                    record.forked_from = None
            return
        with self.changed_record() as record:
            record.resumed_from = checkpoint.origin["path"]
            if checkpoint.fork is not None:
                record.forked_from = checkpoint.fork
            if checkpoint.went_back_to is not None:
                record.went_back_to, record.went_back_in = checkpoint.went_back_to, record.attempt
            elif record.went_back_to != self._config.persistence.load_checkpoint_path:
                record.went_back_to = record.went_back_in = None

    def close(self, status: RunStatus, summary: Mapping[str, MetricSummary], *, patient: bool = False) -> None:
        """Close the journal, record how the run ended, close mirror and log file, and release the locks.

        Args:
            status: How the run ended.
            summary: Summary of the run's metrics.
            patient: Wait for the mirror while it makes progress.
        """
        with ExitStack() as cleanup:  # its callbacks run even if the block raises
            cleanup.callback(self._release)
            if self.mirror is not None:
                cleanup.callback(self.mirror.close, self._config.persistence.mirror_close_timeout_s, patient=patient)
            self.journal.close()
            if self.is_held:
                with self._record_lock:
                    self.record.summary = dict(summary)
                    self.record.close(self.paths.run_record_path, status)

    def _release(self) -> None:
        if self._log_file is not None:
            library = logging.getLogger("trieye")
            library.removeHandler(self._log_file)
            if not any(isinstance(handler, _LogFile) for handler in library.handlers):
                library.setLevel(_LogFile.level_before)
            self._log_file.close()
            self._log_file = None
        try:
            self._hub_lock.release()
        finally:
            self._lock.release()


class _LogFile(logging.FileHandler):
    """A log file that ignores write errors: `logging` would print a traceback for each line on a full disk.

    Warnings and errors appear on the terminal, too.
    """

    level_before = logging.NOTSET
    """Level of the library's logger before the first of the open files."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the record without secrets."""
        return redacted_text(super().format(record))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        """Ignore the error."""

    def close(self) -> None:
        """Close the file; ignore the error if its last lines cannot be written."""
        with suppress(OSError):
            super().close()


def write_config(configs: Mapping[str, Any], path: Path, *, redact: bool = False) -> None:
    """Write a config as indented JSON for human readers; values of other types are replaced by the closest JSON value.

    Args:
        configs: The content.
        path: The file.
        redact: Whether secrets are replaced by `***`.

    Raises:
        SerializationError: The file could not be written.
    """
    try:
        text = json.dumps(configs, indent=None if redact else 4, default=_readable)  # indenting takes 5 times longer
        if redact:  # in the plain values, which include the fields of objects
            text = json.dumps(recorded(json.loads(text)), indent=4)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.encode())
    except (OSError, TypeError, ValueError, RecursionError) as error:
        raise SerializationError(f"{path}: the config could not be written ({error})") from error


def _readable(value: Any) -> Any:
    if isinstance(value, np.ndarray) or callable(getattr(value, "detach", None)):
        return "<tensor/array>"
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, deque):
        return list(value)
    if isinstance(value, Path | SecretStr | SecretBytes):
        return str(value)
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", fallback=_readable)
    return dict(vars(value)) if hasattr(value, "__dict__") and not isinstance(value, type) else str(value)
