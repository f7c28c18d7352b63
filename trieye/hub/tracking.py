"""Tracking: what a run records besides points: parameters, tags, its config, and files, of which it holds copies."""

import contextlib
import json
import logging
import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from trieye.checkpoints.manifest import MANIFEST_NAME, PARTS_DIRECTORY, read_manifest, write_manifest
from trieye.config import TrieyeConfig
from trieye.config.fingerprint import parameters
from trieye.config.names import printable
from trieye.config.redaction import redacted
from trieye.exceptions import JournalError, JournalFullError, SerializationError
from trieye.files.atomic import link_or_copy, new_directory, remove
from trieye.files.run_record import RunStatus
from trieye.hub.directory import HubFiles
from trieye.hub.requests import request
from trieye.sinks.fan_out import FanOut
from trieye.stats.operations import LogArtifact, LogParams, Operation, SetTags

logger = logging.getLogger(__name__)

READY_TIMEOUT_S = 7.5
"""Clients use the MLflow run id as a probe and give it 10 s, in which the actor's process has to start, too."""

READY_AFTER_START_S = 6.0
"""The same where it is not known when the actor was asked for; opening MLflow takes 3 s on a calm machine."""

RECENT_S = 30.0
"""An actor that starts later than that after its config was sent is a restarted one."""

CLOSE_TIMEOUT_S = 10.0
"""Clients of the drop-in API wait 15 s for `shutdown`."""

KILLED_CLOSE_TIMEOUT_S = 6.0
"""A scheduler that sends SIGTERM waits 30 s before it kills, and saving takes its time, too."""

CHECKPOINTS_PATH = "checkpoints"
"""Folder for checkpoints among the artifacts of a run."""

_RECORDED = "recorded.json"
_CLONE_BYTES = 64 << 20


class Recording(Protocol):
    """Puts an operation into the history of the run, once for each key."""

    def __call__(self, operation: Operation, *, key: str = "") -> None:
        """Put an operation there."""


