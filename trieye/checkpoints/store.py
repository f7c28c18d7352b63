"""CheckpointStore: the saved states in one directory, newest and best; which are kept, which are damaged."""

import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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

_LEFTOVERS = {".tmp-", ".old-"}

_Mark = tuple[int, int, int]

Mode = Literal["max", "min"]
"""Whether a higher or a lower objective is better."""

Which = Literal["best", "latest"] | int
"""The best state by its objective, the newest one, or that of a step."""

Read = Callable[[Path], EncodedState | None]
"""Finds out whether a saved directory is whole but for its parts, and may return what it has read."""


def check(path: Path) -> None:
    """Find out whether a saved directory is whole, but for its parts, without keeping what is read.

    Raises:
        CheckpointError: It is not.
    """
    verify(path, parts=False)


@dataclass(frozen=True)
class CheckpointEntry:
    """One saved state, as its manifest describes it; its files may still be damaged."""

    path: Path
    step: int
    manifest: Manifest
    state: EncodedState | None = None
    """What it holds, where it was read to find out whether it is whole; parts are verified when they are read."""

    @property
    def created(self) -> float:
        """Unix time in seconds at which it was saved."""
        return self.manifest.created

    @property
    def metadata(self) -> dict[str, Any]:
        """What the caller of `save` kept with it, without values that are mappings: `read_manifest` has them, too."""
        return self.manifest.metadata

    @property
    def objective(self) -> float | None:
        """Value of the objective, if that was finite and given."""
        value = self.metadata.get("objective")
        return float(value) if isinstance(value, int | float) else None

    @property
    def is_awaited(self) -> bool:
        """Whether the objective of this state is still being measured, or was when the run died."""
        return bool(self.metadata.get("is_awaited"))

    @property
    def is_best(self) -> bool:
        """Whether it was the best one when it was saved."""
        return bool(self.metadata.get("is_best"))


