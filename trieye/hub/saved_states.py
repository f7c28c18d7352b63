"""SavedStates: writes, rates, prunes and quarantines a run's checkpoints, and selects the one to resume from."""

import contextlib
import json
import logging
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from trieye.checkpoints.choose import ResumePoint, choose, point_at
from trieye.checkpoints.directory import parts_in, read_hub_state, save_state
from trieye.checkpoints.legacy import unreadable
from trieye.checkpoints.manifest import read_manifest
from trieye.checkpoints.store import CheckpointStore, Mode, Retention
from trieye.config import PersistenceConfig
from trieye.exceptions import CheckpointError, SerializationError
from trieye.files.atomic import remove_directory
from trieye.files.run_files import CRASH_PREFIX, RUN_RECORD, RunFiles
from trieye.files.run_record import ForkPoint, RunRecord
from trieye.hub.marks import unpack_state
from trieye.snapshot.encode import EncodedState
from trieye.snapshot.signing import Trust

logger = logging.getLogger(__name__)


class SavedCheckpoint(NamedTuple):
    """A checkpoint that is safe on disk.

    Attributes:
        path: Directory of the checkpoint.
        damaged: Names of the parts that the hub read back and found damaged; later checkpoints must not link them.
    """

    path: str
    damaged: Collection[str] = ()


@dataclass(frozen=True)
class RestoredCheckpoint:
    """A checkpoint to resume from.

    Attributes:
        state: Content of the checkpoint; None if the caller has read it already.
        hub_state: State of the hub when this run's checkpoint was saved. For a checkpoint of another run it is empty;
            if the caller passed that checkpoint's path, it comes from the nearest checkpoint of this run.
        identity: Identity of the checkpoint that `hub_state` comes from; checkpoints of the same step differ in it.
        origin: `path`, `step`, `reason`, `run_name`, `is_own` (whether the checkpoint belongs to this run),
            `parts` that the next save may link, and `seed` of the run when it was saved; a seed of None is unknown.
        went_back_to: The checkpoint as the user named it, if the run returns to an earlier checkpoint of itself.
        fork: The other run that the checkpoint belongs to; None for a checkpoint of this run.
        damaged: Newer checkpoints that were skipped because they are damaged.
    """

    state: EncodedState | None
    hub_state: Mapping[str, Any]
    identity: str
    origin: dict[str, Any]
    went_back_to: str | None
    fork: ForkPoint | None
    damaged: tuple[Path, ...] = ()


