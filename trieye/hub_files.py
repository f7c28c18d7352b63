"""HubFiles: what the hub keeps of a run on disk."""

import json
import logging
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trieye.config import TrieyeConfig
from trieye.config.fingerprint import json_of
from trieye.config.redaction import recorded, redacted, redacted_text
from trieye.exceptions import CheckpointError
from trieye.persistence import signing
from trieye.persistence.artifacts import Artifacts
from trieye.persistence.checkpoints import CheckpointStore
from trieye.persistence.choose import ResumePoint, choose, choose_buffer
from trieye.persistence.encoding import EncodedState
from trieye.persistence.history.history import History
from trieye.persistence.journal.journal import Journal
from trieye.persistence.legacy import unreadable
from trieye.persistence.manifest import read_manifest
from trieye.persistence.mirror.mirror import Mirror
from trieye.persistence.mirror.restore import restore_run
from trieye.persistence.retention import Mode, Retention
from trieye.persistence.run_files import BUFFER_PREFIX, RunFiles
from trieye.persistence.run_record import RunRecord, open_run_record
from trieye.run_lock import RunLock
from trieye.schemas import LoadedTrainingState, MetricSummary, RunStatus
from trieye.serializer import Serializer
from trieye.sinks.base import RunInfo
from trieye.sinks.console import LastResort
from trieye.training_states import TrainingStates

logger = logging.getLogger(__name__)

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

HUB_GONE_AFTER_S = 30.0
"""How long to wait for the hub of a driver that died; Ray ends it within seconds."""


@dataclass(frozen=True)
class Restored:
    """A checkpoint to go on from.

    Attributes:
        state: What was saved; None where the caller has read it already.
        hub_state: State of the hub at that moment; empty if it is that of another run, which has curves of its own.
        identity: What tells this checkpoint from another of the same step.
        origin: Where it comes from: `path`, `reason`, `run_name`, and whether that is this run: `is_own`.
    """

    state: EncodedState | None
    hub_state: Mapping[str, Any]
    identity: str
    origin: dict[str, Any]


