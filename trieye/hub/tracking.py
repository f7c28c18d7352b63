"""Tracking: records parameters, tags, the config and files of a run; holds copies of the files until delivery."""

import contextlib
import logging
import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from trieye.checkpoints.manifest import MANIFEST_NAME, PARTS_DIRECTORY, read_manifest, write_manifest
from trieye.config import TrieyeConfig
from trieye.config.fingerprint import leaves, parameters
from trieye.config.names import printable
from trieye.config.redaction import redacted, redactor
from trieye.exceptions import JournalError, JournalFullError, SerializationError
from trieye.files.atomic import link_or_copy, new_directory, remove
from trieye.files.run_record import RunStatus
from trieye.hub.directory import HubFiles
from trieye.hub.requests import request
from trieye.sinks.fan_out import FanOut
from trieye.sinks.thread import COPIES_DIRECTORY, PENDING_PREFIX, pending_mark
from trieye.stats.operations import LogArtifact, LogParams, Operation, SetTags

logger = logging.getLogger(__name__)

READY_TIMEOUT_S = 7.5
"""Seconds until the MLflow run id must be returned: clients probe with it and wait 10 s, actor start included."""

READY_AFTER_START_S = 6.0
"""The same timeout if the time of the actor's request is unknown; opening MLflow takes 3 s on an idle machine."""

RECENT_S = 30.0
"""An actor that starts later than this after its config was sent is a restarted actor."""

CLOSE_TIMEOUT_S = 10.0
"""Clients of the drop-in API wait 15 s for `shutdown`."""

KILLED_CLOSE_TIMEOUT_S = 6.0
"""A scheduler waits 30 s between SIGTERM and SIGKILL, and saving needs a part of that."""

CHECKPOINTS_PATH = "checkpoints"
"""Artifact folder for the checkpoints of a run."""

_CLONE_BYTES = 64 << 20


class Recording(Protocol):
    """Appends an operation to the history of the run, once per key."""

    def __call__(self, operation: Operation, *, key: str = "") -> None:
        """Append an operation."""