class SavedStates:
    """Saves checkpoints atomically, deletes old ones, and finds the one to resume from.

    Args:
        config: Rules for saving, retention and resuming.
        files: File names of the run.
        trust: Signs pickled parts.
        attempt: Number of the attempt that saves.
        read_only: Change nothing in the run directory, because the attempt may still be refused.
    """

    def __init__(
        self,
        config: PersistenceConfig,
        files: RunFiles,
        trust: Trust,
        attempt: int,
        *,
        read_only: bool = False,
    ) -> None:
        self.store = partial(
            CheckpointStore,
            checksum=config.checksum,
            key=trust.key,
            allow_pickle=trust.allow_pickle,
            read_only=read_only,
        )
        self._config, self._files, self._trust, self._attempt = config, files, trust, attempt
        self._read_only, self._damaged_paths = read_only, list[Path]()
        self.checkpoints = self.store(files.checkpoint_dir)

    def save(self, step: int, state: EncodedState, metadata: Mapping[str, Any], hub_state: bytes = b"") -> Path:
        """Write a checkpoint, update the latest and best links, and prune.

        Args:
            step: Global step of the checkpoint.
            state: State to save.
            metadata: Plain data for the manifest.
            hub_state: State of the hub from `pack_state`; empty for the drop-in API, which includes it in `state`.

        Raises:
            SerializationError: The checkpoint could not be written.
        """
        owner = {"run_name": self._config.run_name, "attempt": self._attempt}
        if metadata.get("is_crash"):
            return self._save_crash(step, state, {**metadata, **owner}, _deflated(hub_state))
        path = self.checkpoints.save(step, state, metadata={**metadata, **owner}, hub_state=_deflated(hub_state))
        is_best = bool(metadata.get("is_best")) or self._is_best(path, metadata)
        self._files.update_checkpoint_links(path, is_best)
        self._prune(metadata)
        return path

    def _save_crash(self, step: int, state: EncodedState, metadata: Mapping[str, Any], hub_state: bytes) -> Path:
        """Write the state at an error, and delete earlier crash checkpoints; no link points to it."""
        path = save_state(
            self._files.checkpoint_dir / f"{CRASH_PREFIX}{step}",
            state,
            step=step,
            metadata=metadata,
            hub_state=hub_state,
            key=self._trust.key,
            checksum=self._config.checksum,
            find_part=parts_in([entry.path for entry in reversed(self.checkpoints.entries())]),
        )
        for other in sorted(self._files.checkpoint_dir.glob(f"{CRASH_PREFIX}*")):
            is_crash = other.name.removeprefix(CRASH_PREFIX).isdecimal() and other.is_dir() and not other.is_symlink()
            if is_crash and other != path:
                remove_directory(other)
        return path

    def rate(self, step: int, objective: float | None) -> None:
        """Record the objective of a checkpoint that was saved before its evaluation finished.

        Raises:
            CheckpointError: The checkpoint does not exist.
            SerializationError: The objective could not be written.
        """
        path = self.checkpoints.rate(step, objective)
        metadata = read_manifest(path).metadata
        if self._is_best(path, metadata):
            self._files.update_best_link(path)
        self._prune(metadata)

    def _is_best(self, path: Path, metadata: Mapping[str, Any]) -> bool:
        is_rated = metadata.get("objective") is not None
        ranked_entries = self.checkpoints.ranked(_mode_of(metadata)) if is_rated else []  # omits non-finite objectives
        return any(entry.path == path for entry in ranked_entries[:1])

    def _prune(self, metadata: Mapping[str, Any]) -> None:
        config = self._config
        retention = Retention(config.keep_last, config.keep_best, config.keep_every_steps, _mode_of(metadata))
        link = self._files.best_checkpoint_path
        if self.checkpoints.prune(retention) and link.is_symlink() and not link.exists():  # keep_best=0
            link.unlink()

    def find(self, *, group: str | None, config_hash: str | None) -> RestoredCheckpoint | None:
        """Return the checkpoint of `Run.save` to resume from; None if there is none.

        Raises:
            ConfigurationError: `load_checkpoint_path` does not exist.
            CheckpointError: All checkpoints are damaged, or the selected one was written by the drop-in API.
            UntrustedPickleError: The selected checkpoint is a file of trieye 0.1.5.
        """
        point = choose(
            self._files,
            self._config,
            config_hash=config_hash,
            group=group,
            read=self._read,
            changes_nothing=self._read_only,
        )
        return None if point is None else replace(self._opened(point), damaged=tuple(self._damaged_paths))

    def _read(self, path: Path) -> EncodedState:
        try:
            return self.checkpoints.read(path)
        except CheckpointError:
            self._damaged_paths.append(path)
            raise

    def quarantine(self, damaged_paths: Collection[Path]) -> None:
        """Rename the damaged checkpoints of this run, so that no later attempt reads them again."""
        for path in damaged_paths:
            if path.parent == self._files.checkpoint_dir:
                self.checkpoints.quarantine(path)

    def given(self, path: Path) -> RestoredCheckpoint:
        """Return the checkpoint of `Run.save` in a directory: of this run, a copy of one, or of another run.

        Raises:
            CheckpointError: The checkpoint is damaged, or was written by the drop-in API.
        """
        return self._opened(point_at(path, self._files, self._config, read=self.checkpoints.read), is_given=True)

    def _opened(self, point: ResumePoint, *, is_given: bool = False) -> RestoredCheckpoint:
        path, _, state = point.checkpoint
        if state is None:
            raise unreadable(path)
        if "model_state_dict" in state.tree:
            raise CheckpointError(
                f"{path} was saved by save_training_state, and Run.restore cannot resume from it; read it with "
                "trieye.Serializer().load_checkpoint(path), and choose another run_name"
            )
        return self.restored(point, state, lambda: _hub_state_in(path), is_given=is_given)

    def restored(
        self,
        point: ResumePoint,
        state: EncodedState | None,
        hub_state: Callable[[], Mapping[str, Any]],
        *,
        is_given: bool = False,
    ) -> RestoredCheckpoint:
        """Return the checkpoint of a resume point.

        Args:
            point: The resume point.
            state: State of the checkpoint; None if the caller has read it.
            hub_state: Reads the state of the hub from the checkpoint.
            is_given: Whether the caller passed the path of the checkpoint.
        """
        path = point.checkpoint.path
        # a file of 0.1.5 is not own: no curves of this run continue from it
        own_dir = self._files.checkpoint_dir.resolve()  # the user's path may contain links
        is_copy = is_given and point.run_name == self._config.run_name
        is_own = is_copy or (own_dir in path.resolve().parents and path.is_dir())
        # a trial that takes over another trial's state keeps its curves up to that step
        nearest_path = self._nearest(point.checkpoint.step or 0) if is_given and not is_own else None
        curves_path = path if is_own else nearest_path
        return RestoredCheckpoint(
            state=state,
            hub_state={} if curves_path is None else hub_state() if is_own else _hub_state_in(curves_path),
            identity="" if curves_path is None else _identity(curves_path),
            origin={
                "path": str(path),
                "step": point.checkpoint.step,
                "reason": point.reason,
                "run_name": point.run_name,
                "is_own": is_own,
                "parts": self._linkable(state, is_copy=is_copy) if state is not None and is_own else [],
                "seed": _metadata_of(path).get("seed"),
            },
            went_back_to=point.went_back_to,
            fork=None if is_own else self._fork_at(point),
        )

    def _linkable(self, state: EncodedState, *, is_copy: bool) -> list[str]:
        """Return the parts of a state that the next save may link; a copy may refer to parts of a replaced branch."""
        if not is_copy:
            return list(state.parts)
        find_part = parts_in([entry.path for entry in self.checkpoints.entries()])
        return [name for name in state.parts if find_part(name) is not None]

    def _nearest(self, step: int) -> Path | None:
        """Return the checkpoint of this run nearest to a step; evaluation steps of trials differ slightly."""
        nearest = min(self.checkpoints.entries(), key=lambda entry: abs(entry.step - step), default=None)
        return None if nearest is None else nearest.path

    def _fork_at(self, point: ResumePoint) -> ForkPoint:
        path, step, _ = point.checkpoint
        record = None
        with contextlib.suppress(SerializationError):  # only the checkpoint must be intact
            record = RunRecord.read(path.parents[1] / RUN_RECORD)
        names = () if record is None else ("app_name", "run_id", "mlflow_run_id")
        recorded_fields = {name: getattr(record, name) for name in names}
        return ForkPoint(
            **{"app_name": self._config.app_name, **recorded_fields},
            run_name=point.run_name,
            step=step,
            objective=_metadata_of(path).get("objective"),
            checkpoint=str(path),
            before=None if record is None else record.forked_from,
        )

    def final(self, highest_step: int) -> str | None:
        """Return the identity of the newest checkpoint if no event of the finished run is later; otherwise None.

        Args:
            highest_step: Highest step of any event.
        """
        newest = self.checkpoints.entries()[-1:]  # not verified: the next attempt detects damage and resumes elsewhere
        return _identity(newest[0].path) if newest and highest_step <= newest[0].step else None

    @property
    def has_checkpoint(self) -> bool:
        """Whether the run has a checkpoint to resume from."""
        return bool(self.checkpoints.entries())