@dataclass(frozen=True)
class Retention:
    """Which states are kept: the newest, the best, and one every so many steps.

    Attributes:
        keep_last: Newest states kept; 0 = all.
        keep_best: Best states kept besides, by their objective.
        keep_every_steps: A state whose step is a multiple of it stays for ever; 0 = none.
        mode: Whether a higher or a lower objective is better.
    """

    keep_last: int = 0
    keep_best: int = 1
    keep_every_steps: int = 0
    mode: Mode = "max"

    def surplus(self, saved: Sequence[CheckpointEntry], ranked: Sequence[CheckpointEntry]) -> list[CheckpointEntry]:
        """Return the states to delete; the newest one is never among them, nor is the newest that is being measured.

        Args:
            saved: All states, the oldest first.
            ranked: Those that say how good they are, the best first.
        """
        if not self.keep_last:
            return []
        best = ranked[: self.keep_best]
        every = self.keep_every_steps
        older = saved[: -self.keep_last]
        kept = [*best, *[state for state in saved if state.is_awaited][-1:]]
        return [state for state in older if state not in kept and not (every and state.step % every == 0)]


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint of a run, read back.

    Attributes:
        path: Its directory.
        step: The step after which it was saved.
        objective: Value of the objective in that state, if that was given.
        objects: What `Run.save` was given, by name: the state of each object. `experiment` is the name that
            `run_experiment` uses; its entry `state` is what `save_checkpoint` returned.
        config: The config of the run at the save, as in configs.json, without secrets; None for older checkpoints.
    """

    path: Path
    step: int
    objective: float | None
    objects: dict[str, Any]
    config: dict[str, Any] | None = None

    def restore(self, *, strict: bool = True, key_map: Mapping[str, str] | None = None, **objects: Any) -> None:
        """Give objects their states, as `Run.restore` does, and nothing else: neither step nor random generators.

        Args:
            strict: See `Run.restore`.
            key_map: See `Run.restore`.
            **objects: Objects with `load_state_dict()`, or dicts, under the names given to `save`.

        Raises:
            CheckpointError: The checkpoint lacks an object or does not fit one.
            ConfigurationError: An object cannot take a state, or `key_map` names what is not there.
        """
        source = f"checkpoint {self.path}"
        if misfit := restore_objects(self.objects, objects, source=source, strict=strict, key_map=key_map):
            say(f"{source} fits in part: {misfit}")


class CheckpointStore:
    """The saved states `<prefix><step>` in one directory.

    One process writes at a time (the run lock sees to it); others open it with `read_only` and change nothing.

    Args:
        directory: Where they lie; made by the first save.
        prefix: What their names begin with.
        key: Signs pickled parts and tells that one may be read; the user's own key if None.
        allow_pickle: Whether unsigned pickled parts may be read; None asks the environment.
        read_only: Never rename or delete anything.
        checksum: What is kept to find damage.
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
        # guards these two, and the directory while a state is written or deleted; taken with no other lock held
        self._lock = threading.RLock()
        self._seen: dict[str, tuple[_Mark, CheckpointEntry]] = {}
        self._sequence: int | None = None  # that of the newest save; nobody else saves here meanwhile

    def path(self, step: int) -> Path:
        """Return the directory of the state of a step."""
        return self.directory / f"{self._prefix}{step}"

    def save(
        self, step: int, encoded: EncodedState, *, metadata: Mapping[str, Any] | None = None, hub_state: bytes = b""
    ) -> Path:
        """Write a state; one of the same step is replaced. Kill it at any point and a whole one is left.

        Parts that an earlier state holds are linked, not written again.

        Args:
            step: Global step, 0 or more.
            encoded: The state.
            metadata: Plain values: `objective` and `is_best` are what `best` looks at.
            hub_state: Bytes for `trieye.checkpoints.directory.read_hub_state`.

        Raises:
            CheckpointError: `step` is negative, or a part that was saved earlier is gone.
            SerializationError: It could not be written; earlier ones are untouched.
        """
        if step < 0:
            raise CheckpointError(f"a checkpoint of step {step} was asked for; steps begin at 0")
        with self._lock:
            links = any(not isinstance(part, Mapping) for part in encoded.parts.values())
            # there may be thousands: they are listed where there is a reason to
            existing = self.entries() if links or self._sequence is None else []
            if self._sequence is None:
                self._sequence = max((entry.manifest.sequence for entry in existing), default=0)
            path = save_state(
                self.path(step),
                encoded,
                step=step,
                sequence=self._sequence + 1,
                metadata=metadata,
                hub_state=hub_state,
                key=self._key,
                checksum=self._checksum,
                find_part=parts_in([entry.path for entry in reversed(existing)]),
            )
            self._sequence += 1
            self._entry(step, str(path))  # while it is at hand: a later listing reads none of those saved here
            return path

    def entries(self) -> list[CheckpointEntry]:
        """Return the states with a readable manifest in the order in which they were saved, the oldest first."""
        with self._lock:
            listed = self._listed()
            found = [entry for step, place in listed if (entry := self._entry(step, place)) is not None]
            self._seen = {place: self._seen[place] for _, place in listed if place in self._seen}
        return sorted(found, key=lambda entry: (entry.manifest.sequence, entry.created, entry.step))

    def latest(self, max_step: int | None = None, *, read: Read = check) -> CheckpointEntry | None:
        """Return the newest state that is whole, but perhaps for parts of a replay, or None if there is none at all.

        Args:
            max_step: Only states up to this step, the nearest one first.
            read: Finds out whether it is whole; what it returns is the entry's `state`.

        Raises:
            CheckpointError: There are some, and all are damaged.
        """
        entries = self.entries()
        if max_step is not None:
            entries = sorted((entry for entry in entries if entry.step <= max_step), key=lambda entry: entry.step)
        chosen = self._first_whole(reversed(entries), read)
        named = self._named(max_step)
        for link in (links := [path for path in named if path.is_symlink()]):
            logger.warning("%s is a link and is not used", link)
        if chosen is None and links:
            raise CheckpointError(
                f"{links[0]} is a link, which somebody else may have made, and is not followed; if you trust it, give "
                f"load_checkpoint_path={links[0].resolve()} to a new run"
            )
        if chosen is None and named:
            raise CheckpointError(
                f"{self.directory} holds {len(named)} saved state(s) and none is whole: "
                f"{', '.join(path.name for path in named[:5])}; restore one from a backup, or, to start afresh, "
                "delete them or choose another run_name"
            )
        return chosen

    def best(self, mode: Mode | None = None, *, read: Read = check) -> CheckpointEntry | None:
        """Return the best state that is whole: by `objective`, else the newest that was saved as `is_best`."""
        return self._first_whole(self.ranked(mode), read)

    def ranked(self, mode: Mode | None = None) -> list[CheckpointEntry]:
        """Return the states that say how good they are, the best first, by their manifests: files are not looked at.

        Args:
            mode: Whether a higher or a lower objective is better; None: as the newest state says.
        """
        return _ranked(self.entries(), mode)

    def find(self, which: Which, *, read: Read = check) -> CheckpointEntry | None:
        """Return the best state that is whole, or the newest, or that of a step; None if there is none of that kind.

        Raises:
            CheckpointError: That of the step is damaged, or all are.
        """
        if which == "best":
            return self.best(read=read)
        if which == "latest":
            return self.latest(read=read)
        of_step = next((entry for entry in self.entries() if entry.step == which), None)
        return None if of_step is None else replace(of_step, state=read(of_step.path))

    def read(self, path: Path) -> EncodedState:
        """Return a state encoded, for another process to decode; each byte is read once, and verified meanwhile.

        Raises:
            CheckpointError: It is damaged.
            UntrustedPickleError: It has pickled parts that are not signed by this user, and they were not allowed.
        """
        return load_state(path, key=self._key, allow_pickle=self._allow_pickle)

    def load(self, path: Path) -> Any:
        """Verify a state and return it; raises what `read` raises."""
        return decode(self.read(path), copy=False)

    def prune(self, retention: Retention) -> list[Path]:
        """Delete what need not be kept; return what was deleted. What cannot be is left for the next time."""
        if not retention.keep_last:
            return []
        with self._lock:
            saved = self.entries()
            surplus = [entry.step for entry in retention.surplus(saved, _ranked(saved, retention.mode))]
            return [self.path(step) for step in surplus if self.remove(step)]

    def rate(self, step: int, objective: float | None) -> Path:
        """Note the objective of a state that was saved before it was known; None: it was not measured after all.

        Raises:
            CheckpointError: There is no such state.
            SerializationError: It could not be noted.
        """
        path = self.path(step)
        with self._lock:
            manifest = read_manifest(path)
            held = {name: value for name, value in manifest.metadata.items() if name != "is_awaited"}
            metadata = plain_metadata({**held, "objective": objective})
            try:
                rewrite_manifest(path, manifest.model_copy(update={"metadata": metadata}))
            except OSError as error:
                raise SerializationError(f"the objective of {path} could not be noted: {error}") from error
        return path

    def remove(self, step: int) -> bool:
        """Delete the state of a step; tell whether it is gone: what stays costs room, and nothing else."""
        try:
            remove_directory(self.path(step))
        except FileNotFoundError:
            return True
        except OSError as error:
            logger.warning("%s is not needed any more and cannot be deleted: %s", self.path(step), error)
            return False
        return True

    def _listed(self) -> list[tuple[int, str]]:
        """Return step and path of each saved directory, of one that was moved away while it was replaced, too."""
        if not self.directory.is_dir():
            return []
        names, kinds = self._names()
        moved: dict[str, Path] = {}
        if kinds & _LEFTOVERS:
            if not self._read_only:
                recover(self.directory)
                names, _ = self._names()
            moved = replaced(self.directory)
        paths = {**{name: str(path) for name, path in moved.items()}, **names}
        return [(int(match[1]), path) for name, path in paths.items() if (match := self._name.fullmatch(name))]

    def _names(self) -> tuple[dict[str, str], set[str]]:
        """Return the directories here by their names, and how the names begin; there may be thousands."""
        with os.scandir(self.directory) as found:
            entries = list(found)
        names = {entry.name: entry.path for entry in entries if entry.is_dir(follow_symlinks=False)}
        return names, {entry.name[:5] for entry in entries}

    def _entry(self, step: int, place: str) -> CheckpointEntry | None:
        mark = _mark_of(place)
        if mark is not None and place in self._seen and self._seen[place][0] == mark:
            return self._seen[place][1]
        path = Path(place)
        try:
            manifest = read_manifest(path)
        except CheckpointError as error:
            self._set_aside(path, error)
            return None
        # an earlier version had the state of the hub there, which is large
        metadata = {name: value for name, value in manifest.metadata.items() if not isinstance(value, Mapping)}
        entry = CheckpointEntry(path, step, manifest.model_copy(update={"metadata": metadata}))
        if mark is not None:
            self._seen[place] = mark, entry
        return entry

    def _first_whole(self, entries: Iterable[CheckpointEntry], read: Read) -> CheckpointEntry | None:
        for entry in entries:
            try:
                return replace(entry, state=read(entry.path))
            except CheckpointError as error:
                self._set_aside(entry.path, error)
        return None

    def _set_aside(self, path: Path, error: CheckpointError) -> None:
        logger.warning("%s; it is not used", error)
        if not self._read_only:
            self.quarantine(path)

    def quarantine(self, path: Path) -> None:
        """Rename a damaged state, so that nobody reads it again; a missing one is ignored."""
        if not path.is_dir():
            return
        aside = path.with_name(path.name + _DAMAGED)
        number = 2
        while aside.exists():
            aside = path.with_name(f"{path.name}{_DAMAGED}-{number}")
            number += 1
        path.rename(aside)
        logger.warning("%s is damaged and was renamed to %s", path.name, aside.name)

    def _named(self, max_step: int | None) -> list[Path]:
        """Return what has the name of a state, links and those that an earlier attempt set aside included.

        A restart must not start afresh either where all of them are damaged.
        """
        if not self.directory.is_dir():
            return []
        with os.scandir(self.directory) as found:
            named = [(match, entry) for entry in found if (match := self._name.match(entry.name)) and entry.is_dir()]
        return sorted(Path(entry) for match, entry in named if max_step is None or int(match[1]) <= max_step)


