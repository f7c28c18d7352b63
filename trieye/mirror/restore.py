"""Bring a run back from its mirror to a machine that has nothing of it."""

import logging
import os
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from trieye.checkpoints.manifest import MANIFEST_NAME, PARTS_DIRECTORY, read_manifest
from trieye.config.mirror import require_package
from trieye.exceptions import CheckpointError, ConfigurationError, SerializationError
from trieye.files.atomic import fsync_directory, new_directory, remove
from trieye.files.checksum import sums_of, verify_file
from trieye.files.run_files import RunFiles
from trieye.files.run_record import RunRecord
from trieye.mirror.layout import (
    BUFFERS,
    CHECKPOINTS,
    COMPOSED_CONFIG,
    CONFIG,
    HISTORY,
    JOURNAL,
    PARTS,
    RUN_RECORD,
    Folder,
    MirroredFile,
    SavedName,
    SaveMark,
    StateMark,
    state_commits,
)
from trieye.mirror.local import LocalRun, MirrorRecord
from trieye.mirror.store import MirrorStore

logger = logging.getLogger(__name__)


def restore_run(paths: RunFiles, url: str | None) -> str | None:
    """Bring back a run of which this machine has nothing, if its mirror has it; the caller holds the lock of the run.

    A kill at any moment leaves a directory that is restored again, or one that is complete.

    Args:
        paths: File names of the run.
        url: The mirror; None: there is none.

    Returns:
        What was restored, in words; None if nothing was.

    Raises:
        ConfigurationError: The mirror cannot be used or reached, so that nobody knows whether it has the run.
        CheckpointError: It has the run, and nothing of it is whole.
        SerializationError: What this directory knows of the mirror cannot be read.
    """
    if url is None:
        return None
    require_package(url)
    local = LocalRun(paths)
    if not local.is_lost():
        local.record()
        return None
    store = MirrorStore(url, paths.app_root_dir.name, paths.run_base_dir.name)
    try:
        return _Restore(store, local).run()
    except OSError as error:
        raise ConfigurationError(
            f"persistence.mirror={url}: this machine has nothing of run {paths.run_base_dir.name!r}, and what the "
            f"mirror has of it cannot be brought here: {error}; try again, or begin afresh with persistence.mirror=null"
        ) from error


