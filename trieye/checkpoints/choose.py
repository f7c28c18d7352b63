"""From which checkpoint a run resumes: its own or that of another run (`load_checkpoint_path`)."""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeGuard

from trieye.checkpoints.legacy import is_whole_pickle, newest_pickle
from trieye.checkpoints.manifest import MANIFEST_NAME, read_manifest
from trieye.checkpoints.store import CheckpointEntry, CheckpointStore, Read, check
from trieye.config import PersistenceConfig
from trieye.config.base import did_you_mean
from trieye.config.locations import REFERENCE_FORMS, CheckpointReference, checkpoint_reference
from trieye.exceptions import CheckpointError, ConfigurationError
from trieye.files.run_files import CHECKPOINT_PREFIX, RunFiles, step_in
from trieye.files.run_record import RunRecord, earlier_runs
from trieye.snapshot.nodes import EncodedState

logger = logging.getLogger(__name__)

MAX_SHOWN = 10


class ResumeCandidate(NamedTuple):
    """A checkpoint that can be loaded.

    Attributes:
        path: Its directory, or a pickle file of trieye 0.1.5.
        step: Its global step; None where only the content of a 0.1.5 file knows it.
        state: What is in it, if it was read to find out whether it is whole.
    """

    path: Path
    step: int | None
    state: EncodedState | None = None

    @property
    def name(self) -> str:
        """Its name for a log line, with the step where the name of the file lacks that."""
        is_named = self.step is None or str(self.step) in self.path.name
        return self.path.name if is_named else f"{self.path.name} of step {self.step}"


Newest = Callable[[RunFiles], ResumeCandidate | None]
"""Returns the newest intact checkpoint of a run."""


@dataclass(frozen=True)
class ResumePoint:
    """The state from which a run goes on.

    Attributes:
        checkpoint: The chosen checkpoint.
        run_name: The run that saved the checkpoint.
        reason: A sentence for the log.
        went_back_to: What the user called the checkpoint, if the run goes back to an earlier one of its own.
    """

    checkpoint: ResumeCandidate
    run_name: str
    reason: str
    went_back_to: str | None = None


def choose(
    files: RunFiles,
    config: PersistenceConfig,
    *,
    config_hash: str | None = None,
    group: str | None = None,
    read: Read = check,
    changes_nothing: bool = False,
) -> ResumePoint | None:
    """Return the state from which the run goes on, or None for a fresh start.

    The run's own newest whole checkpoint; else `load_checkpoint_path`; else, with `auto_resume_latest`, that of the
    newest earlier run of the app with the same `config_hash`, also of those below `resume_dirs`.

    A `load_checkpoint_path` of `best`, `latest` or `step:<N>` means a checkpoint of the run itself and comes first: the
    run goes back to that checkpoint, once. An attempt with the same words, as a job that was preempted makes, goes on
    from what was saved since. `<run>:best` and the like count as a path to a checkpoint of another run of the app.

    Args:
        files: File names of the run.
        config: What may be loaded.
        config_hash: Hash of what must not differ for a checkpoint to fit; None accepts every run.
        group: The sweep that the run belongs to; its members are never resumed.
        read: Finds out whether a saved directory is whole; the point has what it returns: nothing is read twice.
        changes_nothing: Leave damaged checkpoints where they are, for an attempt that is not counted yet.

    Raises:
        ConfigurationError: `load_checkpoint_path` or one of `resume_dirs` does not exist.
        CheckpointError: The chosen run has checkpoints and none of them is whole.
    """
    choice = Choice(files, config, read=read, changes_nothing=changes_nothing)
    typed = config.load_checkpoint_path
    if _means_own(checkpoint_reference(typed or ""), config):
        point = choice.typed() or choice.own()
    else:
        remark = f" (load_checkpoint_path={typed} is for its first start)" if typed else ""
        point = choice.own(remark) or choice.typed()
    if point is None and config.auto_resume_latest:
        return choice.earlier(config_hash, group)
    return point


def point_at(path: Path, files: RunFiles, config: PersistenceConfig, *, read: Read = check) -> ResumePoint:
    """Return the state in the directory of a checkpoint, which this run or another one saved, and perhaps was copied.

    Raises:
        CheckpointError: It is not whole, or is not there.
    """
    manifest, state = read_manifest(path), read(path)
    run_name = _saved_by(path) or files.run_base_dir.name
    whose = "its own" if run_name == config.run_name else f"that of {run_name!r},"
    reason = f"run {config.run_name!r} goes on from {whose} {path.name}, which was given"
    return ResumePoint(ResumeCandidate(path, manifest.step, state), run_name, reason)


