"""Restores a run, or damaged files of its history, from its mirror."""

import logging
import os
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from trieye.checkpoints.manifest import MANIFEST_NAME, PARTS_DIRECTORY, Manifest, read_manifest
from trieye.config.locations import require_packages
from trieye.exceptions import CheckpointError, ConfigurationError, SerializationError
from trieye.files.atomic import fsync_directory, new_directory, remove
from trieye.files.checksum import FileEntry, verify_file
from trieye.files.run_files import BUFFERS, CHECKPOINTS, HISTORY, RUN_RECORD, RunFiles
from trieye.files.run_record import RunRecord, earlier_runs
from trieye.journal.journal import Segment
from trieye.mirror.layout import STATES, SaveName, StateMark, history_key, manifest_key, object_key, whole_states
from trieye.mirror.local import LocalRun, MirrorRecord
from trieye.mirror.store import MirrorStore

logger = logging.getLogger(__name__)


def restore_run(paths: RunFiles, url: str | None) -> str | None:
    """Restore a run, or all its checkpoints, missing on this machine from its mirror; the caller holds the run's lock.

    A crash at any point leaves a complete directory, or one that is restored again.

    Args:
        paths: File names of the run.
        url: URL of the mirror, or None.

    Returns:
        A description of the restored state; None if nothing was restored.

    Raises:
        ConfigurationError: The mirror cannot be used or reached, so that it may or may not have the run, or the run
            exists here under another name.
        CheckpointError: The mirror has the run, but no intact state of it.
        SerializationError: The directory's record of the mirror cannot be read.
    """
    if url is None:
        return None
    require_packages(url)
    local = LocalRun(paths)
    is_lost = local.is_lost()
    if not is_lost and not local.lacks_checkpoints():
        return None
    store = MirrorStore(url, paths.app_root_dir.name, paths.run_base_dir.name)
    try:
        restore = _Restore(store, local)
        return restore.newest(restore.whole if is_lost else restore.checkpoint)
    except OSError as error:
        raise ConfigurationError(
            f"persistence.mirror={url}: run {paths.run_base_dir.name!r} is missing on this machine, or has lost its "
            f"checkpoints, and cannot be restored from the mirror: {error}; try again, or start from scratch with "
            "persistence.mirror=null"
        ) from error


def has_run(url: str, app_name: str, run_name: str) -> bool:
    """Return whether a mirror has a run, which `restore_run` would restore on a machine without its files.

    Args:
        url: URL of the mirror.
        app_name: Name of the app.
        run_name: Name of the run.

    Raises:
        ConfigurationError: The mirror cannot be used or reached, so that it may or may not have the run.
    """
    try:
        return bool(whole_states(MirrorStore(url, app_name, run_name).list(STATES)))
    except OSError as error:
        raise ConfigurationError(
            f"persistence.mirror={url}: the mirror cannot be searched for a run {run_name!r}: {error}; try again, or "
            "start without a mirror with persistence.mirror=null"
        ) from error


def refill_history(paths: RunFiles, url: str, segments: Sequence[Segment]) -> None:
    """Restore missing or damaged files of the history, if the mirror has them.

    Files that cannot be restored stay unchanged; readers of the history report the loss.

    Args:
        paths: File names of the run; the caller holds its lock.
        url: URL of the mirror.
        segments: The files that are registered in the journal.

    Raises:
        ConfigurationError: The package for the mirror is missing.
    """
    local, store = LocalRun(paths), MirrorStore(url, paths.app_root_dir.name, paths.run_base_dir.name)
    for segment in segments:
        target, entry = paths.history_dir / segment.name, FileEntry(size_bytes=segment.size_bytes, crc32=segment.crc)
        try:
            verify_file(target, entry)
        except CheckpointError as damage:
            subject = f"{segment.name}, items {segment.first} to {segment.end - 1} of the history"
            try:
                with local.outgoing() as directory:
                    _get(store, history_key(f"{HISTORY}/{segment.name}", segment.crc), directory / segment.name, entry)
                    target.parent.mkdir(exist_ok=True)
                    (directory / segment.name).replace(target)
            except (SerializationError, OSError) as error:
                logger.warning("%s: %s; it cannot be restored from the mirror %s: %s", subject, damage, url, error)
            else:
                logger.warning("%s: %s; it is restored from the mirror %s", subject, damage, url)


