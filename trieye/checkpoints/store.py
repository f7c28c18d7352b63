"""CheckpointStore: saves, ranks, verifies and prunes the saved states in one directory."""

import logging
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal

from trieye.checkpoints.directory import load_state, parts_in, save_state
from trieye.checkpoints.manifest import MANIFEST_NAME, Manifest, plain_metadata, read_manifest, rewrite_manifest, verify
from trieye.exceptions import CheckpointError, SerializationError
from trieye.files.atomic import recover, remove_directory, replaced
from trieye.files.checksum import Checksum
from trieye.files.run_files import CHECKPOINT_PREFIX, CHECKPOINTS
from trieye.process.progress import say
from trieye.snapshot.encode import EncodedState, decode
from trieye.snapshot.fitting import restore_objects

logger = logging.getLogger(__name__)

_DAMAGED = ".damaged"

NONE_INTACT = (
    "restore one from a backup, or from persistence.mirror by deleting them; to start from scratch, choose another "
    "run_name"
)
"""Advice if no checkpoint of a run is intact."""

_LEFTOVERS = {".tmp-", ".old-"}

_Fingerprint = tuple[int, int, int]

Mode = Literal["max", "min"]
"""Whether a higher or a lower objective is better."""

Which = Literal["best", "latest"] | int
"""The best state by its objective, the newest one, or a step."""

Read = Callable[[Path], EncodedState | None]
"""Verifies a saved directory except its parts, and may return the state that it read."""


def check(path: Path) -> None:
    """Verify a saved directory except its parts, without returning the state.

    Raises:
        CheckpointError: A file is missing or damaged.
    """
    verify(path, parts=False)


@dataclass(frozen=True)
class CheckpointEntry:
    """One saved state according to its manifest; its files may be damaged."""

    path: Path
    step: int
    manifest: Manifest
    state: EncodedState | None = None
    """The state, if the integrity check read it; parts are verified on first use."""

    @property
    def created(self) -> float:
        """Time of the save, Unix seconds."""
        return self.manifest.created

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the save without mappings; `read_manifest` returns those, too."""
        return self.manifest.metadata

    @property
    def objective(self) -> float | None:
        """Value of the objective; None if it was absent or not finite."""
        value = self.metadata.get("objective")
        return float(value) if isinstance(value, int | float) else None

    @property
    def attempt(self) -> int | None:
        """Number of the attempt that saved it; None: unknown."""
        return self.metadata.get("attempt")

    @property
    def is_awaited(self) -> bool:
        """Whether the measurement of this state's objective is pending, or was when the run died."""
        return bool(self.metadata.get("is_awaited"))

    @property
    def is_best(self) -> bool:
        """Whether the state was the best at the time of the save."""
        return bool(self.metadata.get("is_best"))


