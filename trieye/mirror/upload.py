"""MirrorUpload: brings what is new in a run to its mirror, in an order that a kill cannot harm."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from trieye.checkpoints.manifest import MANIFEST_NAME
from trieye.exceptions import ConfigurationError, RunLockedError, SerializationError
from trieye.files.checksum import sums_of
from trieye.files.run_record import RunRecord
from trieye.mirror.layout import (
    BUFFERS,
    CHECKPOINTS,
    COMMIT,
    COMPOSED_CONFIG,
    CONFIG,
    HISTORY,
    JOURNAL,
    RUN_RECORD,
    STATES,
    Folder,
    MirroredFile,
    SavedName,
    SaveMark,
    StateMark,
    state_commits,
)
from trieye.mirror.local import LocalRun, LocalSave, link_or_copy
from trieye.mirror.store import MirrorStore
from trieye.mirror.surplus import surplus

logger = logging.getLogger(__name__)

FOLDERS: tuple[Folder, ...] = (CHECKPOINTS, BUFFERS)
KEPT_STATES = 2
"""Complete states that stay: one that is damaged must not be the only one."""

_MAX_TRIES = 3


class MirrorUpload:
    """Uploads a run; belongs to one thread. All calls raise what those of `MirrorStore` do.

    Args:
        store: The mirror, below it the run.
        local: The run on the disk.
        check: Called before each object; raises to end an upload.

    Attributes:
        index: Keys of the objects that are in the mirror, and their sizes.
        committed: The newest checkpoint that is complete there.
        mirrored_at: Unix time in seconds at which the newest state was complete there.
        sent_bytes: Bytes that were uploaded.
    """

    def __init__(self, store: MirrorStore, local: LocalRun, check: Callable[[], None]) -> None:
        self._store, self._local, self._check = store, local, check
        self._record = local.record()
        self.index: dict[str, int] = {}
        self._is_connected = False
        self._highest = 0
        self._files: dict[str, MirroredFile] = {}
        self._states: list[StateMark] = []
        self._parts_elsewhere: set[str] | None = set()
        self._newest: tuple[int, bytes] | None = None
        self._broken: set[str] = set()
        self._committed_age = (0, 0.0)
        self.committed: SavedName | None = None
        self.mirrored_at: float | None = None
        self.sent_bytes = 0

    # who may write

    def connect(self) -> None:
        """Look at what is there; does nothing if that was done.

        Raises:
            ConfigurationError: It holds another run.
            RunLockedError: The run went on somewhere else since this directory was mirrored.
        """
        if self._is_connected:
            return
        self.index = self._list()
        self._highest, self.committed, self._committed_age = 0, None, (0, 0.0)
        self._states = self._look_at_states(self.index)
        self._parts_elsewhere = self._parts_of(self._record.elsewhere)
        for save in self._local.saves(CHECKPOINTS):
            if save.saved.commit in self.index:
                self.committed, self._committed_age = save.saved, (save.manifest.sequence, save.manifest.created)
        self._is_connected = True

    def disconnect(self) -> None:
        """Look at what is there again the next time: after a failure it may be anything."""
        self._is_connected, self._newest = False, None

    def _list(self) -> dict[str, int]:
        try:
            return self._store.list()
        except FileNotFoundError as error:
            raise ConnectionError(f"the mirror {self._store.url} is not there: {error}") from error

    def _look_at_states(self, index: Mapping[str, int], *, after: int = 0) -> list[StateMark]:
        """Return the newest states, and make sure that nobody else has another run here, or went on with this one."""
        run = RunRecord.read(self._local.paths.run_record_path)
        states = []
        for generation, key in state_commits(index)[:KEPT_STATES]:
            if generation <= after:
                continue
            self._highest = max(self._highest, generation)
            try:
                states.append(state := StateMark.from_bytes(self._store.read(key)))
            except SerializationError as error:
                logger.warning("%s of the mirror %s: %s; it is not used", key, self._store.url, error)
                continue
            self._claim(state, run)
        return states

    def _claim(self, state: StateMark, run: RunRecord | None) -> None:
        name, url = self._local.paths.run_base_dir.name, self._store.url
        if run is None or state.run_id != run.run_id:
            raise ConfigurationError(
                f"the mirror {url} holds another run of the name {name!r} ({state.run_id}), so this one is not "
                "mirrored; choose another run_name or persistence.mirror"
            )
        if state.owner != self._record.owner and state.generation > self._record.generation:
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(state.written))
            raise RunLockedError(
                f"run {name!r} went on in another directory: the mirror {url} has its attempt {state.attempt}, of "
                f"{when}, and what comes from here is not mirrored; to go on from there, delete this directory and "
                "start the run again"
            )

    def _parts_of(self, saves: Iterable[SavedName]) -> set[str] | None:
        """Return the parts of what only the mirror has; None if they cannot be told, and so no part may be deleted."""
        parts: set[str] = set()
        for saved in saves:
            try:
                parts.update(SaveMark.from_bytes(self._store.read(saved.commit)).parts)
            except (FileNotFoundError, SerializationError):
                return None
        return parts

    # what is to be done

    def pending(self) -> list[LocalSave]:
        """Return what is saved and not complete in the mirror, the newest first, a buffer before its checkpoint."""
        saves = [save for folder in FOLDERS for save in self._local.saves(folder)]
        saves = [save for save in saves if save.saved.commit not in self.index and save.saved.key not in self._broken]
        saves.sort(key=lambda save: (save.manifest.created, save.manifest.sequence), reverse=True)
        return sorted(saves, key=lambda save: save.saved.step != saves[0].saved.step or save.saved.folder != BUFFERS)

    def bring(self, save: LocalSave) -> None:
        """Upload a saved directory, after it a state that knows it if none does, and then its mark."""
        with self._local.outgoing() as directory:
            try:
                self._local.hold(save, directory)
            except FileNotFoundError:  # retention was faster, or somebody has deleted a file of it
                self._broken.add(save.saved.key)
                return
            for name in [*save.manifest.files, MANIFEST_NAME]:
                self._put(directory / name, save.key_of(name))
        if not self._states or save.saved not in self._states[0].saved:
            self.bring_state(save.saved)
        mark = SaveMark(manifest_crc32=save.manifest_crc32, parts=save.parts)
        self._write(save.saved.commit, mark.to_bytes())
        age = save.manifest.sequence, save.manifest.created
        if save.saved.folder == CHECKPOINTS and age > self._committed_age:
            self.committed, self._committed_age = save.saved, age

    def bring_state(self, held: SavedName | None = None) -> None:
        """Upload who the run is, its journal and its history, if any of that has changed.

        Args:
            held: What is about to be complete, although retention may have deleted it meanwhile.
        """
        saved = self._saved([] if held is None else [held])
        with self._local.outgoing() as directory:
            segments = self._copy_journal(directory)
            journal = sums_of(directory / JOURNAL)
            texts = self._texts()
            print_of_all = (journal[1], repr((texts, saved)).encode())
            if print_of_all == self._newest:
                self.mirrored_at = time.time()
                return
            there = self._list_states()
            if any(f"{state.directory}/{COMMIT}" not in there for state in self._states[:1]):
                raise ConnectionError(f"the mirror {self._store.url} has lost what was there")
            self._look_at_states(there, after=self._highest)
            generation = 1 + max(self._record.generation, self._highest)
            mark = self._uploaded_state(directory, generation, texts, segments, saved)
        self._write(f"{mark.directory}/{COMMIT}", mark.to_bytes())
        self._record.generation = self._highest = generation
        self._local.keep(self._record)
        self._states = [mark, *self._states][:KEPT_STATES]
        self._newest = print_of_all
        self.mirrored_at = mark.written

    def _saved(self, held: list[SavedName]) -> list[SavedName]:
        """Return what whoever reads the next state may find: also what goes when something newer is complete."""
        local = [save.saved for folder in FOLDERS for save in self._local.saves(folder)]
        before = [*self._record.elsewhere, *(saved for state in self._states[:1] for saved in state.saved)]
        still = [saved for saved in dict.fromkeys(before) if saved.commit in self.index and saved not in local]
        return list(dict.fromkeys([*still, *(saved for saved in held if saved not in local), *local]))

    def _list_states(self) -> dict[str, int]:
        try:
            return self._store.list(STATES)
        except FileNotFoundError:
            return {}

    def _copy_journal(self, directory: Path) -> list[str]:
        """Copy the journal and the names of what it refers to; files that are merged meanwhile are asked for again."""
        history = self._local.paths.history_dir
        for attempt in range(_MAX_TRIES):
            segments = self._local.copy_journal(directory / JOURNAL)
            there = [name for name in segments if _held(history / name, directory / HISTORY / name)]
            if there == segments or attempt == _MAX_TRIES - 1:  # a file that was lost does not come back
                break
            (directory / JOURNAL).unlink()
        return there

    def _texts(self) -> dict[str, bytes]:
        paths = self._local.paths
        files = {
            RUN_RECORD: paths.run_record_path,
            CONFIG: paths.config_path,
            COMPOSED_CONFIG: paths.composed_config_path,
        }
        return {name: path.read_bytes() for name, path in files.items() if path.exists()}

    def _uploaded_state(
        self, directory: Path, generation: int, texts: dict[str, bytes], segments: list[str], saved: list[SavedName]
    ) -> StateMark:
        run = RunRecord.model_validate_json(texts[RUN_RECORD])
        mark = StateMark(
            generation=generation,
            owner=self._record.owner,
            run_id=run.run_id,
            attempt=run.attempt,
            written=time.time(),
            files={},
            saved=saved,
        )
        for name, text in texts.items():
            (directory / name).write_bytes(text)
        files = {name: self._bring_file(directory / name, f"{mark.directory}/{name}") for name in [*texts, JOURNAL]}
        files |= {f"{HISTORY}/{name}": self._bring_segment(directory / HISTORY / name) for name in segments}
        return mark.model_copy(update={"files": files})

    def _bring_file(self, path: Path, key: str) -> MirroredFile:
        size_bytes, crc32, _ = sums_of(path)
        self._put(path, key, anew=True)
        return MirroredFile(key=key, size_bytes=size_bytes, crc32=crc32)

    def _bring_segment(self, path: Path) -> MirroredFile:
        about = path.stat()
        known = f"{path.name} {about.st_size} {about.st_mtime_ns}"
        if known not in self._files:
            size_bytes, crc32, _ = sums_of(path)
            key = f"{HISTORY}/{path.name}-{crc32:08x}"
            self._files[known] = MirroredFile(key=key, size_bytes=size_bytes, crc32=crc32)
        self._put(path, self._files[known].key)
        return self._files[known]

    def _put(self, path: Path, key: str, *, anew: bool = False) -> None:
        size_bytes = path.stat().st_size
        if not anew and self.index.get(key) == size_bytes:
            return
        self._check()
        self._store.put(path, key)
        self.index[key] = size_bytes
        self.sent_bytes += size_bytes

    def _write(self, key: str, data: bytes) -> None:
        self._check()
        self._store.write(key, data)
        self.index[key] = len(data)
        self.sent_bytes += len(data)

    # what is not needed any more

    def clean(self) -> None:
        """Delete what the run does not have any more, once what is newer is complete."""
        saves = [self._local.saves(folder) for folder in FOLDERS]
        kept, parts = list(self._record.elsewhere), self._parts_elsewhere
        if self.committed is not None and self.committed not in [save.saved for found in saves for save in found]:
            kept, parts = [*kept, self.committed], None  # the last complete one, which retention has deleted here
        self._check()
        for key in surplus(self.index, self._states, saves, kept=kept, parts_kept=parts):
            self._store.delete([key])
            del self.index[key]

    # what came from elsewhere

    @property
    def elsewhere(self) -> list[SavedName]:
        """What the mirror has of the run and its directory has not, the oldest first."""
        return list(self._record.elsewhere)

    def note_fetched(self, saved: SavedName) -> None:
        """Take note that something of the mirror is here now."""
        self._record.elsewhere = [other for other in self._record.elsewhere if other != saved]
        self._local.keep(self._record)


def _held(source: Path, target: Path) -> bool:
    target.unlink(missing_ok=True)
    try:
        link_or_copy(source, target)
    except FileNotFoundError:
        return False
    return True