class _Restore:
    """Downloads the newest intact checkpoint of a mirror, with its state if that is lost, too, to the run directory."""

    def __init__(self, store: MirrorStore, local: LocalRun) -> None:
        self._store, self._local = store, local
        self._index = store.list()

    def newest(self, fetch: Callable[[StateMark, int], str | None]) -> str | None:
        """Call `whole` or `checkpoint` with the newest state for which it succeeds, and return the description."""
        states = whole_states(self._index)
        if not states:
            return None
        problems = []
        for generation, key in states:
            try:
                return fetch(StateMark.from_bytes(self._store.read(key)), states[0][0])
            except (SerializationError, FileNotFoundError) as error:
                problems.append(f"state {generation}: {error}")
                logger.warning("state %d of the mirror %s is not used: %s", generation, self._store.url, error)
        raise CheckpointError(
            f"the mirror {self._store.url} has the run {self._local.paths.run_base_dir.name!r}, but no intact state of "
            f"it ({'; '.join(problems)}); to start from scratch, choose another run_name or persistence.mirror"
        )

    def checkpoint(self, state: StateMark, newest_generation: int) -> str | None:
        """Download the newest intact checkpoint of a state that this directory uploaded."""
        record, run = self._local.record(), RunRecord.read(self._local.paths.run_record_path)
        if run is None or run.run_id != state.run_id or state.generation > record.generation:
            return None  # the upload reports the other run or the other directory
        checkpoint, elsewhere = self._fetch_saves(state)
        if checkpoint is None:
            return None
        description = self._description(state, checkpoint, newest_generation)
        self._local.store_record(record.model_copy(update={"elsewhere": elsewhere, "note": description}))
        return description

    def whole(self, state: StateMark, newest_generation: int) -> str:
        """Download a state, and its newest intact checkpoint."""
        self._refuse_renamed(state)
        self._local.store_record(MirrorRecord(restoring=True))
        folders = [folder for folder in self._local.folders.values() if not folder.is_symlink()]
        for leftover in [entry for folder in folders for entry in folder.glob("*")]:
            remove(leftover)  # of an interrupted restore, perhaps of another run
        with self._local.outgoing() as directory:
            for name, mirrored_file in state.files.items():
                _get(self._store, mirrored_file.key, directory / name, mirrored_file)
            if (run := RunRecord.read(directory / RUN_RECORD)) is None or run.run_id != state.run_id:
                raise CheckpointError("run.json belongs to another run")
            run.owner = None  # the next attempt here becomes the owner; a restore for reading does not
            run.save(directory / RUN_RECORD)
            checkpoint, elsewhere = self._fetch_saves(state)
            self._move_history(directory / HISTORY)
            description = self._description(state, checkpoint, newest_generation)
            record = MirrorRecord(generation=newest_generation, elsewhere=elsewhere, note=description, restoring=True)
            self._local.store_record(record)
            for name, target in self._local.files.items():
                if name in state.files:
                    (directory / name).replace(target)
            fsync_directory(self._local.paths.run_base_dir)
        record.restoring = False
        self._local.store_record(record)
        return description

    def _refuse_renamed(self, state: StateMark) -> None:
        name, root = self._local.paths.run_base_dir.name, self._local.paths.runs_root_dir
        for directory, _, record in earlier_runs(self._local.paths, name):
            if record is None or record.run_id != state.run_id or directory.parent != root:
                continue
            if record.refusal(directory) is None:  # a copy, such as a backup, owns nothing
                raise ConfigurationError(
                    f"run_name={name}: under this name, the mirror {self._store.url} has the run in {directory}; "
                    f"choose another run_name, or resume that run with run_name={directory.name}"
                )

    def _move_history(self, source: Path) -> None:
        target = self._local.paths.history_dir
        remove(target)  # left by an interrupted restore
        if source.is_dir():
            source.replace(target)

    def _fetch_saves(self, state: StateMark) -> tuple[str | None, list[str]]:
        """Download the newest and the best intact checkpoint, and the newest buffer that is not newer than the former.

        Returns:
            Key of the newest checkpoint, and the keys of older saves, which stay in the mirror.
        """
        complete = [key for key in state.saved if manifest_key(key) in self._index]
        checkpoints = [key for key in complete if SaveName.of(key).folder == CHECKPOINTS]
        if (checkpoint := self._fetch_newest(checkpoints)) is None:
            if checkpoints:
                raise CheckpointError(f"none of its {len(checkpoints)} checkpoint(s) is intact")
            return None, []
        step = SaveName.of(checkpoint).step
        buffers = [key for key in complete if SaveName.of(key).folder == BUFFERS and SaveName.of(key).step <= step]
        buffer = self._fetch_newest(buffers)
        older_buffers = [] if buffer is None else buffers[: buffers.index(buffer)]
        older_checkpoints = checkpoints[: checkpoints.index(checkpoint)]
        best: str | None = checkpoint
        if state.best != checkpoint:
            best = self._fetch_newest([key for key in older_checkpoints if key == state.best])
        if best is not None:
            self._local.paths.update_best_link(self._local.folders[CHECKPOINTS] / SaveName.of(best).name)
        return checkpoint, [key for key in older_checkpoints if key != best] + older_buffers

    def _fetch_newest(self, keys: list[str]) -> str | None:
        for key in reversed(keys):
            try:
                fetch_save(self._store, key, self._local)
            except (SerializationError, FileNotFoundError) as error:
                logger.warning("%s of the mirror %s is not used: %s", key, self._store.url, error)
            else:
                return key
        return None

    def _description(self, state: StateMark, checkpoint: str | None, newest_generation: int) -> str:
        name = SaveName.of(checkpoint).name if checkpoint else "no checkpoint yet"
        written_at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(state.written))
        older = "" if state.generation == newest_generation else "; newer ones are damaged"
        return (
            f"run {self._local.paths.run_base_dir.name!r} is restored from the mirror {self._store.url}: {name}, "
            f"metrics up to {written_at} (attempt {state.attempt}){older}"
        )


