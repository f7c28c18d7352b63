"""MirrorUpload: uploads new files of a run to its mirror, in a crash-safe order."""

import logging
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from trieye.checkpoints.manifest import MANIFEST_NAME
from trieye.checkpoints.store import CheckpointEntry, ranked
from trieye.exceptions import ConfigurationError, RunLockedError, SerializationError
from trieye.files.checksum import sums_of
from trieye.files.run_files import BUFFERS, CHECKPOINTS, HISTORY, JOURNAL, RUN_RECORD
from trieye.files.run_record import RunRecord
from trieye.mirror.layout import (
    COMMIT,
    PARTS,
    STATES,
    MirroredFile,
    StateMark,
    history_key,
    manifest_key,
    object_key,
    objects_of_run,
    part_keys,
    state_directory,
    states_in,
    whole_states,
)
from trieye.mirror.local import LocalRun, LocalSave, link_if_exists
from trieye.mirror.restore import fetch_manifest
from trieye.mirror.store import MirrorStore

logger = logging.getLogger(__name__)

UNOWNED = "0" * 32
"""Owner of states from a directory without an owner in its `run.json`."""

KEPT_STATES = 2
"""Number of complete states to retain: if one is damaged, the other remains."""


class MirrorUpload:
    """Uploads a run; not thread-safe. All methods raise the exceptions of `MirrorStore`.

    Args:
        store: The store of the run's mirror.
        local: The run on the disk.
        check: Called before each object; raises to abort an upload.

    Attributes:
        committed: Name of the newest complete checkpoint in the mirror.
        mirrored_at: Unix time in seconds of the newest complete state in the mirror.
        sent_bytes: Number of uploaded bytes.
    """

    def __init__(self, store: MirrorStore, local: LocalRun, check: Callable[[], None]) -> None:
        self._store, self._local, self._check = store, local, check
        self._record = local.record()
        run = RunRecord.read(local.paths.run_record_path)
        self._owner = UNOWNED if run is None or run.owner is None else run.owner.token
        self._index: dict[str, int] = {}
        self._is_connected = False
        self._states: list[StateMark] = []
        self._saves: list[LocalSave] = []
        self._broken_keys: set[str] = set()
        self._sums: dict[str, tuple[int, int]] = {}
        self._parts: dict[str, frozenset[str]] = {}
        self._newest: object = None
        self.committed: str | None = None
        self.mirrored_at: float | None = None
        self.sent_bytes = 0

    # ownership

    def connect(self) -> None:
        """List the mirror, at the first call and after `disconnect`; later uploads update the list.

        Raises:
            ConfigurationError: The mirror contains another run.
            RunLockedError: The mirror has a later state than the last upload from here: the run was continued in
                another directory, or this directory was rolled back.
        """
        if self._is_connected:
            return
        try:
            self._index = objects_of_run(self._store.list())
        except FileNotFoundError as error:
            raise ConnectionError(f"the mirror {self._store.url} does not exist: {error}") from error
        self._states = self._read_states(self._index)
        self._newest, self.committed = None, None
        self._is_connected = True

    def disconnect(self) -> None:
        """Invalidate the list: after a failure the content of the mirror is unknown."""
        self._is_connected = False

    def _read_states(self, index: Mapping[str, int], *, after: int = 0) -> list[StateMark]:
        """Return the newest states, after a check that they belong to this run and this directory."""
        run = RunRecord.read(self._local.paths.run_record_path)
        states = []
        for generation, key in whole_states(index)[:KEPT_STATES]:
            if generation > after:
                try:
                    state = StateMark.from_bytes(self._store.read(key))
                except SerializationError as error:
                    logger.warning("skipping the state %s of the mirror %s: %s", key, self._store.url, error)
                    continue
                self._claim(state, run)
                states.append(state)
        return states

    def _claim(self, state: StateMark, run: RunRecord | None) -> None:
        name, url = self._local.paths.run_base_dir.name, self._store.url
        if run is None or state.run_id != run.run_id:
            raise ConfigurationError(
                f"the mirror {url} has another run with the name {name!r} ({state.run_id}), so this run is not "
                "mirrored; choose another run_name or persistence.mirror"
            )
        # a process killed between COMMIT and the record leaves this directory exactly one state behind its own
        if state.generation > self._record.generation + (state.owner == self._owner):
            date = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(state.written))
            raise RunLockedError(
                f"run {name!r} was continued in another directory, or this directory is an older copy: the mirror "
                f"{url} has its attempt {state.attempt} from {date}, and this directory is not mirrored; to resume "
                "from the mirror, delete this directory and restart the run"
            )

    # uploads

    def pending(self) -> list[LocalSave]:
        """Return the local saves that are incomplete in the mirror, the newest first, its buffer before it."""
        self._saves = self._local.saves()
        self._note_committed()
        missing_saves = [save for save in self._saves if save.key not in self._broken_keys and not self._has(save.key)]
        missing_saves.sort(key=lambda save: (save.manifest.created, save.manifest.sequence), reverse=True)
        newest = missing_saves[0].manifest.step if missing_saves else None
        return sorted(missing_saves, key=lambda save: save.manifest.step != newest or save.folder != BUFFERS)

    def _has(self, key: str) -> bool:
        return manifest_key(key) in self._index

    def _note_committed(self) -> None:
        for save in reversed(self._saves):
            if save.folder == CHECKPOINTS and self._has(save.key):
                self.committed = save.path.name
                return

    def upload_save(self, save: LocalSave) -> None:
        """Upload a saved directory, a state that lists it unless the newest does, and finally its MANIFEST.json."""
        with self._local.outgoing() as directory:
            if not self._local.link_files(save, directory):
                self._broken_keys.add(save.key)
                return
            for name in save.manifest.files:
                self._put(directory / name, object_key(save.key, name))
            if not self._states or save.key not in self._states[0].saved:
                self.upload_state()
            self._put(directory / MANIFEST_NAME, manifest_key(save.key))
        self._note_committed()

    def upload_state(self) -> None:
        """Upload identity, journal and history of the run if they have changed."""
        save_keys = self._saved()
        with self._local.outgoing() as directory:
            sums = self._copy_state(directory)
            if self._newest == (sums, save_keys):
                self.mirrored_at = time.time()
                return
            generation = self._next_generation()
            run = RunRecord.model_validate_json((directory / RUN_RECORD).read_bytes())
            target = state_directory(generation, self._owner)
            files = {
                name: MirroredFile(key=_state_key(target, name, crc32), size_bytes=size_bytes, crc32=crc32)
                for name, (size_bytes, crc32) in sums.items()
            }
            mark = StateMark(
                generation=generation,
                owner=self._owner,
                run_id=run.run_id,
                attempt=run.attempt,
                written=time.time(),
                files=files,
                saved=save_keys,
                best=self._best(),
            )
            for name, mirrored_file in files.items():
                self._put(directory / name, mirrored_file.key)
            (directory / COMMIT).write_bytes(mark.to_bytes())
            self._put(directory / COMMIT, f"{target}/{COMMIT}")
        self._record.generation = generation
        self._local.store_record(self._record)
        self._states = [mark, *self._states][:KEPT_STATES]
        self._newest, self.mirrored_at = (sums, save_keys), mark.written

    def _next_generation(self) -> int:
        """Return an unused generation, after a check for states of other writers."""
        highest = max([self._record.generation, *(state.generation for state in self._states)])
        try:
            index = self._store.list(STATES)
        except FileNotFoundError:
            index = {}
        if self._states and self._states[0].generation not in dict(whole_states(index)):
            raise ConnectionError(
                f"the newest state of the run (run.json, journal, history) is missing from the mirror {self._store.url}"
            )
        self._read_states(index, after=highest)
        return 1 + max([highest, *states_in(index).values()])

    def _saved(self) -> list[str]:
        """Return the saves for the next state, including those to be deleted after the next complete checkpoint."""
        local_keys = {save.key: None for save in self._saves}
        earlier_keys = [*self._record.elsewhere, *(key for state in self._states[:1] for key in state.saved)]
        return [*dict.fromkeys(key for key in earlier_keys if self._has(key) and key not in local_keys), *local_keys]

    def _best(self) -> str | None:
        keys = {save.path: save.key for save in self._saves if save.folder == CHECKPOINTS}
        saves = [CheckpointEntry(save.path, 0, save.manifest) for save in self._saves if save.path in keys]
        return next((keys[entry.path] for entry in ranked(saves)), None)

    def _copy_state(self, directory: Path) -> dict[str, tuple[int, int]]:
        """Copy the files of a state; return size and CRC-32 of each file by its name in the run."""
        source, target = self._local.paths.history_dir, directory / HISTORY
        names = self._local.copy_journal(directory / JOURNAL)
        segments = [name for name in names if link_if_exists(source / name, target / name)]
        for name, path in self._local.files.items():
            if name != JOURNAL and path.exists():
                shutil.copyfile(path, directory / name)
        paths = [path for path in directory.iterdir() if path.is_file()]
        sums = {path.name: sums_of(path)[:2] for path in sorted(paths)}
        return sums | {f"{HISTORY}/{name}": self._sums_of_segment(directory / HISTORY / name) for name in segments}

    def _sums_of_segment(self, path: Path) -> tuple[int, int]:
        stat = path.stat()
        fingerprint = f"{path.name} {stat.st_size} {stat.st_mtime_ns}"
        if fingerprint not in self._sums:  # files of the history never change, and there may be gigabytes
            self._sums[fingerprint] = sums_of(path)[:2]
        return self._sums[fingerprint]

    def _put(self, path: Path, key: str) -> None:
        size_bytes = path.stat().st_size
        if self._index.get(key) == size_bytes:
            return
        self._check()
        self._store.put(path, key)
        self._index[key] = size_bytes
        self.sent_bytes += size_bytes

    # deletion

    def clean(self) -> None:
        """Delete objects that the run no longer has, once newer ones are complete."""
        states = {state.directory for state in self._states}
        needed_keys = {mirrored_file.key for state in self._states for mirrored_file in state.files.values()}
        obsolete_directories = self._obsolete_saves() | {path for path in states_in(self._index) if path not in states}
        keys = [key for key in self._index if _directory(key) in obsolete_directories]
        keys += [key for key in self._index if key.startswith(f"{HISTORY}/") and key not in needed_keys]
        keys += self._obsolete_parts(obsolete_directories)
        # markers of complete directories first
        for key in sorted(keys, key=lambda key: not key.endswith((COMMIT, MANIFEST_NAME))):
            self._check()
            self._store.delete(key)
            del self._index[key]

    def _mirrored_saves(self, *folders: str) -> set[str]:
        return {_directory(key) for key in self._index if key.partition("/")[0] in folders}

    def _obsolete_saves(self) -> set[str]:
        newest = {save.folder: save.key for save in self._saves}
        if not all(map(self._has, newest.values())):  # both the newest checkpoint and the newest buffer
            return set()
        return self._mirrored_saves(*newest) - {save.key for save in self._saves} - {*self._record.elsewhere}

    def _obsolete_parts(self, obsolete: set[str]) -> list[str]:
        needed_keys = set[str]().union(*(save.parts for save in self._saves))
        spare_keys = [key for key in self._index if key.startswith(f"{PARTS}/") and key not in needed_keys]
        if not spare_keys:
            return []
        other_saves = self._mirrored_saves(CHECKPOINTS, BUFFERS) - {save.key for save in self._saves} - obsolete
        try:
            needed_keys.update(*map(self._parts_of, other_saves))
        except (FileNotFoundError, SerializationError):  # an incomplete upload, or a damaged MANIFEST.json
            return []
        return [key for key in spare_keys if key not in needed_keys]

    def _parts_of(self, key: str) -> frozenset[str]:
        if key not in self._parts:
            with self._local.outgoing() as directory:
                self._parts[key] = part_keys(fetch_manifest(self._store, key, directory))
        return self._parts[key]

    # saves that exist only in the mirror

    @property
    def elsewhere(self) -> list[str]:
        """Keys of saves that exist in the mirror, but never in the run directory, the oldest first."""
        return list(self._record.elsewhere)

    def note_fetched(self, key: str) -> None:
        """Record that a save has been downloaded."""
        self._record.elsewhere = [other_key for other_key in self._record.elsewhere if other_key != key]
        self._local.store_record(self._record)


def _state_key(directory: str, name: str, crc32: int) -> str:
    return history_key(name, crc32) if name.startswith(f"{HISTORY}/") else f"{directory}/{name}"


def _directory(key: str) -> str:
    return key.rpartition("/")[0]
