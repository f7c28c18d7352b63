"""SavedStates: the checkpoints of a run, as the hub saves and finds them."""

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


class Saved(NamedTuple):
    """A checkpoint that is safe on disk.

    Attributes:
        path: Its directory.
        damaged: Names of damaged parts, among those that the hub has read again; later checkpoints must not link them.
    """

    path: str
    damaged: Collection[str] = ()


@dataclass(frozen=True)
class Restored:
    """A checkpoint to resume from.

    Attributes:
        state: Its content; None where the caller has read it already.
        hub_state: State of the hub at that moment; empty if it is that of another run, which has curves of its own,
            unless the run goes on from a checkpoint that was given: then that of its own nearest one.
        identity: What tells the checkpoint with this state of the hub from another of the same step.
        origin: Where it comes from: `path`, `reason`, `run_name`, whether that is this run: `is_own`, which `parts` of
            it the next save may link, and the `seed` of the run when it was saved; None if that is not known.
        went_back_to: What the user called the checkpoint, if the run goes back to an earlier one of its own.
        fork: What another run is called that the checkpoint belongs to; None for one of this run.
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
    """Saves states, all of one or nothing, deletes old ones, and finds the one to resume from.

    Args:
        config: What is saved, kept and resumed.
        files: File names of the run.
        trust: Signs pickled parts.
        attempt: Number of the attempt that saves.
        read_only: Change nothing in the run directory, for an attempt that may still be refused.
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
        self._read_only, self._damaged = read_only, list[Path]()
        self.checkpoints = self.store(files.checkpoint_dir)

    def save(self, step: int, state: EncodedState, metadata: Mapping[str, Any], hub_state: bytes = b"") -> Path:
        """Write a checkpoint, and point the links at it.

        Args:
            step: Its global step.
            state: What to save.
            metadata: Plain data for the manifest.
            hub_state: State of the hub from `pack_state`; empty: it is in `state`, as the drop-in API keeps it.

        Raises:
            SerializationError: It could not be written.
        """
        whose = {"run_name": self._config.run_name, "attempt": self._attempt}
        if metadata.get("is_crash"):
            return self._save_crash(step, state, {**metadata, **whose}, _deflated(hub_state))
        path = self.checkpoints.save(step, state, metadata={**metadata, **whose}, hub_state=_deflated(hub_state))
        is_best = bool(metadata.get("is_best")) or self._is_best(path, metadata)
        self._files.update_checkpoint_links(path, is_best)
        self._prune(metadata)
        return path

    def _save_crash(self, step: int, state: EncodedState, metadata: Mapping[str, Any], hub_state: bytes) -> Path:
        """Write the state that an error left behind, and delete the previous one; no link leads there."""
        found = self._files.checkpoint_dir.glob(f"{CRASH_PREFIX}*")
        before = [
            other
            for other in found
            if other.name.removeprefix(CRASH_PREFIX).isdecimal() and other.is_dir() and not other.is_symlink()
        ]
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
        for other in before:
            if other != path:
                remove_directory(other)
        return path

    def rate(self, step: int, objective: float | None) -> None:
        """Note the objective of a checkpoint that was saved before it was known.

        Raises:
            CheckpointError: There is no such checkpoint.
            SerializationError: It could not be noted.
        """
        path = self.checkpoints.rate(step, objective)
        metadata = read_manifest(path).metadata
        if self._is_best(path, metadata):
            self._files.update_best_link(path)
        self._prune(metadata)

    def _is_best(self, path: Path, metadata: Mapping[str, Any]) -> bool:
        rated = metadata.get("objective") is not None
        ranked = self.checkpoints.ranked(_mode_of(metadata)) if rated else []  # without it if that is not finite
        return any(entry.path == path for entry in ranked[:1])

    def _prune(self, metadata: Mapping[str, Any]) -> None:
        chosen = self._config
        kept = Retention(chosen.keep_last, chosen.keep_best, chosen.keep_every_steps, _mode_of(metadata))
        self.checkpoints.prune(kept)

    def find(self, *, group: str | None, config_hash: str | None) -> Restored | None:
        """Return the checkpoint of `Run.save` to go on with.

        Raises:
            ConfigurationError: `load_checkpoint_path` does not exist.
            CheckpointError: There are checkpoints, and none of them is whole, or it is one of the drop-in API.
            UntrustedPickleError: It is a file of trieye 0.1.5.
        """
        point = choose(
            self._files,
            self._config,
            config_hash=config_hash,
            group=group,
            read=self._read,
            changes_nothing=self._read_only,
        )
        return None if point is None else replace(self._found(point), damaged=tuple(self._damaged))

    def _read(self, path: Path) -> EncodedState:
        try:
            return self.checkpoints.read(path)
        except CheckpointError:
            self._damaged.append(path)
            raise

    def quarantine(self, damaged: Collection[Path]) -> None:
        """Rename the damaged checkpoints of this run, so that no later attempt reads them again."""
        for path in damaged:
            if path.parent == self._files.checkpoint_dir:
                self.checkpoints.quarantine(path)

    def given(self, path: Path) -> Restored:
        """Return a checkpoint of `Run.save` that is given by its directory: one of this run, a copy too, or another's.

        Raises:
            CheckpointError: It is not whole, or one of the drop-in API.
        """
        return self._found(point_at(path, self._files, self._config, read=self.checkpoints.read), is_given=True)

    def _found(self, point: ResumePoint, *, is_given: bool = False) -> Restored:
        path, _, state = point.checkpoint
        if state is None:
            raise unreadable(path)
        if "model_state_dict" in state.tree:
            raise CheckpointError(
                f"{path} was saved by save_training_state, and Run.restore cannot go on from it; read it with "
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
    ) -> Restored:
        """Return the checkpoint of a resume point.

        Args:
            point: The resume point.
            state: Its state, unless the caller has read it.
            hub_state: Reads the state of the hub in it.
            is_given: The caller named its directory.
        """
        path = point.checkpoint.path
        # a file of 0.1.5 has no curves of ours that could go on
        own = self._files.checkpoint_dir.resolve()  # a path that the user gave may have come here by a link
        is_copy = is_given and point.run_name == self._config.run_name
        is_own = is_copy or (own in path.resolve().parents and path.is_dir())
        # a trial that takes over the state of another one keeps its curves until there
        earlier = self._nearest(point.checkpoint.step or 0) if is_given and not is_own else None
        curves = path if is_own else earlier
        return Restored(
            state=state,
            hub_state={} if curves is None else hub_state() if is_own else _hub_state_in(curves),
            identity="" if curves is None else _identity(curves),
            origin={
                "path": str(path),
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
        """Return the parts of a state that the next save links; a copy may have some of a branch that was replaced."""
        if not is_copy:
            return list(state.parts)
        find = parts_in([entry.path for entry in self.checkpoints.entries()])
        return [name for name in state.parts if find(name) is not None]

    def _nearest(self, step: int) -> Path | None:
        """Return the checkpoint of this run that is nearest to a step; trials are not evaluated at quite the same."""
        found = min(self.checkpoints.entries(), key=lambda entry: abs(entry.step - step), default=None)
        return None if found is None else found.path

    def _fork_at(self, point: ResumePoint) -> ForkPoint:
        path, step, _ = point.checkpoint
        record = None
        with contextlib.suppress(SerializationError):  # the checkpoint is whole, and that is what counts
            record = RunRecord.read(path.parents[1] / RUN_RECORD)
        known = (
            {} if record is None else {name: getattr(record, name) for name in ("app_name", "run_id", "mlflow_run_id")}
        )
        return ForkPoint(
            **{"app_name": self._config.app_name, **known},
            run_name=point.run_name,
            step=step,
            objective=_metadata_of(path).get("objective"),
            checkpoint=str(path),
            before=None if record is None else record.forked_from,
        )

    def final(self, highest_step: int) -> str | None:
        """Return the identity of the newest checkpoint if a run that is finished ends with it.

        Args:
            highest_step: Highest step of any event.
        """
        newest = self.checkpoints.entries()[-1:]  # not read once more: a start that finds it damaged begins elsewhere
        return _identity(newest[0].path) if newest and highest_step <= newest[0].step else None

    @property
    def has_checkpoint(self) -> bool:
        """Whether another attempt can go on from a checkpoint of this run."""
        return bool(self.checkpoints.entries())


def _deflated(hub_state: bytes) -> bytes:
    return zlib.compress(hub_state, 1) if hub_state else b""  # a twelfth of the bytes, in 8 ms for 10 000 metrics


def _hub_state_in(path: Path) -> Mapping[str, Any]:
    """Return the state of the hub in a checkpoint.

    Raises:
        CheckpointError: It is damaged.
    """
    held = read_hub_state(path)
    if not held:  # an earlier version had it in the manifest
        before: Mapping[str, Any] = read_manifest(path).metadata.get("hub", {})
        return before
    try:
        return unpack_state(zlib.decompress(held))
    except (zlib.error, msgspec.MsgspecError) as error:
        raise CheckpointError(f"{path} does not hold the state of a hub: {error}") from error


def _identity(path: Path) -> str:
    manifest = read_manifest(path)
    return json.dumps([path.name, manifest.sequence, manifest.created])


def _metadata_of(path: Path) -> Mapping[str, Any]:
    """Return what was noted with a checkpoint; nothing for a file of 0.1.5."""
    return read_manifest(path).metadata if path.is_dir() else {}


def _mode_of(metadata: Mapping[str, Any]) -> Mode:
    return "min" if metadata.get("mode") == "min" else "max"
