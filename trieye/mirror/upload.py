"""MirrorUpload: brings what is new in a run to its mirror, in an order that a kill cannot harm."""

import logging
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from trieye.checkpoints.manifest import MANIFEST_NAME
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
    part_keys,
    state_directory,
    states_in,
    whole_states,
)
from trieye.mirror.local import LocalRun, LocalSave, link_if_there
from trieye.mirror.restore import fetch_manifest
from trieye.mirror.store import MirrorStore

logger = logging.getLogger(__name__)

UNOWNED = "0" * 32
"""Owner of a state that was uploaded from a directory whose `run.json` records none."""

KEPT_STATES = 2
"""Complete states that stay: a damaged one must not be the only one."""


class MirrorUpload:
    """Uploads a run; belongs to one thread. All calls raise what those of `MirrorStore` do.

    Args:
        store: The mirror, below it the run.
        local: The run on the disk.
        check: Called before each object; raises to end an upload.

    Attributes:
        committed: Name of the newest checkpoint that is complete in the mirror.
        mirrored_at: Unix time in seconds of the newest state that is complete there.
        sent_bytes: Bytes that were uploaded.
    """

    def __init__(self, store: MirrorStore, local: LocalRun, check: Callable[[], None]) -> None:
        self._store, self._local, self._check = store, local, check
        self._record = local.record()
        self._owner = _owner_of(local)
        self._index: dict[str, int] = {}
        self._is_connected = False
        self._states: list[StateMark] = []
        self._saves: list[LocalSave] = []
        self._broken: set[str] = set()
        self._sums: dict[str, tuple[int, int]] = {}
        self._parts: dict[str, frozenset[str]] = {}
        self._newest: object = None
        self.committed: str | None = None
        self.mirrored_at: float | None = None
        self.sent_bytes = 0

    # who may write

    def connect(self) -> None:
        """List the mirror, at the first call and after `disconnect`; the upload keeps the list true from then on.

        Raises:
            ConfigurationError: It holds another run.
            RunLockedError: The run went on somewhere else since this directory was mirrored.
        """
        if self._is_connected:
            return
        try:
            self._index = self._store.list()
        except FileNotFoundError as error:
            raise ConnectionError(f"the mirror {self._store.url} is not there: {error}") from error
        self._states = self._read_states(self._index)
        self._newest, self.committed = None, None
        self._is_connected = True

    def disconnect(self) -> None:
        """List the mirror again the next time: after a failure it may hold anything."""
        self._is_connected = False

    def _read_states(self, index: Mapping[str, int], *, after: int = 0) -> list[StateMark]:
        """Return the newest states, and make sure that nobody else has another run here, or went on with this run."""
        run = RunRecord.read(self._local.paths.run_record_path)
        states = []
        for generation, key in whole_states(index)[:KEPT_STATES]:
            if generation > after:
                try:
                    state = StateMark.from_bytes(self._store.read(key))
                except SerializationError as error:
                    logger.warning("%s of the mirror %s: %s; it is not used", key, self._store.url, error)
                    continue
                self._claim(state, run)
                states.append(state)
        return states

    def _claim(self, state: StateMark, run: RunRecord | None) -> None:
        name, url = self._local.paths.run_base_dir.name, self._store.url
        if run is None or state.run_id != run.run_id:
            raise ConfigurationError(
                f"the mirror {url} holds another run of the name {name!r} ({state.run_id}), so this one is not "
                "mirrored; choose another run_name or persistence.mirror"
            )
        if state.owner != self._owner and state.generation > self._record.generation:
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(state.written))
            raise RunLockedError(
                f"run {name!r} went on in another directory: the mirror {url} has its attempt {state.attempt}, of "
                f"{when}, and what comes from here is not mirrored; to go on from there, delete this directory and "
                "start the run again"
            )

    # what is to be done

    def pending(self) -> list[LocalSave]:
        """Look at what is saved; return what is not complete in the mirror, the newest first, its buffer before it."""
        self._saves = self._local.saves()
        self._note_committed()
        missing = [save for save in self._saves if save.key not in self._broken and not self._has(save.key)]
        missing.sort(key=lambda save: (save.manifest.created, save.manifest.sequence), reverse=True)
        newest = missing[0].manifest.step if missing else None
        return sorted(missing, key=lambda save: save.manifest.step != newest or save.folder != BUFFERS)

    def _has(self, key: str) -> bool:
        return manifest_key(key) in self._index

    def _note_committed(self) -> None:
        for save in reversed(self._saves):
            if save.folder == CHECKPOINTS and self._has(save.key):
                self.committed = save.path.name
                return

    def bring(self, save: LocalSave) -> None:
        """Upload a saved directory, a state that knows it if no state does, and then its MANIFEST.json."""
        with self._local.outgoing() as directory:
            if not self._local.hold(save, directory):
                self._broken.add(save.key)
                return
            for name in save.manifest.files:
                self._put(directory / name, object_key(save.key, name))
            if not self._states or save.key not in self._states[0].saved:
                self.bring_state()
            self._put(directory / MANIFEST_NAME, manifest_key(save.key))
        self._note_committed()

    def bring_state(self) -> None:
        """Upload who the run is, its journal and its history, if any of that has changed."""
        saved = self._saved()
        with self._local.outgoing() as directory:
            sums = self._copy_state(directory)
            if self._newest == (sums, saved):
                self.mirrored_at = time.time()
                return
            generation = self._next_generation()
            run = RunRecord.model_validate_json((directory / RUN_RECORD).read_bytes())
            place = state_directory(generation, self._owner)
            files = {
                name: MirroredFile(key=_state_key(place, name, crc32), size_bytes=size_bytes, crc32=crc32)
                for name, (size_bytes, crc32) in sums.items()
            }
            mark = StateMark(
                generation=generation,
                owner=self._owner,
                run_id=run.run_id,
                attempt=run.attempt,
                written=time.time(),
                files=files,
                saved=saved,
            )
            for name, file in files.items():
                self._put(directory / name, file.key)
            (directory / COMMIT).write_bytes(mark.to_bytes())
            self._put(directory / COMMIT, f"{place}/{COMMIT}")
        self._record.generation = generation
        self._local.keep(self._record)
        self._states = [mark, *self._states][:KEPT_STATES]
        self._newest, self.mirrored_at = (sums, saved), mark.written

    def _next_generation(self) -> int:
        """Look whether somebody else wrote here meanwhile, and return a generation that no state has."""
        highest = max([self._record.generation, *(state.generation for state in self._states)])
        try:
            there = self._store.list(STATES)
        except FileNotFoundError:
            there = {}
        if self._states and self._states[0].generation not in dict(whole_states(there)):
            raise ConnectionError(f"the mirror {self._store.url} has lost what was there")
        self._read_states(there, after=highest)
        return 1 + max([highest, *states_in(there).values()])

    def _saved(self) -> list[str]:
        """Return what a reader of the next state may find: also what goes when something newer is complete."""
        local = {save.key: None for save in self._saves}
        before = [*self._record.elsewhere, *(key for state in self._states[:1] for key in state.saved)]
        return [*dict.fromkeys(key for key in before if self._has(key) and key not in local), *local]

    def _copy_state(self, directory: Path) -> dict[str, tuple[int, int]]:
        """Copy what belongs to a state; return size and CRC-32 of each file by its name in the run."""
        segments = self._copy_journal(directory)
        for name, path in self._local.files.items():
            if name != JOURNAL and path.exists():
                shutil.copyfile(path, directory / name)
        own = [path for path in directory.iterdir() if path.is_file()]
        sums = {path.name: sums_of(path)[:2] for path in sorted(own)}
        return sums | {f"{HISTORY}/{name}": self._sums_of_segment(directory / HISTORY / name) for name in segments}

    def _copy_journal(self, directory: Path) -> list[str]:
        """Copy the journal, link the files of the history that it names, and return the names of those there are."""
        history = self._local.paths.history_dir
        segments = self._local.copy_journal(directory / JOURNAL)
        return [name for name in segments if link_if_there(history / name, directory / HISTORY / name)]

    def _sums_of_segment(self, path: Path) -> tuple[int, int]:
        about = path.stat()
        known = f"{path.name} {about.st_size} {about.st_mtime_ns}"
        if known not in self._sums:  # files of the history never change, and there may be gigabytes
            self._sums[known] = sums_of(path)[:2]
        return self._sums[known]

    def _put(self, path: Path, key: str) -> None:
        size_bytes = path.stat().st_size
        if self._index.get(key) == size_bytes:
            return
        self._check()
        self._store.put(path, key)
        self._index[key] = size_bytes
        self.sent_bytes += size_bytes

    # what nobody needs any more

    def clean(self) -> None:
        """Delete what the run does not have any more, once what is newer is complete."""
        states = {state.directory for state in self._states}
        needed = {file.key for state in self._states for file in state.files.values()}
        gone = self._gone_saves() | {place for place in states_in(self._index) if place not in states}
        keys = [key for key in self._index if _directory(key) in gone]
        keys += [key for key in self._index if key.startswith(f"{HISTORY}/") and key not in needed]
        keys += self._gone_parts(gone)
        # what makes a directory count goes first
        for key in sorted(keys, key=lambda key: not key.endswith((COMMIT, MANIFEST_NAME))):
            self._check()
            self._store.delete(key)
            del self._index[key]

    def _mirrored_saves(self, *folders: str) -> set[str]:
        return {_directory(key) for key in self._index if key.partition("/")[0] in folders}

    def _gone_saves(self) -> set[str]:
        newest = {save.folder: save.key for save in self._saves}
        if not all(map(self._has, newest.values())):  # of a checkpoint and its buffer: both
            return set()
        return self._mirrored_saves(*newest) - {save.key for save in self._saves} - {*self._record.elsewhere}

    def _gone_parts(self, gone: set[str]) -> list[str]:
        needed = set[str]().union(*(save.parts for save in self._saves))
        spare = [key for key in self._index if key.startswith(f"{PARTS}/") and key not in needed]
        if not spare:
            return []
        others = self._mirrored_saves(CHECKPOINTS, BUFFERS) - {save.key for save in self._saves} - gone
        try:
            needed.update(*map(self._parts_of, others))
        except (FileNotFoundError, SerializationError):  # an upload that is not complete, or a damaged MANIFEST.json
            return []
        return [key for key in spare if key not in needed]

    def _parts_of(self, key: str) -> frozenset[str]:
        if key not in self._parts:
            with self._local.outgoing() as directory:
                self._parts[key] = part_keys(fetch_manifest(self._store, key, directory))
        return self._parts[key]

    # what came from elsewhere

    @property
    def elsewhere(self) -> list[str]:
        """Keys of what the mirror has of the run and its directory never had, the oldest first."""
        return list(self._record.elsewhere)

    def note_fetched(self, key: str) -> None:
        """Take note that something of the mirror is here now."""
        self._record.elsewhere = [other for other in self._record.elsewhere if other != key]
        self._local.keep(self._record)


def _owner_of(local: LocalRun) -> str:
    run = RunRecord.read(local.paths.run_record_path)
    return UNOWNED if run is None or run.owner is None else run.owner.token


def _state_key(place: str, name: str, crc32: int) -> str:
    return history_key(name, crc32) if name.startswith(f"{HISTORY}/") else f"{place}/{name}"


def _directory(key: str) -> str:
    return key.rpartition("/")[0]
