"""Chooses the checkpoint that a run resumes from, its own or another run's (`load_checkpoint_path`)."""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeGuard

from trieye.checkpoints.legacy import is_whole_pickle, newest_pickle
from trieye.checkpoints.manifest import MANIFEST_NAME, read_manifest
from trieye.checkpoints.store import CheckpointEntry, CheckpointStore, Read, check, ranked
from trieye.config import PersistenceConfig
from trieye.config.base import did_you_mean
from trieye.config.locations import REFERENCE_FORMS, CheckpointReference, checkpoint_reference
from trieye.exceptions import CheckpointError, ConfigurationError
from trieye.files.run_files import CHECKPOINT_PREFIX, CRASH_PREFIX, RunFiles, step_in
from trieye.files.run_record import RunRecord, earlier_runs
from trieye.snapshot.nodes import EncodedState

logger = logging.getLogger(__name__)

MAX_SHOWN = 10


class ResumeCandidate(NamedTuple):
    """A loadable checkpoint.

    Attributes:
        path: Its directory, or a pickle file of trieye 0.1.5.
        step: Its global step; None if only the content of a 0.1.5 file contains it.
        state: Its content, if the integrity check read it.
    """

    path: Path
    step: int | None
    state: EncodedState | None = None

    @property
    def name(self) -> str:
        """File name for log messages, with the step if the file name lacks it."""
        has_step = self.step is None or str(self.step) in self.path.name
        return self.path.name if has_step else f"{self.path.name} of step {self.step}"


Newest = Callable[[RunFiles], ResumeCandidate | None]
"""Returns the newest intact checkpoint of a run."""