def _ranked(entries: Sequence[CheckpointEntry], mode: Mode | None) -> list[CheckpointEntry]:
    """Return those of the states that say how good they are, the best first.

    Args:
        entries: All states, the oldest first.
        mode: See `CheckpointStore.ranked`.
    """
    newest_first = entries[::-1]
    mode = mode or ("min" if newest_first and newest_first[0].metadata.get("mode") == "min" else "max")
    sign = 1 if mode == "max" else -1
    rated = [(sign * entry.objective, entry) for entry in newest_first if entry.objective is not None]
    by_objective = [entry for _, entry in sorted(rated, key=lambda item: item[0], reverse=True)]
    return [*by_objective, *(entry for entry in newest_first if entry.is_best and entry.objective is None)]


def _mark_of(place: str) -> _Mark | None:
    """Return what tells a manifest from every other one, so that none is read at each listing."""
    try:
        about = os.lstat(f"{place}/{MANIFEST_NAME}")
    except OSError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns


def load_checkpoint(
    run_dir: str | Path, which: Which = "best", *, allow_pickle: bool | None = None
) -> LoadedCheckpoint:
    """Read a checkpoint of a run without opening the run; nothing is changed or locked.

    Args:
        run_dir: Directory of the run, or of its checkpoints.
        which: The best one by its objective (the newest one if none has any), the newest one, or that of a step.
        allow_pickle: Whether parts that this user did not sign may be unpickled, which runs the code in them; None asks
            TRIEYE_ALLOW_PICKLE.

    Raises:
        CheckpointError: There is no such checkpoint, or it is damaged.
        UntrustedPickleError: It has pickled parts that are not signed by this user.
    """
    given = Path(run_dir)
    if not given.is_dir():
        raise CheckpointError(f"there is no directory {given.absolute()}; give that of a run, as in run.dir")
    directory = given / CHECKPOINTS if (given / CHECKPOINTS).is_dir() else given
    store = CheckpointStore(directory, allow_pickle=allow_pickle, read_only=True)
    entry = store.find(which, read=store.read)
    if entry is None and which == "best":
        entry = store.latest(read=store.read)
    if entry is None:
        steps = sorted(found.step for found in store.entries())
        raise CheckpointError(
            f"{directory} holds no checkpoint {which!r} (steps: {', '.join(map(str, steps)) or 'none'})"
        )
    state = decode(entry.state or store.read(entry.path), copy=False)
    return LoadedCheckpoint(entry.path, entry.step, entry.objective, state["objects"], state.get("config"))