class _Restore:
    def __init__(self, store: MirrorStore, local: LocalRun) -> None:
        self._store, self._local = store, local
        self._index = store.list()

    def run(self) -> str | None:
        states = state_commits(self._index)
        if not states:
            return None
        self._local.note_restoring(under_way=True)
        problems = []
        for generation, key in states:
            try:
                state = StateMark.from_bytes(self._store.read(key))
                words = self._bring(state, states[0][0])
            except (SerializationError, FileNotFoundError) as error:
                problems.append(f"state {generation}: {error}")
                logger.warning("state %d of the mirror %s is not used: %s", generation, self._store.url, error)
            else:
                self._local.note_restoring(under_way=False)
                return words
        raise CheckpointError(
            f"the mirror {self._store.url} has the run {self._local.paths.run_base_dir.name!r}, and nothing of it is "
            f"whole ({'; '.join(problems)}); to begin afresh, choose another run_name or persistence.mirror"
        )

    def _bring(self, state: StateMark, newest: int) -> str:
        paths = self._local.paths
        targets = {
            COMPOSED_CONFIG: paths.composed_config_path,
            CONFIG: paths.config_path,
            JOURNAL: paths.journal_path,
            RUN_RECORD: paths.run_record_path,
        }
        with self._local.outgoing() as directory:
            for name, file in state.files.items():
                self._fetch(file, directory / name)
            if (run := RunRecord.read(directory / RUN_RECORD)) is None or run.run_id != state.run_id:
                raise CheckpointError("its run.json is not that of the run")
            saved = self._bring_saves(state)
            self._move_history(directory / HISTORY)
            words = self._words(state, saved, newest)
            self._local.keep(MirrorRecord(generation=newest, elsewhere=self._elsewhere(state, saved), note=words))
            for name, target in targets.items():  # run.json last: it makes the directory that of a run
                if name in state.files:
                    (directory / name).replace(target)
            fsync_directory(paths.run_base_dir)
        return words

    def _fetch(self, file: MirroredFile, target: Path) -> None:
        if self._index.get(file.key) != file.size_bytes:
            raise CheckpointError(f"{file.key} is missing or cut")
        _get(self._store, file.key, target)
        if sums_of(target)[:2] != (file.size_bytes, file.crc32):
            raise CheckpointError(f"the checksum of {file.key} does not match")

    def _move_history(self, source: Path) -> None:
        target = self._local.paths.history_dir
        remove(target)  # of a restore that was killed
        if source.is_dir():
            source.replace(target)

    def _bring_saves(self, state: StateMark) -> dict[Folder, SavedName]:
        """Bring the newest checkpoint that is whole, and the newest buffer that is not newer."""
        found: dict[Folder, SavedName] = {}
        checkpoints = self._complete(state, CHECKPOINTS)
        if (checkpoint := self._bring_newest(checkpoints)) is not None:
            found[CHECKPOINTS] = checkpoint
        elif checkpoints:
            raise CheckpointError(f"none of its {len(checkpoints)} checkpoint(s) is whole")
        buffers = [saved for saved in self._complete(state, BUFFERS) if checkpoint and saved.step <= checkpoint.step]
        if (buffer := self._bring_newest(buffers)) is not None:
            found[BUFFERS] = buffer
        return found

    def _complete(self, state: StateMark, folder: Folder) -> list[SavedName]:
        return [saved for saved in state.saved if saved.folder == folder and saved.commit in self._index]

    def _bring_newest(self, saves: list[SavedName]) -> SavedName | None:
        for saved in reversed(saves):
            try:
                fetch_save(self._store, self._index, saved, self._local.folders[saved.folder] / saved.name)
            except (SerializationError, FileNotFoundError) as error:
                logger.warning("%s of the mirror %s is not used: %s", saved.key, self._store.url, error)
            else:
                return saved
        return None

    def _elsewhere(self, state: StateMark, found: Mapping[Folder, SavedName]) -> list[SavedName]:
        """Return what stays in the mirror only: what is older than what was brought."""
        left: list[SavedName] = []
        for folder, newest in found.items():
            complete = self._complete(state, folder)
            left += complete[: complete.index(newest)]
        return left

    def _words(self, state: StateMark, found: Mapping[Folder, SavedName], newest: int) -> str:
        what = found[CHECKPOINTS].name if CHECKPOINTS in found else "no checkpoint yet"
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(state.written))
        older = "" if state.generation == newest else "; newer ones are damaged"
        return (
            f"run {self._local.paths.run_base_dir.name!r} is restored from the mirror {self._store.url}: {what}, "
            f"metrics up to {when} (attempt {state.attempt}){older}"
        )


def fetch_save(
    store: MirrorStore,
    index: Mapping[str, int],
    saved: SavedName,
    path: Path,
    *,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Bring a saved directory of a mirror to `path`, whole or not at all; what is there is replaced.

    Args:
        store: The mirror.
        index: Keys and sizes of what it has.
        saved: Which one.
        path: Where it belongs.
        check: Called before each file; raises to end it.

    Raises:
        CheckpointError: It is damaged, otherwise than in a part of a replay, which is left out.
        FileNotFoundError: A file of it is missing.
        ConnectionError: The mirror cannot be read now.
    """
    mark = SaveMark.from_bytes(store.read(saved.commit))
    with new_directory(path) as scratch:
        _get(store, f"{saved.key}/{MANIFEST_NAME}", scratch / MANIFEST_NAME)
        if zlib.crc32((scratch / MANIFEST_NAME).read_bytes()) != mark.manifest_crc32:
            raise CheckpointError(f"the checksum of {saved.key}/{MANIFEST_NAME} does not match")
        for name, entry in read_manifest(scratch).files.items():
            shared = name.startswith(f"{PARTS_DIRECTORY}/")
            key = f"{PARTS}/{Path(name).name}" if shared else f"{saved.key}/{name}"
            check()
            try:
                if index.get(key) is None:
                    raise FileNotFoundError(f"{key} is missing")  # noqa: TRY301 - as the store does if it goes now
                _get(store, key, scratch / name)
                verify_file(scratch / name, entry)
            except (CheckpointError, FileNotFoundError) as error:
                if not shared:
                    raise
                remove(scratch / name)
                logger.warning("%s of the mirror %s: %s; all but what is in it is restored", key, store.url, error)


def _get(store: MirrorStore, key: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    store.get(key, target)
    with target.open("rb") as file:
        os.fsync(file.fileno())
