"""HubFiles: what the hub keeps of a run on disk."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from trieye.config import TrieyeConfig
from trieye.exceptions import CheckpointError, SerializationError
from trieye.path_manager import PathManager
from trieye.persistence.atomic import write_atomic
from trieye.persistence.checkpoints import BUFFER_PREFIX, CheckpointStore
from trieye.persistence.encoding import EncodedState
from trieye.persistence.manifest import read_manifest
from trieye.persistence.resume import find_resume
from trieye.persistence.run_record import RunRecord, open_run_record
from trieye.run_lock import RunLock
from trieye.schemas import CheckpointData, LoadedTrainingState, MetricSummary, RunStatus
from trieye.serializer import Serializer
from trieye.sinks.base import RunInfo

logger = logging.getLogger(__name__)

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


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
    """

    def __init__(self, config: TrieyeConfig, paths: PathManager | None, serializer: Serializer) -> None:
        self.makes_run = paths is None
        self.paths = paths or PathManager(config.persistence)
        self.record: RunRecord
        self._config = config
        self._serializer = serializer
        self._checkpoints = CheckpointStore(self.paths.checkpoint_dir)
        self._buffers = CheckpointStore(self.paths.buffer_dir, prefix=BUFFER_PREFIX)
        self._lock = RunLock(self.paths.lock_path)
        self._log_file: logging.FileHandler | None = None
        self._level_before = logging.NOTSET

    def open(self, *, owns_run: bool) -> RunRecord:
        """Make the directories and return the run's record.

        Args:
            owns_run: Take the lock and count a new attempt; False if another process did.

        Raises:
            ConfigurationError: The root directory cannot be used.
            RunLockedError: Another process writes to the run.
        """
        if not self.makes_run:
            self.record = RunRecord(app_name=self._config.app_name, run_name=self._config.run_name)
            return self.record
        self.paths.create_run_directories()
        if owns_run:
            self._lock.acquire()
        self.record = self._read_record(owns_run=owns_run)
        self._open_log_file()
        return self.record

    def _read_record(self, *, owns_run: bool) -> RunRecord:
        record = None if owns_run else RunRecord.read(self.paths.run_record_path)
        return record or open_run_record(
            self.paths.run_record_path,
            app_name=self._config.app_name,
            run_name=self._config.run_name,
            tags=self._config.tags,
        )

    def _open_log_file(self) -> None:
        self._log_file = logging.FileHandler(self.paths.get_log_file_path(), encoding="utf-8")
        self._log_file.setFormatter(logging.Formatter(LOG_FORMAT))
        library = logging.getLogger("trieye")
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
            spool_dir=self.paths.spool_dir,
            created=self.record.created,
            mlflow_run_id=mlflow_run_id or self.record.mlflow_run_id,
            tags={**self._config.tags, **({"trieye.sweep": self.record.group} if self.record.group else {})},
        )

    def note_mlflow_run_id(self, run_id: str) -> None:
        """Remember the MLflow run, so that the next attempt goes on with it."""
        self.record.mlflow_run_id = run_id
        self._save_record()

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Remember tags."""
        self.record.tags = {**self.record.tags, **tags}
        self._save_record()

    def _save_record(self) -> None:
        if self.makes_run:
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
        """Write configs.json: the config of trieye, what an earlier call added, and `extra`; return the file."""
        path = self.paths.config_path
        merged = {**_json_of(path), **self._config.model_dump(mode="json"), **extra}
        self._serializer.save_config_json(merged, path)
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
        mode: Literal["max", "min"] = "min" if metadata.get("mode") == "min" else "max"
        rated = metadata.get("objective") is not None
        best = self._checkpoints.best(mode) if rated else None
        self.paths.update_checkpoint_links(
            path, bool(metadata.get("is_best")) or (best is not None and best.path == path)
        )
        if self._config.persistence.keep_checkpoints:
            self._checkpoints.prune(self._config.persistence.keep_checkpoints, mode=mode)
        return path

    def save_training_state(self, hub_state: Mapping[str, Any], **state: Any) -> Path:
        """Write a checkpoint of the drop-in API, and a buffer if `save_buffer` asks for one; return the former.

        Raises:
            CheckpointError: A part is not what it should be; the checkpoint is written although the buffer cannot be.
        """
        data = self._checkpoint_data(hub_state, state)
        metadata = {"is_best": state["is_best"], "hub": hub_state}
        path = self.save_checkpoint(data.global_step, self._serializer.encode(data, copy=False), metadata)
        if state["save_buffer"] and self._config.persistence.save_buffer:
            self._save_buffer(data.global_step, state["buffer_content"])
        return path

    def _save_buffer(self, step: int, content: Any) -> None:
        buffer = self._serializer.prepare_buffer_data(content)
        if buffer is None:
            raise CheckpointError(f"the buffer is a {type(content).__name__}, not a list of items; the rest is saved")
        self.paths.update_buffer_link(self._buffers.save(step, self._serializer.encode(buffer, copy=False)))

    def _checkpoint_data(self, hub_state: Mapping[str, Any], state: Mapping[str, Any]) -> CheckpointData:
        try:
            return CheckpointData(
                run_name=self._config.run_name,
                global_step=state["global_step"],
                episodes_played=state["episodes_played"],
                total_simulations_run=state["total_simulations_run"],
                model_state_dict=self._model_state(state["nn_state_dict"]),
                optimizer_state_dict=self._serializer.prepare_optimizer_state(state["optimizer_state_dict"]),
                actor_state=dict(hub_state),
                user_data=state["user_data"] or {},
                model_config_dict=state["model_config_dict"] or {},
                env_config_dict=state["env_config_dict"] or {},
            )
        except ValueError as error:  # pydantic's, or a number of another type
            raise CheckpointError(f"the state is not valid: {error}") from error

    def _model_state(self, model: Any) -> dict[str, Any]:
        try:
            return self._serializer.prepare_optimizer_state(model)
        except SerializationError as error:
            kind = type(model).__name__
            raise CheckpointError(f"nn_state_dict must be a dict or have a state_dict(), and it is a {kind}") from error

    def load_initial_state(self) -> tuple[LoadedTrainingState, dict[str, Any]]:
        """Return the state of the drop-in API to go on with, and the state of the hub if it is this run's own.

        Raises:
            CheckpointError: There are checkpoints, and none of them is whole.
        """
        persistence = self._config.persistence
        point = find_resume(self.paths, persistence, own_first=False, strict=False)
        if point is None:
            buffer = (
                self.paths.determine_buffer_to_load(persistence.load_buffer_path, persistence.auto_resume_latest, None)
                if persistence.save_buffer
                else None
            )
            return LoadedTrainingState(buffer_data=buffer and self._serializer.load_buffer(buffer)), {}
        logger.info("%s", point.reason)
        checkpoint = self._serializer.load_checkpoint(point.path)
        if checkpoint is None:
            raise CheckpointError(f"{point.path} is no checkpoint of save_training_state")
        loaded = LoadedTrainingState(
            checkpoint_data=checkpoint,
            buffer_data=point.buffer_path and self._serializer.load_buffer(point.buffer_path),
            buffer_step=point.buffer_step,
            resumed_from=point.run_name,
        )
        self._note_origin(point.path)
        return loaded, self._own_state(point.path, self._final_state(point.path) or checkpoint.actor_state)

    def find_checkpoint(
        self, *, group: str | None, config_hash: str | None
    ) -> tuple[EncodedState, dict[str, Any], dict[str, Any]] | None:
        """Return the state to go on with, the state of the hub if it is this run's own, and where both come from.

        Raises:
            ConfigurationError: `load_checkpoint_path` does not exist.
            CheckpointError: There are checkpoints, and none of them is whole.
        """
        point = find_resume(self.paths, self._config.persistence, config_hash=config_hash, group=group)
        if point is None:
            return None
        hub_state = self._final_state(point.path) or read_manifest(point.path).metadata.get("hub", {})
        self._note_origin(point.path)
        origin = {"path": str(point.path), "reason": point.reason, "run_name": point.run_name}
        return self._checkpoints.read(point.path), self._own_state(point.path, hub_state), origin

    def _own_state(self, path: Path, hub_state: Mapping[str, Any]) -> dict[str, Any]:
        """Windows that are open and extremes go on within one run; another one begins its own curves."""
        if self.paths.checkpoint_dir in path.parents:
            return dict(hub_state)
        return {name: value for name, value in hub_state.items() if name != "stats"}

    def _final_state(self, path: Path) -> dict[str, Any] | None:
        """Return the state of the hub after the end of the run, if it ended with this very checkpoint."""
        final = _json_of(self.paths.final_state_path)
        if not final or path.parent != self.paths.checkpoint_dir or final["checkpoint"] != _identity(path):
            return None
        state: dict[str, Any] = final["hub"]
        return state

    def _keep_final_state(self, hub_state: Mapping[str, Any]) -> None:
        newest = self._checkpoints.latest()
        steps = [windows["highest"] for windows in hub_state["stats"]["windows"].values()]
        if newest is not None and max(steps, default=-1) <= newest.step:
            text = json.dumps({"checkpoint": _identity(newest.path), "hub": hub_state})
            write_atomic(self.paths.final_state_path, text.encode())

    def _note_origin(self, path: Path) -> None:
        self.record.resumed_from = str(path)
        self._save_record()

    @property
    def has_checkpoint(self) -> bool:
        """Whether another attempt can go on from a checkpoint of this run."""
        return bool(self._checkpoints.entries())

    def close(
        self, status: RunStatus, summary: Mapping[str, MetricSummary], hub_state: Mapping[str, Any] | None = None
    ) -> None:
        """Record how the run ended, and give back the log file and the lock.

        Args:
            status: How it ended.
            summary: Extremes of its metrics.
            hub_state: State of the hub after the last point; a finished run that is trained further begins with it,
                so that no window is logged twice.
        """
        try:
            if self.makes_run:
                if status == "FINISHED" and hub_state is not None:
                    self._keep_final_state(hub_state)
                self.record.summary = dict(summary)
                self.record.close(self.paths.run_record_path, status)
        finally:
            self._close_log_file()
            self._lock.release()

    def _close_log_file(self) -> None:
        if self._log_file is not None:
            library = logging.getLogger("trieye")
            library.removeHandler(self._log_file)
            library.setLevel(self._level_before)
            self._log_file.close()


def _json_of(path: Path) -> dict[str, Any]:
    """Return what a JSON file of ours holds; nothing if it is missing or damaged."""
    try:
        held = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        logger.warning("%s cannot be read (%s); it is written anew", path, error)
        return {}
    return held if isinstance(held, dict) else {}


def _identity(path: Path) -> list[Any]:
    """Return what tells one checkpoint from another of the same step."""
    manifest = read_manifest(path)
    return [path.name, manifest.sequence, manifest.created]