def check_reference(files: RunFiles, config: PersistenceConfig) -> None:
    """Make sure, before anything is started, that there is what `load_checkpoint_path` calls `best` or `first:best`.

    Only names and manifests are looked at, and nothing is changed. Nothing is checked where the mirror may have what is
    not here.

    Raises:
        ConfigurationError: No such run, or none of its checkpoints is of that kind.
        CheckpointError: Those that there are are damaged.
    """
    reference = checkpoint_reference(config.load_checkpoint_path or "")
    if reference is None or config.mirror is not None:
        return
    choice = Choice(files, config, read=lambda _: None, changes_nothing=True)
    if _means_own(reference, config):
        record = RunRecord.read(files.run_record_path)
        if record is None or record.went_back_to != config.load_checkpoint_path:
            choice.called(files, reference)
    elif not any(files.checkpoint_dir.glob(f"{CHECKPOINT_PREFIX}*")):
        choice.called(choice.other_run(reference), reference)


def named_checkpoint(files: RunFiles, which: str, *, asked: str) -> CheckpointEntry:
    """Return the checkpoint of a run that is called `best`, `latest` (or `last`) or `step:1200`; nothing is changed.

    Args:
        files: File names of the run.
        which: What it is called.
        asked: What asks for it, for the message.

    Raises:
        ConfigurationError: It is called by something else, or there is none of that kind.
        CheckpointError: Those that there are are damaged.
    """
    reference = reference_of(which, asked=asked)
    choice = Choice(files, files.persist_config, read=lambda _: None, changes_nothing=True)
    return choice.called(files, reference, asked=asked)


def reference_of(which: str, *, asked: str) -> CheckpointReference:
    """Return what `best`, `latest` (or `last`) or `step:1200` means, for a run that is known already.

    Args:
        which: What was typed.
        asked: What asks for it, for the message.

    Raises:
        ConfigurationError: It is something else.
    """
    reference = checkpoint_reference("latest" if which == "last" else which)
    if reference is None or reference.run_name is not None:
        hint = did_you_mean(which, ("best", "last", "step"))
        raise ConfigurationError(f"{asked}: {which!r} is no checkpoint{hint}; say best, last or step:N")
    return reference