class Tracking:
    """Records parameters, tags and files in the trackers, and in the run's own files.

    Args:
        record: Puts an operation into the history of the run.
        sinks: The sinks of the run.
        files: The files of the run.
        check_open: Raises if the run is closed.
        config: Says which checkpoints the trackers get, and when another process asked for the hub, if one did.
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
        chosen, copies = config.persistence, files.paths.run_base_dir / "artifacts"
        self._artifacts = Artifacts(copies, chosen.log_checkpoints, with_parts=chosen.log_replay)
        self._ready_by = time.monotonic() + _ready_within_s(config.sent_at)

    def begin(self, extra_config: Mapping[str, Any], *, key: str) -> None:
        """Record the config of the run: what is trained as parameters, all of it as a file.

        Args:
            extra_config: What configs.json holds besides the config of trieye, which is all of it for a `Run`; empty
                for a program of trieye 0.1.5, whose parameters are the directories of the run.
            key: The same for all hubs of an attempt: it is recorded once.
        """
        params = parameters(extra_config) if extra_config else self._files.directory_params()
        if self._shows_config:
            self._record(LogParams(_texts(params)), key=f"{key}:params")
        if self._files.is_held:
            config = self._files.save_config(extra_config)
            self._record(LogArtifact(self._in_run(config), "config"), key=f"{key}:config")

    @request()
    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record parameters of the run."""
        self._check_open()
        texts = _texts(params)
        self._files.set_params(texts)
        self._record(LogParams(texts))

    @request()
    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run."""
        self._check_open()
        self._files.set_tags(tags)
        self._record(SetTags(_texts(tags)))

    @request()
    def log_artifact(self, path: Path, artifact_path: str | None = None) -> None:
        """Keep a file or directory with the run; a copy of it is made before this returns.

        Raises:
            SerializationError: There is no such file, or no room for the copy.
        """
        self._check_open()
        held = self._artifacts.hold(path.absolute())
        self._record_copy(held, artifact_path)

    def _record_copy(self, held: Path, artifact_path: str | None) -> None:
        try:
            self._record(LogArtifact(self._in_run(held), artifact_path))
        except BaseException:
            self._artifacts.drop(held)
            raise
        self._artifacts.note_recorded(held, self._files.history.end)

    def _in_run(self, path: Path) -> str:
        return str(path.relative_to(self._files.paths.run_base_dir))

    def save_run_config(self, configs: Mapping[str, Any]) -> None:
        """Add to configs.json, and record it."""
        self._check_open()
        self._record(LogArtifact(self._in_run(self._files.add_to_config(configs)), "config"))

    def note_checkpoint(self, path: Path) -> None:
        """Tell the mirror of a checkpoint, point from the trackers to it, hand it to them if the config says so."""
        if self._files.mirror is not None:
            self._files.mirror.wake()
        is_best = self._files.paths.best_checkpoint_path.resolve() == path.resolve()
        place = str(path.relative_to(self._files.paths.app_root_dir))  # which may be moved
        self._record(
            SetTags({"trieye.latest_checkpoint": place, **({"trieye.best_checkpoint": place} if is_best else {})})
        )
        try:
            if self._sinks.trackers and (staged := self._artifacts.stage(path, is_best=is_best)) is not None:
                self._record_copy(staged, CHECKPOINTS_PATH)
        except JournalFullError:
            raise
        except (SerializationError, OSError) as error:  # it is saved, and deleted again, or there is no room for a copy
            logger.warning("checkpoint %s is not handed to the trackers: %s", path.name, error)

    def release(self) -> None:
        """Delete the copies of files and checkpoints that every tracker has, also after a kill."""
        history, trackers = self._files.history, self._sinks.trackers
        try:
            if trackers and self._artifacts.has_any(history.end):
                cursors = [history.cursor(name) for name in trackers]
                self._artifacts.release(min(0 if cursor is None else cursor[0] for cursor in cursors))
        except (JournalError, OSError) as error:  # it is tried again
            logger.warning("copies that the trackers have cannot be deleted now: %s", error)

    @request("wait")
    def get_mlflow_run_id(self) -> str | None:
        """Return the id of the MLflow run; None if MLflow is off or not ready soon after the start of the hub."""
        return self.wait_mlflow_run_id(max(self._ready_by - time.monotonic(), 0.0))

    @request("wait")
    def wait_mlflow_run_id(self, timeout_s: float) -> str | None:
        """Return the id of the MLflow run; None if MLflow is off or not ready in time."""
        return self._sinks.mlflow_run_id(timeout_s)

    @request()
    def close_tb_writer(self) -> None:
        """Flush and close the TensorBoard sink; the others go on."""
        self._sinks.close_sink("tensorboard", CLOSE_TIMEOUT_S)


def close_timeout_s(status: RunStatus) -> float:
    """Return how long to wait for the sinks at the end: little if the run was asked to stop and may be started again.

    What they do not have by then is delivered by the next attempt.
    """
    return KILLED_CLOSE_TIMEOUT_S if status == "KILLED" else CLOSE_TIMEOUT_S


def _ready_within_s(sent_at: float | None) -> float:
    if sent_at is None or not 0.0 <= time.time() - sent_at < RECENT_S:
        return READY_AFTER_START_S
    return sent_at + READY_TIMEOUT_S - time.time()


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {printable(str(name)): printable(str(redacted(value, str(name)))) for name, value in values.items()}


class Artifacts:
    """Holds copies of what the trackers are to get, until every tracker has it.

    A copy of a checkpoint, whose files never change, consists of links; a copy of any other file shares its bytes with
    the file where the file system can. Each copy is alone in a directory, so that it keeps its name. Safe to use from
    several threads.

    Args:
        directory: Where the copies are; made by the first.
        policy: Which checkpoints trackers get: none of them, each that is the best so far, or all.
        with_parts: Whether they get what grows, such as a replay buffer, too.
    """

    def __init__(self, directory: Path, policy: Literal["none", "best", "all"], *, with_parts: bool) -> None:
        self._directory, self._policy, self._with_parts = directory, policy, with_parts
        # each directory and the index from which on it is not needed; None: its copy is being made
        self._held: dict[Path, int | None] = {}
        self._knows_earlier = False

    def hold(self, path: Path) -> Path:
        """Return a copy of a file, or of a directory with all it holds, that the user may change or delete meanwhile.

        Raises:
            SerializationError: It cannot be read, or there is no room for a copy.
        """
        name = printable(path.name) or "root"
        try:
            with self._place(name) as copy:
                if path.is_dir():
                    shutil.copytree(
                        path, copy, ignore=self._not_itself, copy_function=_clone, ignore_dangling_symlinks=True
                    )
                else:
                    _clone(path, copy)
        except OSError as error:
            raise SerializationError(
                f"artifact {path} cannot be copied to {self._directory}: {_reason(error)}"
            ) from error
        return copy

    def stage(self, checkpoint: Path, *, is_best: bool) -> Path | None:
        """Return a copy of a checkpoint to hand to the trackers, None if they are not to get it.

        Args:
            checkpoint: Its directory.
            is_best: Whether it is the best one so far.

        Raises:
            SerializationError: The checkpoint is gone, or damaged.
            OSError: There is no room.
        """
        if self._policy == "none" or (self._policy == "best" and not is_best):
            return None
        manifest = read_manifest(checkpoint)
        left_out = (
            [] if self._with_parts else [name for name in manifest.files if name.startswith(f"{PARTS_DIRECTORY}/")]
        )
        files = {name: entry for name, entry in manifest.files.items() if name not in left_out}
        with self._place(checkpoint.name) as target, new_directory(target) as scratch:
            for name in files:
                link_or_copy(checkpoint / name, scratch / name)
            if left_out:
                metadata = {**manifest.metadata, "left_out": left_out}
                write_manifest(scratch, manifest.model_copy(update={"files": files, "metadata": metadata}))
            else:
                link_or_copy(checkpoint / MANIFEST_NAME, scratch / MANIFEST_NAME)
        return target

    def note_recorded(self, copy: Path, end: int) -> None:
        """Take note that the history asks the trackers, before its index `end`, to fetch a copy."""
        with contextlib.suppress(OSError):  # the next attempt takes the end of the history for it
            (copy.parent / _RECORDED).write_text(json.dumps(end))
        self._held[copy.parent] = end

    def drop(self, copy: Path) -> None:
        """Delete a copy."""
        self._drop(copy.parent)

    def has_any(self, end: int) -> bool:
        """Tell whether there are copies, those of earlier attempts included.

        Args:
            end: Index after the last item of the history: of a copy without note, left by a kill, that is the latest.
        """
        if not self._knows_earlier:
            self._knows_earlier = True
            earlier = [place for place in self._directory.glob("*/") if place not in self._held]
            self._held.update({place: _index_in(place / _RECORDED, end) for place in earlier})
        return bool(self._held)

    def release(self, delivered: int) -> None:
        """Delete the copies that every tracker has.

        Args:
            delivered: Every tracker has what the history has before this index.
        """
        for place, recorded in list(self._held.items()):
            if recorded is not None and recorded <= delivered:
                self._drop(place)

    def _drop(self, place: Path) -> None:
        remove(place)
        self._held.pop(place, None)

    @contextlib.contextmanager
    def _place(self, name: str) -> Iterator[Path]:
        """Give a path of that name that nobody else has; what is there is deleted if the block raises."""
        place = self._directory / secrets.token_hex(8)
        self._held[place] = None
        try:
            place.mkdir(parents=True)
            yield place / name
        except BaseException:
            self._drop(place)
            raise

    def _not_itself(self, directory: str, names: Iterable[str]) -> set[str]:
        return {name for name in names if Path(directory, name) == self._directory}


def _clone(source: str | Path, target: str | Path) -> None:
    """Copy a file; on file systems that can (XFS, Btrfs), both share their bytes until one of them is changed."""
    if not Path(source).is_file():
        raise OSError(f"{source} is no file on {socket.gethostname()}")
    done = 0
    if hasattr(os, "copy_file_range"):
        with open(source, "rb") as held, open(target, "xb") as copy, contextlib.suppress(OSError):  # noqa: PTH123 - either
            while num_bytes := os.copy_file_range(held.fileno(), copy.fileno(), _CLONE_BYTES):
                done += num_bytes
    if done < os.stat(source).st_size or not done:  # noqa: PTH116 - either; files that the kernel makes have no size
        shutil.copyfile(source, target)


def _reason(error: OSError) -> str:
    if isinstance(error, shutil.Error):  # one for each file: (source, target, why)
        source, _, why = error.args[0][0]
        return f"{source}: {why}"
    return error.strerror or str(error)


def _index_in(path: Path, otherwise: int) -> int:
    try:
        return int(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        return otherwise