class Tracking:
    """Records parameters, tags and files in the trackers, and in the run's own files.

    Args:
        record: Appends an operation to the history of the run.
        sinks: The sinks of the run.
        files: The files of the run.
        check_open: Raises if the run is closed.
        config: Selects the checkpoints for the trackers; `sent_at` is when another process requested the hub, if any.
    """

    def __init__(
        self,
        record: Recording,
        sinks: FanOut,
        files: HubFiles,
        check_open: Callable[[], None],
        config: TrieyeConfig,
    ) -> None:
        self._record, self._sinks, self._files, self._check_open = record, sinks, files, check_open
        self._shows_config = config.sinks.log_config
        persistence = config.persistence
        self._artifacts = Artifacts(
            files.paths.run_base_dir / COPIES_DIRECTORY,
            persistence.log_checkpoints,
            with_parts=persistence.log_replay,
            end=files.history.end,
            trackers=sinks.artifact_sinks,
        )
        self._ready_by = time.monotonic() + _ready_within_s(config.sent_at)

    def begin(self, extra_config: Mapping[str, Any], *, key: str) -> None:
        """Record the config of the run: the training parameters as parameters, the whole config as a file.

        Args:
            extra_config: Content of configs.json besides the config of trieye; for a `Run`, its whole config. Empty
                for a program of trieye 0.1.5, for which the directories of the run are recorded as parameters.
            key: The same key for all hubs of an attempt, so that the config is recorded once.
        """
        params = parameters(extra_config) if extra_config else self._files.directory_params()
        if self._shows_config:
            self._record(LogParams(_texts(params)), key=f"{key}:params")
        if self._files.is_held:
            config = self._files.save_config(extra_config)
            self._record(LogArtifact(self._in_run(config), "config"), key=f"{key}:config")

    @request()
    def log_params(self, params: dict[str, str]) -> None:
        """Record parameters of the run, from `texts_of`."""
        self._check_open()
        with self._files.changed_record() as record:
            record.params = {**record.params, **params}
        self._record(LogParams(params))

    @request()
    def set_tags(self, tags: dict[str, str]) -> None:
        """Set tags of the run, from `texts_of`."""
        self._check_open()
        with self._files.changed_record() as record:
            record.tags = {**record.tags, **tags}
        self._record(SetTags(tags))

    @request()
    def log_artifact(self, path: Path, artifact_path: str | None = None) -> None:
        """Record a file or directory as an artifact of the run; it is copied before this returns.

        Raises:
            SerializationError: The file does not exist, or cannot be copied.
        """
        self._check_open()
        copy = self._artifacts.hold(path.absolute())
        self._record_copy(copy, artifact_path)

    def _record_copy(self, copy: Path, artifact_path: str | None) -> None:
        try:
            self._record(LogArtifact(self._in_run(copy), artifact_path))
        except BaseException:
            self._artifacts.drop(copy.parent)
            raise
        self._artifacts.note_recorded(copy, self._files.history.end)

    def _in_run(self, path: Path) -> str:
        return str(path.relative_to(self._files.paths.run_base_dir))

    def save_run_config(self, configs: Mapping[str, Any]) -> None:
        """Add to configs.json, and record the file again."""
        self._check_open()
        self._record(LogArtifact(self._in_run(self._files.add_to_config(configs)), "config"))

    def note_checkpoint(self, path: Path) -> None:
        """Wake the mirror, tag the run with a new checkpoint's path, and send it to the trackers if configured."""
        if self._files.mirror is not None:
            self._files.mirror.wake()
        is_best = self._files.paths.best_checkpoint_path.resolve() == path.resolve()
        relative_path = str(path.relative_to(self._files.paths.app_root_dir))  # the app's directory may be moved
        best_tags = {"trieye.best_checkpoint": relative_path} if is_best else {}
        self._record(SetTags({"trieye.latest_checkpoint": relative_path, **best_tags}))
        try:
            if self._sinks.artifact_sinks and (staged_copy := self._artifacts.stage(path, is_best=is_best)) is not None:
                self._record_copy(staged_copy, CHECKPOINTS_PATH)
        except JournalFullError:
            raise
        except (SerializationError, OSError) as error:  # retention deleted it already, or the disk is full
            logger.warning("checkpoint %s is not sent to the trackers: %s", path.name, error)

    def release(self) -> None:
        """Delete the copies of files and checkpoints that every tracker has stored, also those left by a kill."""
        history, trackers = self._files.history, self._sinks.artifact_sinks
        try:
            if trackers and self._artifacts.has_any:
                cursors = [history.cursor(name) for name in trackers]
                self._artifacts.release(min(0 if cursor is None else cursor[0] for cursor in cursors))
        except (JournalError, OSError) as error:  # the next call retries
            logger.warning("%s: delivered copies cannot be deleted now: %s", self._artifacts.directory, error)

    @request("wait")
    def get_mlflow_run_id(self) -> str | None:
        """Return the id of the MLflow run; None if MLflow is off, or not ready within seconds of the hub's start."""
        return self.wait_mlflow_run_id(max(self._ready_by - time.monotonic(), 0.0))

    @request("wait")
    def wait_mlflow_run_id(self, timeout_s: float) -> str | None:
        """Return the id of the MLflow run; None if MLflow is off or not ready in time."""
        return self._sinks.mlflow_run_id(timeout_s)

    @request()
    def close_tb_writer(self) -> None:
        """Flush and close the TensorBoard sink; the other sinks stay open."""
        self._sinks.close_sink("tensorboard", CLOSE_TIMEOUT_S)


def close_timeout_s(status: RunStatus) -> float:
    """Return the maximum wait for the sinks at the end of a run; shorter for a preempted run, which may be resumed.

    The next attempt delivers the rest.
    """
    return KILLED_CLOSE_TIMEOUT_S if status == "KILLED" else CLOSE_TIMEOUT_S


def _ready_within_s(sent_at: float | None) -> float:
    if sent_at is None or not 0.0 <= time.time() - sent_at < RECENT_S:
        return READY_AFTER_START_S
    return sent_at + READY_TIMEOUT_S - time.time()