class HubFiles:
    """Directories, identity, log file, config dump and saved states of one run.

    Args:
        config: The config of the run.
        paths: File names; made from the config if None.
        serializer: Reads and writes the states of the drop-in API.

    Attributes:
        paths: File names.
        makes_run: Whether this object makes directories, log file and config dump; with given paths the caller does.
        record: Identity of the run; set by `open`.
        journal: The durable log of the run; set by `open`.
        history: Its points and operations; set by `open`.
        artifacts: Copies of what the trackers are to get.
        mirror: Copies the run to an object store, if the config asks for it; set by `open`.
    """

    def __init__(self, config: TrieyeConfig, paths: RunFiles | None, serializer: Serializer) -> None:
        self.makes_run = paths is None
        self.paths = paths or RunFiles(config.persistence)
        self.record: RunRecord
        self.journal: Journal
        self.history: History
        self.mirror: Mirror | None = None
        self._config = config
        self._serializer = serializer
        serializer.on_damage = config.persistence.damaged_replay
        checksum, key, allow_pickle = config.persistence.checksum, serializer.key, serializer.allow_pickle
        store = partial(CheckpointStore, checksum=checksum, key=key, allow_pickle=allow_pickle)
        self._checkpoints = store(self.paths.checkpoint_dir)
        buffers = store(self.paths.buffer_dir, prefix=BUFFER_PREFIX)
        self._training_states = TrainingStates(config.persistence, self.paths, serializer, self._checkpoints, buffers)
        chosen, copies = config.persistence, self.paths.run_base_dir / "artifacts"
        self.artifacts = Artifacts(copies, chosen.log_checkpoints, with_parts=chosen.log_replay)
        self._lock = RunLock(self.paths.lock_path)
        self._hub_lock = RunLock(self.paths.hub_lock_path)
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
        if not self.makes_run:
            self.record = RunRecord(app_name=self._config.app_name, run_name=self._config.run_name)
            self._open_journal(None)
            return self.record
        if owns_run and self._serializer.key is None:
            signing.check_key()
        self.paths.create_run_directories()
        if owns_run:
            self._lock.acquire(HUB_GONE_AFTER_S if is_restart else 0.0)
        try:
            self._hub_lock.acquire(HUB_GONE_AFTER_S)
            if owns_run:
                restore_run(self.paths, self._config.persistence.mirror)
            self.record = self._read_record(new_attempt=owns_run and not is_restart)
            self._open_log_file()
            self._open_journal(self.paths.journal_path)
            self.mirror = Mirror.of(self._config.persistence, self.paths)
        except BaseException:
            self._let_go()
            raise
        return self.record

    def _open_journal(self, path: Path | None) -> None:
        expected = self.record.expected(self.paths.tb_log_dir)
        self.journal = Journal(path, durability=self._config.persistence.durability, expected=expected)
        self.history = History(self.journal, None if path is None else self.paths.history_dir)
        for finding in self.journal.damage:
            logger.warning("%s", finding)

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

    def run_info(self, mlflow_run_id: str | None) -> RunInfo:
        """Return what the sinks may know of the run.

        Args:
            mlflow_run_id: The MLflow run to use; None: that of earlier attempts, if any.
        """
        return RunInfo(
            app_name=self._config.app_name,
            run_name=self._config.run_name,
            run_id=self.record.run_id,
            run_dir=self.paths.run_base_dir,
            tensorboard_dir=self.paths.tb_log_dir,
            mlflow_dir=self.paths.mlflow_dir,
            tracking_uri=self._config.persistence.MLFLOW_TRACKING_URI,
            created=self.record.created,
            mlflow_run_id=mlflow_run_id or self.record.mlflow_run_id,
            tags={**redacted(self._config.tags), **({"trieye.sweep": self.record.group} if self.record.group else {})},
            group=self.record.group,
        )

    def note_mlflow_run_id(self, run_id: str) -> None:
        """Remember the MLflow run, so that the next attempt goes on with it."""
        self.record.mlflow_run_id = run_id
        self._save_record()

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Remember tags."""
        self.record.tags = {**self.record.tags, **redacted(tags)}
        self._save_record()

    def _save_record(self) -> None:
        if self.makes_run and self._hub_lock.is_held:  # not by a sink that is late: it may be another attempt's by now
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
        self._serializer.save_config_json(recorded(merged), path)
        return path

    def add_to_config(self, extra: Mapping[str, Any]) -> Path:
        """Add to configs.json; what would replace a part of the run's own config goes under `run_config`."""
        own = TrieyeConfig.model_fields
        taken = {str(key): value for key, value in extra.items() if key in own}
        free = {str(key): value for key, value in extra.items() if key not in own}
        return self.save_config({**free, **({"run_config": taken} if taken else {})})

    # saved states

    def save_checkpoint(self, step: int, state: EncodedState, metadata: Mapping[str, Any]) -> Path:
        """Write a state and point the links at it.

        Raises:
            SerializationError: It could not be written.
        """
        whose = {"run_name": self._config.run_name, "attempt": self.record.attempt}
        path = self._checkpoints.save(step, state, metadata={**metadata, **whose})
        mode: Mode = "min" if metadata.get("mode") == "min" else "max"
        rated = metadata.get("objective") is not None
        ranked = self._checkpoints.ranked(mode) if rated else []  # without this one if its objective is not finite
        is_best = bool(metadata.get("is_best")) or any(entry.path == path for entry in ranked[:1])
        self.paths.update_checkpoint_links(path, is_best)
        chosen = self._config.persistence
        self._checkpoints.prune(Retention(chosen.keep_last, chosen.keep_best, chosen.keep_every_steps, mode))
        if self.mirror is not None:
            self.mirror.wake()
        return path

    def save_training_state(self, hub_state: Mapping[str, Any], **state: Any) -> Path:
        """Write a checkpoint of the drop-in API, and a buffer if `save_buffer` asks for one; return the former.

        Raises:
            CheckpointError: A part is not what it should be; nothing is written.
            SerializationError: It could not be written.
        """
        return self._training_states.save(hub_state, state, self.save_checkpoint)

    def load_initial_state(self) -> tuple[LoadedTrainingState, Restored | None]:
        """Return the state of the drop-in API to go on with, and the checkpoint that it comes from.

        Raises:
            CheckpointError: There are checkpoints, and none of them is whole.
        """
        persistence = self._config.persistence
        point = choose(self.paths, persistence, own_first=False, strict=False, read=self._serializer.read)
        if point is None:
            path, auto = persistence.load_buffer_path, persistence.auto_resume_latest
            buffer = choose_buffer(self.paths, path, None, None, auto_resume=auto) if persistence.save_buffer else None
            return LoadedTrainingState(buffer_data=buffer and self._serializer.load_buffer(buffer)), None
        logger.info("%s", point.reason)
        path, _, state = point.checkpoint
        checkpoint = self._serializer.load_checkpoint(path, state=state)
        if checkpoint is None:
            raise CheckpointError(f"{path} is no checkpoint of save_training_state")
        loaded = LoadedTrainingState(checkpoint_data=checkpoint, resumed_from=point.run_name)
        if point.buffer is not None:
            path, loaded.buffer_step, state = point.buffer
            loaded.buffer_data = self._serializer.load_buffer(path, state=state)
        return loaded, self._restored(point, None, checkpoint.actor_state)

    def find_checkpoint(self, *, group: str | None, config_hash: str | None) -> Restored | None:
        """Return the checkpoint to go on with.

        Raises:
            ConfigurationError: `load_checkpoint_path` does not exist.
            CheckpointError: There are checkpoints, and none of them is whole, or it is one of the drop-in API.
            UntrustedPickleError: It is a file of trieye 0.1.5.
        """
        read = self._checkpoints.read
        point = choose(self.paths, self._config.persistence, config_hash=config_hash, group=group, read=read)
        if point is None:
            return None
        path, _, state = point.checkpoint
        if state is None:
            raise unreadable(path)
        hub_state = read_manifest(path).metadata.get("hub", {})
        if "model_state_dict" in state.tree:
            raise CheckpointError(
                f"{path} was saved by save_training_state, and Run.restore cannot go on from it; read it with "
                "trieye.Serializer().load_checkpoint(path), and choose another run_name"
            )
        return self._restored(point, state, hub_state)

    def _restored(self, point: ResumePoint, state: EncodedState | None, hub_state: Mapping[str, Any]) -> Restored:
        self._note_origin(point)
        path = point.checkpoint.path
        # a file of 0.1.5 has no curves of ours that could go on
        own = self.paths.checkpoint_dir.resolve()  # a path that the user gave may have come here by a link
        is_own = own in path.resolve().parents and path.is_dir()
        return Restored(
            state=state,
            hub_state=hub_state if is_own else {},
            identity=_identity(path) if is_own else "",
            origin={"path": str(path), "reason": point.reason, "run_name": point.run_name, "is_own": is_own},
        )

    def final_checkpoint(self, highest_step: int) -> str | None:
        """Return the identity of the newest checkpoint if a run that is finished ends with it.

        Args:
            highest_step: Highest step of any event.
        """
        newest = self._checkpoints.entries()[-1:]  # not read once more: a start that finds it damaged begins elsewhere
        return _identity(newest[0].path) if newest and highest_step <= newest[0].step else None

    def _note_origin(self, point: ResumePoint) -> None:
        self.record.resumed_from = str(point.checkpoint.path)
        if point.went_back_to is not None:
            self.record.went_back_to, self.record.went_back_in = point.went_back_to, self.record.attempt
        elif self.record.went_back_to != self._config.persistence.load_checkpoint_path:
            self.record.went_back_to = self.record.went_back_in = None
        self._save_record()

    @property
    def has_checkpoint(self) -> bool:
        """Whether another attempt can go on from a checkpoint of this run."""
        return bool(self._checkpoints.entries())

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
            if self.makes_run:
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


def _json_of(path: Path) -> dict[str, Any]:
    """Return what a JSON file of ours holds; nothing if it is missing or damaged."""
    try:
        return json_of(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        logger.warning("%s cannot be read (%s); it is written anew", path, error)
        return {}


def _identity(path: Path) -> str:
    manifest = read_manifest(path)
    return json.dumps([path.name, manifest.sequence, manifest.created])