def fetch_save(store: MirrorStore, key: str, local: LocalRun, *, check: Callable[[], None] = lambda: None) -> None:
    """Download a saved directory of a mirror to the run atomically, replacing an existing one.

    Args:
        store: The mirror.
        key: Key of the saved directory.
        local: The run.
        check: Called before each file; raises to abort the download.

    Raises:
        CheckpointError: A file is damaged; damaged or missing parts of a replay are skipped instead.
        FileNotFoundError: A file is missing.
        ConnectionError: The mirror is temporarily unreadable.
    """
    save_name = SaveName.of(key)
    with new_directory(local.folders[save_name.folder] / save_name.name) as scratch:
        for name, entry in fetch_manifest(store, key, scratch).files.items():
            check()
            try:
                _get(store, object_key(key, name), scratch / name, entry)
            except (CheckpointError, FileNotFoundError) as error:
                if not name.startswith(f"{PARTS_DIRECTORY}/"):
                    raise
                remove(scratch / name)
                logger.warning(
                    "%s of the mirror %s: %s; everything except its rows is restored", name, store.url, error
                )


def fetch_manifest(store: MirrorStore, key: str, directory: Path) -> Manifest:
    """Download the MANIFEST.json of a saved directory to a directory, and return the manifest.

    Raises:
        CheckpointError: The manifest is damaged.
        FileNotFoundError: The manifest is missing.
        ConnectionError: The mirror is temporarily unreadable.
    """
    path = directory / MANIFEST_NAME
    _get(store, manifest_key(key), path)
    if zlib.crc32(path.read_bytes()) != SaveName.of(key).manifest_crc32:
        raise CheckpointError(f"the checksum of {manifest_key(key)} does not match")
    return read_manifest(directory)


def _get(store: MirrorStore, key: str, target: Path, entry: FileEntry | None = None) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    store.get(key, target)
    with target.open("rb") as file:
        os.fsync(file.fileno())
    if entry is not None:
        verify_file(target, entry)