def texts_of(values: Mapping[str, Any]) -> dict[str, str]:
    """Return parameters or tags as texts without secrets, by dotted name; another process may lack the values' classes.

    Raises:
        TypeError: The values are not in a dict.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"{values!r}: parameters and tags must be a dict {{name: value}}")
    return _texts(dict(leaves(values)))


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    redact = redactor()
    redacted_values = redacted({str(name): value for name, value in values.items()})
    return {printable(name): printable(redact(str(value))) for name, value in redacted_values.items()}


class Artifacts:
    """Holds copies of files until every tracker has stored them.

    A copy waits for the current trackers, and for those of the attempt that made it: each has a `pending_mark`, which
    outlasts attempts without the tracker and uploads that it refuses.

    A copy of a checkpoint consists of hard links where possible, because its files never change; other files are
    cloned on file systems that support it. Each copy has a directory for itself, so that it keeps its name. Safe to
    use from several threads.

    Args:
        directory: Directory of the copies; created with the first one.
        policy: Which checkpoints trackers receive: none, each new best one, or all.
        with_parts: Whether to include parts of incremental states, such as replay rows.
        end: Index after the last item of the history, which includes the operations of earlier attempts.
        trackers: Names of the sinks that store files.
    """

    def __init__(
        self,
        directory: Path,
        policy: Literal["none", "best", "all"],
        *,
        with_parts: bool,
        end: int,
        trackers: Sequence[str],
    ) -> None:
        self.directory, self._policy, self._with_parts, self._trackers = directory, policy, with_parts, trackers
        # {directory of a copy: history index that all trackers must reach before its deletion}; None while copying
        self._copies: dict[Path, int | None] = dict.fromkeys(directory.glob("*/"), end)

    def hold(self, path: Path) -> Path:
        """Return a copy of a file or directory; the user may change or delete the original afterwards.

        Raises:
            SerializationError: It cannot be read, or the copy cannot be written.
        """
        name = printable(path.name) or "root"
        try:
            with self._new_copy(name) as copy:
                if path.is_dir():
                    shutil.copytree(
                        path, copy, ignore=self._not_itself, copy_function=_clone, ignore_dangling_symlinks=True
                    )
                else:
                    _clone(path, copy)
        except OSError as error:
            raise SerializationError(
                f"artifact {path} cannot be copied to {self.directory}: {_reason(error)}"
            ) from error
        return copy

    def stage(self, checkpoint: Path, *, is_best: bool) -> Path | None:
        """Return a copy of a checkpoint for the trackers; None if the policy excludes it.

        Args:
            checkpoint: Directory of the checkpoint.
            is_best: Whether it is the best checkpoint so far.

        Raises:
            SerializationError: The checkpoint is missing or damaged.
            OSError: The copy cannot be written.
        """
        if self._policy == "none" or (self._policy == "best" and not is_best):
            return None
        manifest = read_manifest(checkpoint)
        parts = [name for name in manifest.files if name.startswith(f"{PARTS_DIRECTORY}/")]
        left_out = [] if self._with_parts else parts
        files = {name: entry for name, entry in manifest.files.items() if name not in left_out}
        with self._new_copy(checkpoint.name) as target, new_directory(target) as scratch:
            for name in files:
                link_or_copy(checkpoint / name, scratch / name)
            if left_out:
                metadata = {**manifest.metadata, "left_out": left_out}
                write_manifest(scratch, manifest.model_copy(update={"files": files, "metadata": metadata}))
            else:
                link_or_copy(checkpoint / MANIFEST_NAME, scratch / MANIFEST_NAME)
        return target

    def note_recorded(self, copy: Path, end: int) -> None:
        """Note that the operation which sends a copy to the trackers is in the history before index `end`."""
        self._copies[copy.parent] = end

    @property
    def has_any(self) -> bool:
        """Whether any copy exists, including copies of earlier attempts."""
        return bool(self._copies)

    def release(self, delivered_end: int) -> None:
        """Delete the copies that every tracker has stored.

        Args:
            delivered_end: Every current tracker has received or refused the items of the history before this index.
        """
        for parent, recorded_end in list(self._copies.items()):
            is_delivered = recorded_end is not None and recorded_end <= delivered_end
            if is_delivered and not any(parent.glob(f"{PENDING_PREFIX}*")):
                self.drop(parent)

    def drop(self, parent: Path) -> None:
        """Delete the copy in a directory."""
        remove(parent)
        self._copies.pop(parent, None)

    @contextlib.contextmanager
    def _new_copy(self, name: str) -> Iterator[Path]:
        """Yield a path of that name in a new directory, which is deleted if the block raises."""
        parent = self.directory / secrets.token_hex(8)
        self._copies[parent] = None
        try:
            parent.mkdir(parents=True)
            yield parent / name
            for tracker in self._trackers:  # not before: a half-written copy left by a kill is deleted
                pending_mark(parent / name, tracker).touch()
        except BaseException:
            self.drop(parent)
            raise

    def _not_itself(self, directory: str, names: Iterable[str]) -> set[str]:
        # a link to the run may lead here, too
        return set(names) if os.path.samefile(directory, self.directory) else set()  # noqa: PTH121 - str


def _clone(source: str | Path, target: str | Path) -> None:
    """Copy a file; on copy-on-write file systems (XFS, Btrfs) they share their bytes until either is changed."""
    if not Path(source).is_file():
        raise OSError(f"{source} is not a file on {socket.gethostname()}")
    num_copied = 0
    if hasattr(os, "copy_file_range"):
        with open(source, "rb") as original, open(target, "xb") as copy, contextlib.suppress(OSError):  # noqa: PTH123 - str
            while num_bytes := os.copy_file_range(original.fileno(), copy.fileno(), _CLONE_BYTES):
                num_copied += num_bytes
    if num_copied < os.stat(source).st_size or not num_copied:  # noqa: PTH116 - str or Path; /proc files have size 0
        shutil.copyfile(source, target)


def _reason(error: OSError) -> str:
    if isinstance(error, shutil.Error):  # one tuple per file: (source, target, reason)
        source, _, reason = error.args[0][0]
        return f"{source}: {reason}"
    return error.strerror or str(error)