class Choice:
    """The checkpoints from which a run may resume.

    Args:
        files: File names of the run.
        config: What may be loaded.
        read: Finds out whether a saved directory is whole.
        changes_nothing: Set nothing aside; what other runs have is never changed.
    """

    def __init__(
        self, files: RunFiles, config: PersistenceConfig, *, read: Read = check, changes_nothing: bool = False
    ) -> None:
        self._files, self._config, self._read, self._changes_nothing = files, config, read, changes_nothing
        self._asked = f"load_checkpoint_path={config.load_checkpoint_path}"
        self._subject = f"run {config.run_name!r}"

    # points, each with its reason

    def own(self, remark: str = "") -> ResumePoint | None:
        """Return the newest checkpoint of the run itself."""
        newest = self.newest(self._files)
        if newest is None:
            return None
        record = RunRecord.read(self._files.run_record_path)
        # before the attempt is counted, the record is still that of the previous one
        status = record and (record.status if self._changes_nothing else record.status_before)
        finished = ", which had finished," if status == "FINISHED" else ""
        reason = f"{self._subject}{finished} goes on from its own newest checkpoint, {newest.name}{remark}"
        return ResumePoint(newest, self._config.run_name, reason)

    def typed(self) -> ResumePoint | None:
        """Return what `load_checkpoint_path` stands for: a checkpoint that it calls by name, or a path."""
        reference = checkpoint_reference(self._config.load_checkpoint_path or "")
        if _means_own(reference, self._config):
            return self._back(reference)
        if reference is not None:
            other = self.other_run(reference)
            entry, name = self.called(other, reference), other.run_base_dir.name
            reason = f"{self._subject} starts from {entry.path.name} of {name!r} ({self._asked})"
            return ResumePoint(_candidate(entry), name, reason)
        saved = self.given()
        if saved is None:
            return None
        directory = saved.path.parent.parent
        reason = f"{self._subject} starts from {self._asked}, {saved.name}"
        return ResumePoint(saved, _saved_by(saved.path) or directory.name, reason)

    def _back(self, reference: CheckpointReference) -> ResumePoint:
        """Return the checkpoint of the run itself that the user called, or its newest one if that happened already."""
        files, name, typed = self._files, self._config.run_name, self._config.load_checkpoint_path
        record = RunRecord.read(files.run_record_path)
        if record is not None and record.went_back_to == typed:
            newest = self.called(files, reference._replace(which="latest"))
            if int(newest.metadata.get("attempt") or 0) >= (record.went_back_in or 0):
                reason = (
                    f"{self._subject} goes on from its own newest checkpoint, {newest.path.name}: its attempt "
                    f"{record.went_back_in} went back already ({self._asked}); to go back again, start it once without "
                    "that"
                )
                return ResumePoint(_candidate(newest), name, reason)
        entry = self.called(files, reference)
        reason = f"{self._subject} goes back to its own checkpoint {entry.path.name} ({self._asked})"
        return ResumePoint(_candidate(entry), name, reason, went_back_to=typed)

    def earlier(self, config_hash: str | None, group: str | None) -> ResumePoint | None:
        """Return the newest checkpoint of the newest earlier run that fits; damage in one of them is said."""
        own, same = self._config.run_name, "" if config_hash is None else " with the same config"
        for directory, _, record in earlier_runs(self._files, own):
            name, root = directory.name, directory.parent
            hash_then, group_then = (None, None) if record is None else (record.config_hash, record.group)
            if config_hash not in {None, hash_then} or (group is not None and group == group_then and name != own):
                continue
            try:
                other = self._files.at(directory)
                if (newest := self.newest(other)) is None:
                    continue
                place = "" if root == self._files.runs_root_dir else f" in {root}"
                reason = (
                    f"{self._subject} starts from {newest.name} of {name!r}{place}, the newest earlier run of app "
                    f"{self._config.app_name!r}{same} (auto_resume_latest)"
                )
                return ResumePoint(newest, name, reason)
            except CheckpointError as error:
                logger.warning("run %r is not resumed from: %s", name, error)
        return None

    # what a run offers

    def newest(self, files: RunFiles) -> ResumeCandidate | None:
        """Return the newest whole checkpoint of a run.

        Raises:
            CheckpointError: There are some, and none is whole, or they are links.
        """
        return self._newest_in(files, files.checkpoint_dir, CHECKPOINT_PREFIX, files.latest_checkpoint_path)

    def _newest_in(
        self, files: RunFiles, directory: Path, prefix: str, link: Path, max_step: int | None = None
    ) -> ResumeCandidate | None:
        store = self._store(files, directory, prefix)
        entry = store.latest(max_step, read=self._read)
        path, step = newest_pickle(directory, prefix, link.name, max_step=max_step) or (None, None)
        if entry is None:
            return None if path is None else ResumeCandidate(path, step)
        # 0.1.5 went on after this version, or `trieye convert`, had saved something
        if path is not None and step is not None and step > entry.step and not path.with_suffix("").exists():
            logger.warning(
                "%s of trieye 0.1.5 has a higher step than %s and is not used; `trieye convert` makes it a checkpoint",
                path,
                entry.path.name,
            )
        return _candidate(entry)

    def called(self, files: RunFiles, reference: CheckpointReference, *, asked: str | None = None) -> CheckpointEntry:
        """Return the best or newest whole checkpoint of a run, or that of a step, as the reference says.

        Raises:
            ConfigurationError: There is none of that kind.
            CheckpointError: Those that there are are damaged.
        """
        which, asked = reference.which, f"{asked or f'persistence.{self._asked}'}: run {files.run_base_dir.name!r}"
        store = self._store(files, files.checkpoint_dir, CHECKPOINT_PREFIX)
        entries = store.entries()
        if not entries and store.latest() is None:  # which raises if there are only damaged ones
            pickled = newest_pickle(files.checkpoint_dir, CHECKPOINT_PREFIX, files.latest_checkpoint_path.name)
            convert = f"`trieye convert {files.run_base_dir}` makes one of {pickled[0].name}" if pickled else ""
            raise ConfigurationError(f"{asked} has no checkpoint{convert and f' of this version; {convert}'}")
        ranked = store.ranked()
        if (found := store.find(which, read=self._read)) is not None:
            return found
        if isinstance(which, int):
            near = sorted((entry.step for entry in entries), key=lambda step: abs(step - which))
            shown = ", ".join(map(str, sorted(near[:MAX_SHOWN]))) + (", ..." if len(near) > MAX_SHOWN else "")
            hint = f"; the nearest is step:{near[0]}" if near else ""
            raise ConfigurationError(f"{asked} has no checkpoint of step {which}{hint} (steps: {shown or 'none'})")
        if ranked:
            names = ", ".join(entry.path.name for entry in ranked[:MAX_SHOWN])
            raise CheckpointError(f"{asked} has no whole checkpoint that says how good it is: {names} are damaged")
        raise ConfigurationError(
            f"{asked} has no best checkpoint, since none says how good it is; give `objective` or `is_best` to the "
            f"save, or choose one: latest, step:{entries[-1].step}"
        )

    def _store(self, files: RunFiles, directory: Path, prefix: str) -> CheckpointStore:
        """Return the saved states in a directory of a run; only in that of the run itself is anything set aside."""
        if directory.is_symlink() and not directory.resolve().is_relative_to(directory.parent.resolve()):
            raise CheckpointError(
                f"{directory} is a link to {directory.resolve()}, outside of {directory.parent}, and nothing is read "
                "there; let root_data_dir be a directory, or a link to one, that has room for all of the run"
            )
        read_only = self._changes_nothing or files.run_base_dir != self._files.run_base_dir
        return CheckpointStore(directory, prefix=prefix, read_only=read_only)

    # what the user typed

    def other_run(self, reference: CheckpointReference) -> RunFiles:
        """Return the files of the run that a reference such as `first_try:best` names.

        Raises:
            ConfigurationError: The app has no such run.
        """
        name = reference.run_name or ""
        directory = next((path for path in self._files.directories_of(name) if path.is_dir()), None)
        if directory is None:
            roots = self._files.run_roots()
            known = sorted({path.name for root in roots if root.is_dir() for path in root.iterdir() if path.is_dir()})
            raise ConfigurationError(
                f"persistence.{self._asked}: app {self._config.app_name!r} has no run {name!r}"
                f"{did_you_mean(name, known)} (looked in {', '.join(map(str, roots))})"
            )
        return self._files.at(directory)

    def given(self) -> ResumeCandidate | None:
        """Return what the path in `load_checkpoint_path` stands for; None if that is null.

        The path may be a checkpoint or a link to one, a 0.1.5 file, a run's directory, or that of its checkpoints.
        A relative one belongs to where the config was made.

        Raises:
            ConfigurationError: Nothing is there.
            CheckpointError: Something is there, and it is nothing whole of that kind.
        """
        return self._given("load_checkpoint_path", CHECKPOINT_PREFIX, self.newest)

    def _given(self, key: str, prefix: str, newest: Newest) -> ResumeCandidate | None:
        if not (value := getattr(self._config, key)):
            return None
        made_in = self._config._made_in  # noqa: SLF001 - as root_data_dir is resolved
        path = Path(os.path.abspath(made_in / Path(value).expanduser()))  # noqa: PTH100 - links stay
        return self._at(path, prefix, newest) or self._missing(key, value, path)

    def _missing(self, key: str, value: str, path: Path) -> ResumeCandidate | None:
        raise ConfigurationError(
            f"{key}={value!r} does not exist (looked for {path}); give a checkpoint directory, a run's directory, one "
            f"of {REFERENCE_FORMS}, or a file of trieye 0.1.5, or leave it null"
        )

    def _at(self, path: Path, prefix: str, newest: Newest) -> ResumeCandidate | None:
        real = path.resolve()
        if (real / MANIFEST_NAME).exists():
            return ResumeCandidate(real, read_manifest(real).step, self._read(real))
        if real.is_file():
            if not is_whole_pickle(real):
                raise CheckpointError(f"{path} is neither a saved directory nor a whole file of trieye 0.1.5")
            return ResumeCandidate(real, step_in(real.name))
        if not real.is_dir():
            return None
        is_inside = real.name in {self._files.checkpoint_dir.name, self._files.buffer_dir.name}
        found = newest(self._files.at(real.parent if is_inside else real))
        if found is None:
            raise CheckpointError(
                f"{path} holds nothing to load: neither {MANIFEST_NAME} nor a directory {prefix}<step>"
            )
        return found


def _means_own(reference: CheckpointReference | None, config: PersistenceConfig) -> TypeGuard[CheckpointReference]:
    return reference is not None and reference.run_name in {None, config.run_name}


def _candidate(entry: CheckpointEntry) -> ResumeCandidate:
    return ResumeCandidate(entry.path, entry.step, entry.state)


def _saved_by(path: Path) -> str | None:
    name = read_manifest(path).metadata.get("run_name") if path.is_dir() else None
    return name if isinstance(name, str) else None