def _deflated(hub_state: bytes) -> bytes:
    return zlib.compress(hub_state, 1) if hub_state else b""  # a twelfth of the size; takes 8 ms for 10 000 metrics


def _hub_state_in(path: Path) -> Mapping[str, Any]:
    """Return the state of the hub in a checkpoint.

    Raises:
        CheckpointError: The state is damaged.
    """
    deflated_state = read_hub_state(path)
    if not deflated_state:  # an earlier version stored it in the manifest
        in_manifest: Mapping[str, Any] = read_manifest(path).metadata.get("hub", {})
        return in_manifest
    try:
        return unpack_state(zlib.decompress(deflated_state))
    except (zlib.error, msgspec.MsgspecError) as error:
        raise CheckpointError(f"{path} does not hold the state of a hub that this version can read: {error}") from error


def _identity(path: Path) -> str:
    manifest = read_manifest(path)
    return json.dumps([path.name, manifest.sequence, manifest.created])


def _metadata_of(path: Path) -> Mapping[str, Any]:
    """Return the metadata of a checkpoint; {} for a file of 0.1.5."""
    return read_manifest(path).metadata if path.is_dir() else {}


def _mode_of(metadata: Mapping[str, Any]) -> Mode:
    return "min" if metadata.get("mode") == "min" else "max"