@dataclass(frozen=True)
class Retention:
    """Retention policy: the newest states, the best states, and one state per interval of steps.

    Attributes:
        keep_last: Number of newest states to retain; 0 = all.
        keep_best: Number of best states by objective to retain in addition.
        keep_every_steps: States whose step is a multiple of it are retained permanently; 0 = none.
        mode: Whether a higher or a lower objective is better.
    """

    keep_last: int = 0
    keep_best: int = 1
    keep_every_steps: int = 0
    mode: Mode = "max"

    def surplus(self, entries: Sequence[CheckpointEntry], ranked: Sequence[CheckpointEntry]) -> list[CheckpointEntry]:
        """Return the states to delete, never the newest one or one with a pending objective.

        Of states whose attempt died before it measured them, only the newest is retained.

        Args:
            entries: All states, the oldest first.
            ranked: The states with a rating, the best first.
        """
        if not self.keep_last:
            return []
        best_entries = ranked[: self.keep_best]
        every = self.keep_every_steps
        older_entries = entries[: -self.keep_last]
        awaited = [state for state in entries if state.is_awaited]
        retained = [*best_entries, *awaited[-1:], *[state for state in awaited if state.attempt == entries[-1].attempt]]
        return [state for state in older_entries if state not in retained and not (every and state.step % every == 0)]


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A loaded checkpoint of a run.

    Attributes:
        path: Its directory.
        step: Global step of the save.
        objective: Value of the objective at this state, or None.
        objects: State of each object passed to `Run.save`, by name. `run_experiment` uses the name `experiment`; the
            entry `state` in it is the return value of `save_checkpoint`.
        config: The config of the run at the save, as in configs.json, without secrets; None for older checkpoints.
    """

    path: Path
    step: int
    objective: float | None
    objects: dict[str, Any]
    config: dict[str, Any] | None = None

    def restore(self, *, strict: bool = True, key_map: Mapping[str, str] | None = None, **objects: Any) -> None:
        """Load the states of objects, as `Run.restore` does, but neither the step nor random generators.

        Args:
            strict: See `Run.restore`.
            key_map: See `Run.restore`.
            **objects: Objects with `load_state_dict()`, or dicts, under their names in `save`.

        Raises:
            CheckpointError: The checkpoint lacks an object or does not fit one.
            ConfigurationError: An object cannot load a state, or `key_map` names a missing key.
        """
        source = f"checkpoint {self.path}"
        if mismatch := restore_objects(self.objects, objects, source=source, strict=strict, key_map=key_map):
            say(f"{source} fits in part: {mismatch}")


class CheckpointStore:
    """The saved states `<prefix><step>` in one directory.

    One process writes at a time (the run lock ensures this); others open the store with `read_only`.

    Args:
        directory: Directory of the states; the first save creates it.
        prefix: Prefix of their names.
        key: Key that signs and verifies pickled parts; None: the user's key.
        allow_pickle: Whether unsigned pickled parts may be loaded; None: TRIEYE_ALLOW_PICKLE decides.
        read_only: Never rename or delete anything.
        checksum: Checksums to store for damage detection.
    """

    def __init__(
        self,
        directory: Path,
        *,
        prefix: str = CHECKPOINT_PREFIX,
        key: bytes | None = None,
        allow_pickle: bool | None = None,
        read_only: bool = False,
        checksum: Checksum = "crc32",
    ) -> None:
        self.directory = directory
        self._prefix = prefix
        self._name = re.compile(re.escape(prefix) + r"(\d+)")
        self._key = key
        self._allow_pickle = allow_pickle
        self._read_only = read_only
        self._checksum = checksum
        # guards the next two fields, and the directory during writes and deletions; acquired without other locks
        self._lock = threading.RLock()
        self._cache: dict[str, tuple[_Fingerprint, CheckpointEntry]] = {}
        self._sequence: int | None = None  # of the newest save; no other process saves here at the same time

    def path(self, step: int) -> Path:
        """Return the directory of the state of a step."""
        return self.directory / f"{self._prefix}{step}"

    def save(
        self, step: int, encoded: EncodedState, *, metadata: Mapping[str, Any] | None = None, hub_state: bytes = b""
    ) -> Path:
        """Write a state atomically, replacing one of the same step; a crash at any point leaves an intact state.

        Parts of an earlier state are linked instead of written.

        Args:
            step: Global step, 0 or more.
            encoded: The state.
            metadata: Plain values; `best` uses `objective` and `is_best`.
            hub_state: Bytes for `trieye.checkpoints.directory.read_hub_state`.

        Raises:
            CheckpointError: `step` is negative, or a part of an earlier save is missing.
            SerializationError: The state could not be written; earlier ones are unchanged.
        """
        if step < 0:
            raise CheckpointError(f"cannot save a checkpoint of step {step}; steps start at 0")
        with self._lock:
            links = any(not isinstance(part, Mapping) for part in encoded.parts.values())
            # there may be thousands of entries: list them only if necessary
            old_entries = self.entries() if links or self._sequence is None else []
            if self._sequence is None:
                self._sequence = max((entry.manifest.sequence for entry in old_entries), default=0)
            path = save_state(
                self.path(step),
                encoded,
                step=step,
                sequence=self._sequence + 1,
                metadata=metadata,
                hub_state=hub_state,
                key=self._key,
                checksum=self._checksum,
                find_part=parts_in([entry.path for entry in reversed(old_entries)]),
            )
            self._sequence += 1
            self._entry(step, str(path))  # fill the cache now: a later listing need not read this manifest
            return path

    def entries(self) -> list[CheckpointEntry]:
        """Return the states with a readable manifest in the order of their saves, the oldest first."""
        with self._lock:
            step_paths = self._listed()
            entries = [entry for step, path in step_paths if (entry := self._entry(step, path)) is not None]
            self._cache = {path: self._cache[path] for _, path in step_paths if path in self._cache}
        return sorted(entries, key=lambda entry: (entry.manifest.sequence, entry.created, entry.step))

    def latest(self, max_step: int | None = None, *, read: Read = check) -> CheckpointEntry | None:
        """Return the newest intact state, whose replay parts may be damaged, or None if no state exists.

        Args:
            max_step: Only states up to this step, the nearest one first.
            read: Verifies a state; its return value becomes the entry's `state`.

        Raises:
            CheckpointError: States exist, and all are damaged.
        """

        def newest_first(entries: list[CheckpointEntry]) -> list[CheckpointEntry]:
            if max_step is not None:
                entries = sorted((entry for entry in entries if entry.step <= max_step), key=lambda entry: entry.step)
            return entries[::-1]

        intact_entry = self._first_intact(newest_first, read)
        named = self._named(max_step)
        for link in (links := [path for path in named if path.is_symlink()]):
            logger.warning("%s is a link and is not used", link)
        if intact_entry is None and links:
            raise CheckpointError(
                f"{links[0]} is a link, possibly created by another user, and is not followed; if you trust it, set "
                f"load_checkpoint_path={links[0].resolve()} for a new run"
            )
        if intact_entry is None and named:
            raise CheckpointError(
                f"{self.directory} has {len(named)} saved state(s), but none is intact: "
                f"{', '.join(path.name for path in named[:5])}; {NONE_INTACT}"
            )
        return intact_entry

    def ranked(self, mode: Mode | None = None) -> list[CheckpointEntry]:
        """Return the states with a rating, the best first, according to their manifests; files are not checked.

        Args:
            mode: Whether a higher or a lower objective is better; None: the mode of the newest state.
        """
        return ranked(self.entries(), mode)

    def find(self, which: Which, *, read: Read = check) -> CheckpointEntry | None:
        """Return the best intact state, the newest one, or the state of a step; None if it does not exist.

        The best state is chosen by `objective`; without any, it is the newest one saved with `is_best`.

        Raises:
            CheckpointError: The state of the step is damaged, or all states are.
        """
        if which == "best":
            return self._first_intact(ranked, read)
        if which == "latest":
            return self.latest(read=read)
        of_step = next((entry for entry in self.entries() if entry.step == which), None)
        return None if of_step is None else replace(of_step, state=read(of_step.path))

    def read(self, path: Path) -> EncodedState:
        """Return an encoded state, which another process can decode; each byte is read once and verified.

        Raises:
            CheckpointError: The state is damaged.
            UntrustedPickleError: Pickled parts are not signed by this user, and `allow_pickle` is off.
        """
        return load_state(path, key=self._key, allow_pickle=self._allow_pickle)

    def load(self, path: Path) -> Any:
        """Verify and decode a state; raises the exceptions of `read`."""
        return decode(self.read(path), copy=False)

    def prune(self, retention: Retention) -> list[Path]:
        """Delete surplus states and return their paths; a failed deletion is retried by the next call."""
        if not retention.keep_last:
            return []
        with self._lock:
            entries = self.entries()
            surplus_steps = [entry.step for entry in retention.surplus(entries, ranked(entries, retention.mode))]
            return [self.path(step) for step in surplus_steps if self.remove(step)]

    def rate(self, step: int, objective: float | None) -> Path:
        """Record the objective of a state saved with a pending objective; None: the measurement failed.

        Raises:
            CheckpointError: The state does not exist.
            SerializationError: The manifest could not be written.
        """
        path = self.path(step)
        with self._lock:
            manifest = read_manifest(path)
            other_metadata = {name: value for name, value in manifest.metadata.items() if name != "is_awaited"}
            metadata = plain_metadata({**other_metadata, "objective": objective})
            try:
                rewrite_manifest(path, manifest.model_copy(update={"metadata": metadata}))
            except OSError as error:
                raise SerializationError(f"the objective of {path} could not be recorded: {error}") from error
        return path

    def remove(self, step: int) -> bool:
        """Delete the state of a step and return whether that succeeded; a remaining state only costs disk space."""
        try:
            remove_directory(self.path(step))
        except FileNotFoundError:
            return True
        except OSError as error:
            logger.warning("%s is no longer needed, but cannot be deleted: %s", self.path(step), error)
            return False
        return True

    def _listed(self) -> list[tuple[int, str]]:
        """Return step and path of each saved directory, including a moved one after an interrupted replacement."""
        if not self.directory.is_dir():
            return []
        names, kinds = self._names()
        moved_paths: dict[str, Path] = {}
        if kinds & _LEFTOVERS:
            if not self._read_only:
                recover(self.directory)
                names, _ = self._names()
            moved_paths = replaced(self.directory)
        paths = {**{name: str(path) for name, path in moved_paths.items()}, **names}
        return [(int(match[1]), path) for name, path in paths.items() if (match := self._name.fullmatch(name))]

    def _names(self) -> tuple[dict[str, str], set[str]]:
        """Return the subdirectories by name, and the name prefixes of all entries, possibly thousands."""
        with os.scandir(self.directory) as iterator:
            entries = list(iterator)
        names = {entry.name: entry.path for entry in entries if entry.is_dir(follow_symlinks=False)}
        return names, {entry.name[:5] for entry in entries}

    def _entry(self, step: int, directory: str) -> CheckpointEntry | None:
        fingerprint = _fingerprint_of(directory)
        if fingerprint is not None and directory in self._cache and self._cache[directory][0] == fingerprint:
            return self._cache[directory][1]
        path = Path(directory)
        try:
            manifest = read_manifest(path)
        except CheckpointError as error:
            self._skip_damaged(path, error)
            return None
        entry = CheckpointEntry(path, step, manifest.without_mappings())
        if fingerprint is not None:
            self._cache[directory] = fingerprint, entry
        return entry

    def _first_intact(self, choose: Callable[..., list[CheckpointEntry]], read: Read) -> CheckpointEntry | None:
        for _ in range(10):  # another process may delete all listed states before they are read
            names = self._named(None)
            for entry in choose(self.entries()):
                try:
                    return replace(entry, state=read(entry.path))
                except CheckpointError as error:
                    self._skip_damaged(entry.path, error)
            if self._named(None) == names:
                break
        return None

    def _skip_damaged(self, path: Path, error: CheckpointError) -> None:
        logger.warning("%s; it is not used", error)
        if not self._read_only:
            self.quarantine(path)

    def quarantine(self, path: Path) -> None:
        """Rename a damaged state so that it is never read again; ignore a missing one."""
        if not path.is_dir():
            return
        names = (f"{path.name}{_DAMAGED}{suffix}" for suffix in chain([""], map("-{}".format, count(2))))
        target = next(target for name in names if not (target := path.with_name(name)).exists())
        path.rename(target)
        logger.warning("%s is damaged and was renamed to %s", path.name, target.name)

    def _named(self, max_step: int | None) -> list[Path]:
        """Return all paths named like a state, including links and states quarantined by an earlier attempt.

        If all states are damaged, a second restart must fail like the first one instead of starting from scratch.
        """
        if not self.directory.is_dir():
            return []
        with os.scandir(self.directory) as iterator:
            pairs = [(match, entry) for entry in iterator if (match := self._name.match(entry.name)) and entry.is_dir()]
        return sorted(Path(entry) for match, entry in pairs if max_step is None or int(match[1]) <= max_step)


def ranked(entries: Sequence[CheckpointEntry], mode: Mode | None = None) -> list[CheckpointEntry]:
    """Return the states with a rating, the best first.

    Args:
        entries: All states, the oldest first.
        mode: See `CheckpointStore.ranked`.
    """
    newest_first = entries[::-1]
    mode = mode or ("min" if newest_first and newest_first[0].metadata.get("mode") == "min" else "max")
    sign = 1 if mode == "max" else -1
    rated_entries = [(sign * entry.objective, entry) for entry in newest_first if entry.objective is not None]
    by_objective = [entry for _, entry in sorted(rated_entries, key=lambda item: item[0], reverse=True)]
    return [*by_objective, *(entry for entry in newest_first if entry.is_best and entry.objective is None)]


def _fingerprint_of(directory: str) -> _Fingerprint | None:
    """Return inode, size and mtime of a manifest: a listing reads only manifests whose fingerprint has changed."""
    try:
        stat = os.lstat(f"{directory}/{MANIFEST_NAME}")
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def load_checkpoint(
    run_dir: str | Path, which: Which = "best", *, allow_pickle: bool | None = None
) -> LoadedCheckpoint:
    """Load a checkpoint of a run without opening, changing or locking the run.

    Args:
        run_dir: Directory of the run, or of its checkpoints.
        which: The best checkpoint by objective (the newest one if none has an objective), the newest, or a step.
        allow_pickle: Whether parts not signed by this user may be unpickled, which executes their code; None:
            TRIEYE_ALLOW_PICKLE decides.

    Raises:
        CheckpointError: The checkpoint does not exist, or is damaged.
        UntrustedPickleError: Pickled parts are not signed by this user, and `allow_pickle` is off.
    """
    root = Path(run_dir)
    if not root.is_dir():
        raise CheckpointError(f"there is no directory {root.absolute()}; pass a run directory, such as run.dir")
    directory = root / CHECKPOINTS
    if not directory.is_dir():  # `persistence.checkpoint_save_dir_name` may name any directory
        parent_directories = sorted({path.parent for path in root.glob(f"*/{CHECKPOINT_PREFIX}*")})
        if len(parent_directories) > 1:  # the name was changed between attempts
            raise CheckpointError(
                f"{root} has checkpoints in {', '.join(map(str, parent_directories))}; pass one of these"
            )
        directory = parent_directories[0] if parent_directories else root
    store = CheckpointStore(directory, allow_pickle=allow_pickle, read_only=True)
    entry = store.find(which, read=store.read)
    if entry is None and which == "best":
        entry = store.latest(read=store.read)
    if entry is None:
        steps = sorted(other.step for other in store.entries())
        raise CheckpointError(
            f"{directory} has no checkpoint {which!r} (steps: {', '.join(map(str, steps)) or 'none'})"
        )
    state = decode(entry.state or store.read(entry.path), copy=False)
    return LoadedCheckpoint(entry.path, entry.step, entry.objective, state["objects"], state.get("config"))