@dataclass(frozen=True)
class ResumePoint:
    """The state that a run resumes from.

    Attributes:
        checkpoint: The chosen checkpoint.
        run_name: The run that saved the checkpoint.
        reason: A sentence for the log.
        went_back_to: The user's reference, if the run goes back to one of its earlier checkpoints.
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
    """Return the state that the run resumes from, or None for a fresh start.

    The order is: the run's own newest intact checkpoint; `load_checkpoint_path`; with `auto_resume_latest`, the newest
    checkpoint of the newest earlier run of the app, including runs below `resume_dirs`, with the same `config_hash`.

    A `load_checkpoint_path` of `best`, `latest` or `step:<N>` refers to a checkpoint of the run itself and takes
    precedence: the run goes back to that checkpoint, once. A later attempt with the same value, such as the restart of
    a preempted job, resumes from the newest checkpoint saved since. `<run>:best` and similar references count as a path
    to a checkpoint of another run of the app.

    Args:
        files: File names of the run.
        config: Settings that select the checkpoint.
        config_hash: Hash of the settings that an earlier run must share; None accepts every run.
        group: The sweep that the run belongs to; other members of the sweep are not candidates.
        read: Verifies a saved directory; its return value becomes the candidate's state, so nothing is read twice.
        changes_nothing: Do not quarantine damaged checkpoints, for an attempt that is not counted yet.

    Raises:
        ConfigurationError: `load_checkpoint_path` or one of `resume_dirs` does not exist.
        CheckpointError: The chosen run has checkpoints and none of them is intact.
    """
    choice = Choice(files, config, read=read, changes_nothing=changes_nothing)
    setting = config.load_checkpoint_path
    if _refers_to_own(checkpoint_reference(setting or ""), config):
        point = choice.typed() or choice.own()
    else:
        remark = f" (load_checkpoint_path={setting} applies to its first start)" if setting else ""
        point = choice.own(remark) or choice.typed()
    if point is None and config.auto_resume_latest:
        return choice.earlier(config_hash, group)
    return point


def point_at(path: Path, files: RunFiles, config: PersistenceConfig, *, read: Read = check) -> ResumePoint:
    """Return the state in a checkpoint directory, possibly a copy or a checkpoint of another run.

    Raises:
        CheckpointError: The directory does not exist, or the checkpoint is damaged.
    """
    manifest, state = read_manifest(path), read(path)
    run_name = _run_name_of(path) or files.run_base_dir.name
    possessive = "its own" if run_name == config.run_name else f"{run_name!r}'s"
    reason = f"run {config.run_name!r} resumes from the selected checkpoint, {possessive} {path.name}"
    return ResumePoint(ResumeCandidate(path, manifest.step, state), run_name, reason)


def check_reference(files: RunFiles, config: PersistenceConfig) -> None:
    """Check before the start of the run that a reference such as `best` or `first:best` can be resolved.

    The check reads only names and manifests and changes nothing. It is skipped with a mirror, which may have
    checkpoints that are missing here.

    Raises:
        ConfigurationError: The run does not exist, or has no such checkpoint.
        CheckpointError: All its checkpoints are damaged.
    """
    reference = checkpoint_reference(config.load_checkpoint_path or "")
    if reference is None or config.mirror is not None:
        return
    choice = Choice(files, config, read=lambda _: None, changes_nothing=True)
    if _refers_to_own(reference, config):
        record = RunRecord.read(files.run_record_path)
        if record is None or record.went_back_to != config.load_checkpoint_path:
            choice.called(files, reference)
    elif not any(files.checkpoint_dir.glob(f"{CHECKPOINT_PREFIX}*")):
        choice.called(choice.other_run(reference), reference)


def named_checkpoint(files: RunFiles, which: str, *, option: str) -> CheckpointEntry:
    """Resolve `best`, `latest` or `step:1200` to a checkpoint of a run, without changing anything.

    Args:
        files: File names of the run.
        which: The reference.
        option: The option or argument, for the message.

    Raises:
        ConfigurationError: The reference is invalid, or the run has no such checkpoint.
        CheckpointError: All such checkpoints are damaged.
    """
    reference = reference_of(which, option=option)
    choice = Choice(files, files.persist_config, read=lambda _: None, changes_nothing=True)
    return choice.called(files, reference, option=option)


def reference_of(which: str, *, option: str) -> CheckpointReference:
    """Parse `best`, `latest` or `step:1200` without a run name.

    Args:
        which: The text.
        option: The option or argument, for the message.

    Raises:
        ConfigurationError: The text is no such reference.
    """
    reference = checkpoint_reference(which)
    if reference is None or reference.run_name is not None:
        hint = did_you_mean(which, ("best", "latest", "step"))
        if which.startswith(CRASH_PREFIX):
            hint = "; `trieye checkpoints RUN` shows the key with which another run starts from the state at an error"
        raise ConfigurationError(f"{option}: {which!r} is not a checkpoint{hint} (choose from: best, latest, step:N)")
    return reference


class Choice:
    """The candidates for the resume point of a run.

    Args:
        files: File names of the run.
        config: Settings that select the checkpoint.
        read: Verifies a saved directory.
        changes_nothing: Do not quarantine damaged checkpoints; other runs are never changed.
    """

    def __init__(
        self, files: RunFiles, config: PersistenceConfig, *, read: Read = check, changes_nothing: bool = False
    ) -> None:
        self._files, self._config, self._read, self._changes_nothing = files, config, read, changes_nothing
        self._setting = f"load_checkpoint_path={config.load_checkpoint_path}"
        self._subject = f"run {config.run_name!r}"

    # resume points, each with its reason

    def own(self, remark: str = "") -> ResumePoint | None:
        """Return the newest checkpoint of the run itself."""
        newest = self.newest(self._files)
        if newest is None:
            return None
        record = RunRecord.read(self._files.run_record_path)
        # until the attempt is counted, the record describes the previous one
        status = record and (record.status if self._changes_nothing else record.status_before)
        status_text = ", which had finished," if status == "FINISHED" else ""
        reason = f"{self._subject}{status_text} resumes from its own newest checkpoint, {newest.name}{remark}"
        return ResumePoint(newest, self._config.run_name, reason)

    def typed(self) -> ResumePoint | None:
        """Return the checkpoint of `load_checkpoint_path`, a reference or a path."""
        reference = checkpoint_reference(self._config.load_checkpoint_path or "")
        if _refers_to_own(reference, self._config):
            return self._back(reference)
        if reference is not None:
            other_files = self.other_run(reference)
            entry, name = self.called(other_files, reference), other_files.run_base_dir.name
            reason = f"{self._subject} starts from {entry.path.name} of {name!r} ({self._setting})"
            return ResumePoint(_candidate(entry), name, reason)
        candidate = self.given()
        if candidate is None:
            return None
        run_dir = candidate.path.parent.parent
        reason = f"{self._subject} starts from {self._setting}, {candidate.name}"
        return ResumePoint(candidate, _run_name_of(candidate.path) or run_dir.name, reason)

    def _back(self, reference: CheckpointReference) -> ResumePoint:
        """Return the run's own referenced checkpoint, or its newest one if an attempt has gone back already."""
        files, name, setting = self._files, self._config.run_name, self._config.load_checkpoint_path
        record = RunRecord.read(files.run_record_path)
        if record is not None and record.went_back_to == setting:
            newest = self.called(files, reference._replace(which="latest"))
            if int(newest.metadata.get("attempt") or 0) >= (record.went_back_in or 0):
                reason = (
                    f"{self._subject} resumes from its own newest checkpoint, {newest.path.name}: attempt "
                    f"{record.went_back_in} already went back ({self._setting}); to go back again, start it once "
                    "without that setting"
                )
                return ResumePoint(_candidate(newest), name, reason)
        entry = self.called(files, reference)
        reason = f"{self._subject} goes back to its own checkpoint {entry.path.name} ({self._setting})"
        return ResumePoint(_candidate(entry), name, reason, went_back_to=setting)

    def earlier(self, config_hash: str | None, group: str | None) -> ResumePoint | None:
        """Return the newest checkpoint of the newest matching earlier run; warn about and skip damaged runs."""
        own_name, config_text = self._config.run_name, "" if config_hash is None else " with the same config"
        for directory, _, record in earlier_runs(self._files, own_name):
            name, root = directory.name, directory.parent
            hash_then, group_then = (None, None) if record is None else (record.config_hash, record.group)
            if config_hash not in {None, hash_then} or (group is not None and group == group_then and name != own_name):
                continue
            try:
                other_files = self._files.at(directory)
                if (newest := self.newest(other_files)) is None:
                    continue
                location = "" if root == self._files.runs_root_dir else f" in {root}"
                reason = (
                    f"{self._subject} starts from {newest.name} of {name!r}{location}, the newest earlier run of app "
                    f"{self._config.app_name!r}{config_text} (auto_resume_latest)"
                )
                return ResumePoint(newest, name, reason)
            except CheckpointError as error:
                logger.warning("skipping run %r for auto_resume_latest: %s", name, error)
        return None

    # candidates of a run

    def newest(self, files: RunFiles) -> ResumeCandidate | None:
        """Return the newest intact checkpoint of a run.

        Raises:
            CheckpointError: Checkpoints exist, and none is intact, or they are links.
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
        # trieye 0.1.5 continued the run after this version, or `trieye convert`, had saved a checkpoint
        if path is not None and step is not None and step > entry.step and not path.with_suffix("").exists():
            text = "%s of trieye 0.1.5 has a higher step than %s and is ignored; `trieye convert` makes it a checkpoint"
            logger.warning(text, path, entry.path.name)
        return _candidate(entry)

    def called(self, files: RunFiles, reference: CheckpointReference, *, option: str | None = None) -> CheckpointEntry:
        """Return the checkpoint of a run that a reference denotes: the best, the newest, or a step.

        Raises:
            ConfigurationError: The run has no such checkpoint.
            CheckpointError: All such checkpoints are damaged.
        """
        which, subject = reference.which, f"{option or f'persistence.{self._setting}'}: run {files.run_base_dir.name!r}"
        store = self._store(files, files.checkpoint_dir, CRASH_PREFIX if reference.is_crash else CHECKPOINT_PREFIX)
        entries = store.entries()
        # `latest` raises if all are damaged
        entry = store.find(which, read=self._read) if entries or reference.is_crash else store.latest()
        if entry is not None:
            return entry
        if which == "best" and (damaged_entries := ranked(entries)):
            names = ", ".join(entry.path.name for entry in damaged_entries[:MAX_SHOWN])
            raise CheckpointError(
                f"{subject} has no intact checkpoint with an objective: {names} are damaged; "
                f"`trieye checkpoints {files.run_base_dir}` lists the checkpoints that latest or step:N would load"
            )
        hint = "; none has an objective: pass `objective` or `is_best` to `save`" if which == "best" and entries else ""
        if not entries and newest_pickle(files.checkpoint_dir, CHECKPOINT_PREFIX, files.latest_checkpoint_path.name):
            hint = f"; `trieye convert {files.run_base_dir}` converts checkpoints of trieye 0.1.5"
        prefix = CRASH_PREFIX if reference.is_crash else "step:"
        name = f"{prefix}{which}" if isinstance(which, int) else which
        nearest = sorted(entries, key=lambda entry: abs(entry.step - which) if isinstance(which, int) else -entry.step)
        labels = ", ".join(f"{prefix}{entry.step}" for entry in nearest[:MAX_SHOWN])
        suffix = ", ..." if nearest[MAX_SHOWN:] else ""
        raise ConfigurationError(f"{subject} has no checkpoint {name}{hint} (choose from: {labels or 'none'}{suffix})")

    def _store(self, files: RunFiles, directory: Path, prefix: str) -> CheckpointStore:
        """Return the saved states in a directory of a run; only the run itself quarantines damaged ones."""
        if directory.is_symlink() and not directory.resolve().is_relative_to(directory.parent.resolve()):
            raise CheckpointError(
                f"{directory} is a link to {directory.resolve()}, outside of {directory.parent}, and is not followed; "
                "set root_data_dir to a directory, or a link to one, with enough space for the whole run"
            )
        read_only = self._changes_nothing or files.run_base_dir != self._files.run_base_dir
        return CheckpointStore(directory, prefix=prefix, read_only=read_only)

    # candidates that the user requested

    def other_run(self, reference: CheckpointReference) -> RunFiles:
        """Return the files of the run in a reference such as `first_try:best`.

        Raises:
            ConfigurationError: The app has no such run.
        """
        name = reference.run_name or ""
        directory = next((path for path in self._files.directories_of(name) if path.is_dir()), None)
        if directory is None:
            roots = self._files.run_roots()
            runs = sorted({path.name for root in roots if root.is_dir() for path in root.iterdir() if path.is_dir()})
            raise ConfigurationError(
                f"persistence.{self._setting}: app {self._config.app_name!r} has no run {name!r}"
                f"{did_you_mean(name, runs)} (looked in {', '.join(map(str, roots))})"
            )
        return self._files.at(directory)

    def given(self) -> ResumeCandidate | None:
        """Resolve the path in `load_checkpoint_path`; None if it is null.

        The path may be a checkpoint or a link to one, a 0.1.5 file, a run directory, or its checkpoint directory.
        A relative path is resolved against the directory where the config was created.

        Raises:
            ConfigurationError: The path does not exist, or a directory of it cannot be read.
            CheckpointError: The path exists, but contains no intact checkpoint.
        """
        return self._given("load_checkpoint_path", CHECKPOINT_PREFIX, self.newest)

    def _given(self, key: str, prefix: str, newest: Newest) -> ResumeCandidate | None:
        if not (value := getattr(self._config, key)):
            return None
        made_in = self._config._made_in  # noqa: SLF001 - as root_data_dir is resolved
        # unlike the methods of Path, these keep links and accept an unknown user
        path = Path(os.path.abspath(made_in / os.path.expanduser(value)))  # noqa: PTH100, PTH111
        try:
            path.resolve(strict=True)
        except PermissionError as error:
            raise ConfigurationError(f"{key}={value!r} cannot be read: {error.strerror}: {error.filename}") from error
        except (OSError, RuntimeError, ValueError):  # missing, a loop of links, a name that is too long or has a NUL
            return self._missing(key, value, path)
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
                raise CheckpointError(f"{path} is neither a saved directory nor an intact file of trieye 0.1.5")
            return ResumeCandidate(real, step_in(real.name))
        if not real.is_dir():
            return None
        is_inside = real.name in {self._files.checkpoint_dir.name, self._files.buffer_dir.name}
        candidate = newest(self._files.at(real.parent if is_inside else real))
        if candidate is None:
            raise CheckpointError(f"{path} has nothing to load: neither {MANIFEST_NAME} nor a directory {prefix}<step>")
        return candidate


def _refers_to_own(reference: CheckpointReference | None, config: PersistenceConfig) -> TypeGuard[CheckpointReference]:
    if reference is None or reference.is_crash:  # no run goes back to its own state at an error
        return False
    return reference.run_name in {None, config.run_name}


def _candidate(entry: CheckpointEntry) -> ResumeCandidate:
    return ResumeCandidate(entry.path, entry.step, entry.state)


def _run_name_of(path: Path) -> str | None:
    name = read_manifest(path).metadata.get("run_name") if path.is_dir() else None
    return name if isinstance(name, str) else None
